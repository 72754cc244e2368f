// Shares a subscription between two consumers, and keeps the order of each key.
package main

import (
	"cmp"
	"context"
	"fmt"
	"os"

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
	messages := make(chan ConsumerMessage)
	for _, name := range []string{"one", "two"} {
		must(client.Subscribe(ConsumerOptions{Topic: "example-go-readings", SubscriptionName: "averages",
			Name: name, Type: KeyShared, MessageChannel: messages}))
	}
	producer := must(client.CreateProducer(ProducerOptions{Topic: "example-go-readings"}))
	for number := range 20 {
		must(producer.Send(context.Background(), &ProducerMessage{Key: fmt.Sprint("sensor-", number%4),
			Payload: []byte(fmt.Sprint(number))}))
	}
	for range 20 {
		message := <-messages
		fmt.Println(message.Key(), string(message.Payload()), "by", message.Consumer.Name())
		must(0, message.Consumer.Ack(message))
	}
}
