// Publishes messages that consumers get later: after a delay, or at a time.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"time"

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
	consumer := must(client.Subscribe(pulsar.ConsumerOptions{Topic: "example-go-reminders", SubscriptionName: "mailer",
		Type: pulsar.Shared})) // the other types but KeyShared get each message at once
	producer := must(client.CreateProducer(pulsar.ProducerOptions{Topic: "example-go-reminders"}))
	begin := time.Now()
	must(producer.Send(ctx, &pulsar.ProducerMessage{Payload: []byte("after two seconds"), DeliverAfter: 2 * time.Second}))
	must(producer.Send(ctx, &pulsar.ProducerMessage{Payload: []byte("after one second"), DeliverAt: begin.Add(time.Second)}))
	must(producer.Send(ctx, &pulsar.ProducerMessage{Payload: []byte("at once")}))
	for range 3 {
		message := must(consumer.Receive(ctx))
		fmt.Printf("%.1f s: %s\n", time.Since(begin).Seconds(), message.Payload())
		must(0, consumer.Ack(message))
	}
}
