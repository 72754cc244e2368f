// Tries failed messages again, and gives up after two more deliveries.
package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	. "github.com/apache/pulsar-client-go/pulsar"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	client := must(NewClient(ClientOptions{URL: cmp.Or(os.Getenv("PULSAR_URL"), "pulsar://localhost:6650")}))
	defer client.Close()
	consumer := must(client.Subscribe(ConsumerOptions{Topic: "example-go-payments", SubscriptionName: "bank", Type: Shared,
		NackRedeliveryDelay: 200 * time.Millisecond, DLQ: &DLQPolicy{MaxDeliveries: 3, DeadLetterTopic: "example-go-failed"}}))
	failed := must(client.Subscribe(ConsumerOptions{Topic: "example-go-failed", SubscriptionName: "inspection"}))
	producer := must(client.CreateProducer(ProducerOptions{Topic: "example-go-payments"}))
	must(producer.Send(context.Background(), &ProducerMessage{Payload: []byte("not a number")}))
	for {
		select {
		case message := <-consumer.Chan():
			fmt.Println("failed:", string(message.Payload()), "after", message.RedeliveryCount(), "redeliveries")
			consumer.Nack(message) // delivered again after 200 ms
		case letter := <-failed.Chan():
			fmt.Println("dead letter:", string(letter.Payload()))
			return
		}
	}
}
