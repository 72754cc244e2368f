// Publishes three messages, and consumes them on a subscription.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"

	"github.com/apache/pulsar-client-go/pulsar"
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func main() {
	url, ctx := cmp.Or(os.Getenv("PULSAR_URL"), "pulsar://localhost:6650"), context.Background()
	client := must(pulsar.NewClient(pulsar.ClientOptions{URL: url}))
	defer client.Close()
	consumer := must(client.Subscribe(pulsar.ConsumerOptions{Topic: "example-go-orders", SubscriptionName: "billing"}))
	producer := must(client.CreateProducer(pulsar.ProducerOptions{Topic: "example-go-orders"}))
	for number := range 3 {
		id := must(producer.Send(ctx, &pulsar.ProducerMessage{Key: "customer-7",
			Properties: map[string]string{"shop": "north"}, Payload: fmt.Appendf(nil, "order %d", number)}))
		fmt.Println("on disk:", id)
	}
	for range 3 {
		message := must(consumer.Receive(ctx))
		fmt.Println("received:", string(message.Payload()), message.Key(), message.Properties()["shop"])
		must(0, consumer.Ack(message))
	}
}
