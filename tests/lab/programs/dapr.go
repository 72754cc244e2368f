// dapr SERVICE HTTP INPUT OUTPUT FOLDER: Dapr's component for Pulsar copies one topic to another until it is stopped.
package main

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/dapr/components-contrib/metadata"
	"github.com/dapr/components-contrib/pubsub"
	"github.com/dapr/components-contrib/pubsub/pulsar"
	"github.com/dapr/kit/logger"
)

func name(topic string) string { return topic[strings.LastIndex(topic, "/")+1:] }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	bus := pulsar.NewPulsar(logger.NewLogger("lab"))
	settings := map[string]string{"host": strings.TrimPrefix(os.Args[1], "pulsar://"), "consumerID": "bridge",
		"subscribeType": "exclusive", "disableBatching": "true", "maxConcurrentHandlers": "1"}
	if err := bus.Init(ctx, pubsub.Metadata{Base: metadata.Base{Properties: settings}}); err != nil {
		panic(err)
	}
	copied := func(ctx context.Context, message *pubsub.NewMessage) error {
		return bus.Publish(ctx, &pubsub.PublishRequest{Topic: name(os.Args[4]), Data: message.Data})
	}
	if err := bus.Subscribe(ctx, pubsub.SubscribeRequest{Topic: name(os.Args[3]),
		Metadata: map[string]string{"subscribeType": "exclusive"}}, copied); err != nil {
		panic(err)
	}
	<-ctx.Done()
	bus.Close()
}
