package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// keyValue is a line of standard input or output; no value is a tombstone.
type keyValue struct {
	Key   string  `json:"key"`
	Value *string `json:"value"`
}

// put publishes the key-values of standard input.
func (o options) put(ctx context.Context, client pulsar.Client) error {
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: o.topic, CompressionType: compressions[o.compression], DisableBatching: !o.batching,
		BatchingMaxMessages: 10, BatchingMaxPublishDelay: 5 * time.Millisecond,
	})
	if err != nil {
		return fmt.Errorf("producer: %w", err)
	}
	defer producer.Close()
	var receipts sync.WaitGroup
	var failed error
	var once sync.Once
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var said keyValue
		if err := json.Unmarshal(lines.Bytes(), &said); err != nil {
			return err
		}
		message := &pulsar.ProducerMessage{Key: said.Key}
		if said.Value != nil {
			message.Payload = []byte(*said.Value)
		}
		receipts.Add(1)
		producer.SendAsync(ctx, message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				once.Do(func() { failed = err })
			}
			receipts.Done()
		})
	}
	receipts.Wait()
	return failed
}

// get prints every message of the compacted topic, from its beginning until there is none.
func (o options) get(ctx context.Context, client pulsar.Client) error {
	reader, err := client.CreateReader(pulsar.ReaderOptions{
		Topic: o.topic, StartMessageID: pulsar.EarliestMessageID(), ReadCompacted: true,
	})
	if err != nil {
		return fmt.Errorf("reader: %w", err)
	}
	defer reader.Close()
	out := json.NewEncoder(os.Stdout)
	for reader.HasNext() {
		message, err := reader.Next(ctx)
		if err != nil {
			return err
		}
		value := string(message.Payload())
		if err := out.Encode(keyValue{message.Key(), &value}); err != nil {
			return err
		}
	}
	return nil
}
