// Publishes messages with the Go client and consumes them, and says whether what came is what went.
//
//	goclient -url pulsar://127.0.0.1:6650 -topic T -messages 100 -compression zstd -batching -keys
//
// With -keyvalues put it publishes lines {"key": .., "value": ..} of its input instead, with -keyvalues get it prints those of
// a compacted topic. With -delays it publishes the delayed messages of its input to some KIND=TOPIC and prints what comes when,
// with -retries N it asks for each of them again later, N times.  With -to TOPIC it moves messages there in transactions.
// With -types it publishes one message with a field of each type.  With -oauth2 it signs in, by parameters as JSON.
//
// Exit status 0 and a line with "ok" when every message arrived once, unchanged, with its metadata, in the order of its
// partition, and when nothing came again after all was acknowledged.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

var compressions = map[string]pulsar.CompressionType{
	"none": pulsar.NoCompression, "lz4": pulsar.LZ4, "zlib": pulsar.ZLib, "zstd": pulsar.ZSTD, "snappy": pulsar.SNAPPY,
}

type options struct {
	url, topic, compression  string
	keyValues                string
	oauth2                   string
	typed                    bool
	messages, size           int
	batching, chunking, keys bool
	cumulative, delayed      bool
	retried                  uint
	to                       string
	lanes                    int
	silence, deadline        time.Duration
}

func parse() options {
	var o options
	flag.StringVar(&o.url, "url", "pulsar://127.0.0.1:6650", "service URL")
	flag.StringVar(&o.topic, "topic", "", "topic, plain or partitioned; nobody else may use it")
	flag.StringVar(&o.compression, "compression", "none", "none, lz4, zlib, zstd or snappy")
	flag.StringVar(&o.keyValues, "keyvalues", "", "put or get")
	flag.StringVar(&o.oauth2, "oauth2", "", "parameters of OAuth 2, a JSON object of texts")
	flag.BoolVar(&o.typed, "types", false, "publish one message with a field of each type")
	flag.BoolVar(&o.delayed, "delays", false, "topics are KIND=TOPIC,...")
	flag.UintVar(&o.retried, "retries", 0, "topics are KIND=TOPIC,...; deliveries before the dead letter topic")
	flag.StringVar(&o.to, "to", "", "topic to which messages are moved, in transactions, until -silence")
	flag.IntVar(&o.lanes, "lanes", 2, "transactions at a time")
	flag.IntVar(&o.messages, "messages", 100, "how many")
	flag.IntVar(&o.size, "size", 100, "bytes of a payload")
	flag.BoolVar(&o.batching, "batching", false, "publish in batches")
	flag.BoolVar(&o.chunking, "chunking", false, "cut large messages into chunks")
	flag.BoolVar(&o.keys, "keys", false, "give messages keys and ordering keys")
	flag.BoolVar(&o.cumulative, "cumulative", false, "acknowledge once, cumulatively (one partition only)")
	flag.DurationVar(&o.silence, "silence", 300*time.Millisecond, "how long nothing may arrive at the end")
	flag.DurationVar(&o.deadline, "deadline", 30*time.Second, "for everything together")
	flag.Parse()
	return o
}

// body is the payload of message n: the same whenever it is asked for, and no two alike.
func (o options) body(n int) []byte {
	body := make([]byte, o.size)
	rand.New(rand.NewSource(int64(n))).Read(body[:len(body)/2]) // the other half is for compression
	return append(body, strconv.Itoa(n)...)
}

func (o options) key(n int) string { return fmt.Sprintf("key-%d", n%7) }

func (o options) message(n int) *pulsar.ProducerMessage {
	message := &pulsar.ProducerMessage{
		Payload:    o.body(n),
		Properties: map[string]string{"n": strconv.Itoa(n), "empty": ""},
		EventTime:  time.UnixMilli(int64(1_000_000 + n)),
	}
	if o.keys {
		message.Key, message.OrderingKey = o.key(n), "order-"+o.key(n)
	}
	return message
}

// publish returns when every message has its receipt.
func (o options) publish(ctx context.Context, client pulsar.Client) error {
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic:                   o.topic,
		CompressionType:         compressions[o.compression],
		DisableBatching:         !o.batching,
		BatchingMaxMessages:     10,
		BatchingMaxPublishDelay: 5 * time.Millisecond,
		EnableChunking:          o.chunking,
	})
	if err != nil {
		return fmt.Errorf("producer: %w", err)
	}
	defer producer.Close()
	var receipts sync.WaitGroup
	refused := make(chan error, o.messages)
	for n := range o.messages {
		receipts.Add(1)
		producer.SendAsync(ctx, o.message(n), func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				refused <- fmt.Errorf("message %d: %w", n, err)
			}
			receipts.Done()
		})
	}
	receipts.Wait()
	close(refused)
	return <-refused // nil when there was none
}

// verify says what is wrong with a received message; returns its number.
func (o options) verify(message pulsar.Message) (int, error) {
	n, err := strconv.Atoi(message.Properties()["n"])
	if err != nil {
		return 0, fmt.Errorf("a message of somebody else: %v", message.Properties())
	}
	expected := o.message(n)
	switch {
	case !bytes.Equal(message.Payload(), expected.Payload):
		return n, fmt.Errorf("message %d has another payload, of %d bytes", n, len(message.Payload()))
	case len(message.Properties()) != len(expected.Properties):
		return n, fmt.Errorf("message %d has properties %v", n, message.Properties())
	case message.Key() != expected.Key || message.OrderingKey() != expected.OrderingKey:
		return n, fmt.Errorf("message %d has keys %q and %q", n, message.Key(), message.OrderingKey())
	case !message.EventTime().Equal(expected.EventTime):
		return n, fmt.Errorf("message %d has event time %v", n, message.EventTime())
	}
	return n, nil
}

// consume returns when every message was received once and acknowledged.
func (o options) consume(ctx context.Context, consumer pulsar.Consumer) error {
	newest := map[int32]int{}         // by partition
	partitionOf := map[string]int32{} // by key
	var last pulsar.Message
	for count := range o.messages {
		message, err := consumer.Receive(ctx)
		if err != nil {
			return fmt.Errorf("after %d messages: %w", count, err)
		}
		n, err := o.verify(message)
		if err != nil {
			return err
		}
		partition := message.ID().PartitionIdx()
		if before, found := newest[partition]; found && before >= n {
			return fmt.Errorf("message %d came after %d in partition %d", n, before, partition)
		}
		newest[partition] = n
		if used, found := partitionOf[message.Key()]; o.keys && found && used != partition {
			return fmt.Errorf("key %s is in partitions %d and %d", message.Key(), used, partition)
		}
		partitionOf[message.Key()] = partition
		last = message
		if !o.cumulative {
			if err := consumer.Ack(message); err != nil {
				return fmt.Errorf("acknowledging message %d: %w", n, err)
			}
		}
	}
	if o.cumulative {
		return consumer.AckCumulative(last)
	}
	return nil
}

func (o options) subscribe(client pulsar.Client) (pulsar.Consumer, error) {
	return client.Subscribe(pulsar.ConsumerOptions{
		Topic:            o.topic,
		SubscriptionName: "go",
		Type:             pulsar.Exclusive,
		AckWithResponse:  true,
	})
}

func run(o options) error {
	if _, found := compressions[o.compression]; !found || o.topic == "" {
		return errors.New("see -help")
	}
	ctx, cancel := context.WithTimeout(context.Background(), o.deadline)
	defer cancel()
	var who pulsar.Authentication
	if o.oauth2 != "" {
		var parameters map[string]string
		if err := json.Unmarshal([]byte(o.oauth2), &parameters); err != nil {
			return err
		}
		who = pulsar.NewAuthenticationOAuth2(parameters)
	}
	quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: o.url, Authentication: who, Logger: log.NewLoggerWithSlog(quiet), EnableTransaction: o.to != "",
	})
	if err != nil {
		return err
	}
	defer client.Close()
	switch o.keyValues {
	case "put":
		return o.put(ctx, client)
	case "get":
		return o.get(ctx, client)
	}
	if o.typed {
		return o.types(ctx, client)
	}
	if o.delayed {
		return o.delays(ctx, client)
	}
	if o.to != "" {
		return o.move(ctx, client)
	}
	if o.retried > 0 {
		return o.retries(ctx, client, uint32(o.retried))
	}

	consumer, err := o.subscribe(client)
	if err != nil {
		return fmt.Errorf("consumer: %w", err)
	}
	published := make(chan error, 1)
	go func() { published <- o.publish(ctx, client) }()
	if err := o.consume(ctx, consumer); err != nil {
		return err
	}
	if err := <-published; err != nil {
		return err
	}

	consumer.Close()
	consumer, err = o.subscribe(client)
	if err != nil {
		return fmt.Errorf("consumer once more: %w", err)
	}
	defer consumer.Close()
	silence, over := context.WithTimeout(ctx, o.silence)
	defer over()
	if message, err := consumer.Receive(silence); err == nil {
		return fmt.Errorf("message %s came again", message.Properties()["n"])
	}
	return nil
}

func main() {
	o := parse()
	if err := run(o); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	if o.keyValues != "" || o.typed || o.delayed || o.retried > 0 || o.to != "" {
		return
	}
	fmt.Printf("ok: %d messages\n", o.messages)
}
