package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

const (
	largeBytes = 6 << 20 // more than a message may have: it is cut into chunks
	retryWait  = time.Second
)

// delayed is a line of standard input: how is "now", "after" or "at", both in so many milliseconds from now.
type delayed struct {
	Name    string `json:"name"`
	How     string `json:"how"`
	Ms      int64  `json:"ms"`
	IsLarge bool   `json:"is_large"`
}

// told is a line of standard output: what came on which topic, when it was due (0: at once), when it came; of what was to be
// consumed again later, also how often it had been.
type told struct {
	Topic string `json:"topic"`
	Name  string `json:"name"`
	Due   int64  `json:"due_ms"`
	Came  int64  `json:"came_ms"`
	Again string `json:"again,omitempty"`
	Size  int    `json:"size"`
}

type printer struct {
	mutex sync.Mutex
	out   *json.Encoder
}

func (p *printer) print(line told) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.out.Encode(line)
}

func input() ([]delayed, error) {
	var found []delayed
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var one delayed
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return nil, err
		}
		found = append(found, one)
	}
	return found, nil
}

// everywhere does the same with each of some KIND=TOPIC at the same time; the first failure counts.
func everywhere(topics string, do func(kind, topic string) error) error {
	all := strings.Split(topics, ",")
	failed := make(chan error, len(all))
	for _, one := range all {
		kind, topic, _ := strings.Cut(one, "=")
		go func() { failed <- do(kind, topic) }()
	}
	for range all {
		if err := <-failed; err != nil {
			return err
		}
	}
	return nil
}

// delays publishes what the input says to each topic, and prints what comes.
func (o options) delays(ctx context.Context, client pulsar.Client) error {
	messages, err := input()
	if err != nil {
		return err
	}
	out := printer{out: json.NewEncoder(os.Stdout)}
	return everywhere(o.topic, func(kind, topic string) error {
		types := map[string]pulsar.SubscriptionType{
			"Shared": pulsar.Shared, "Key_Shared": pulsar.KeyShared, "Exclusive": pulsar.Exclusive, "Failover": pulsar.Failover,
		}
		consumer, err := client.Subscribe(pulsar.ConsumerOptions{
			Topic: topic, SubscriptionName: "go", Type: types[kind], AckWithResponse: true,
		})
		if err != nil {
			return fmt.Errorf("consumer: %w", err)
		}
		defer consumer.Close()
		published := make(chan error, 1)
		go func() { published <- publishDelayed(ctx, client, topic, messages) }()
		for range messages {
			message, err := consumer.Receive(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", kind, err)
			}
			came := time.Now().UnixMilli()
			var due int64
			fmt.Sscan(message.Properties()["due"], &due)
			if err := out.print(told{topic, message.Properties()["name"], due, came, "", len(message.Payload())}); err != nil {
				return err
			}
			if err := consumer.Ack(message); err != nil {
				return err
			}
		}
		return <-published
	})
}

func publishDelayed(ctx context.Context, client pulsar.Client, topic string, messages []delayed) error {
	batching, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, BatchingMaxPublishDelay: 5 * time.Millisecond})
	if err != nil {
		return fmt.Errorf("producer: %w", err)
	}
	defer batching.Close()
	chunking, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true, EnableChunking: true})
	if err != nil {
		return fmt.Errorf("producer: %w", err)
	}
	defer chunking.Close()
	for _, one := range messages {
		message := &pulsar.ProducerMessage{Payload: []byte(one.Name), Key: one.Name}
		producer, due, wait := batching, time.Now().UnixMilli()+one.Ms, time.Duration(one.Ms)*time.Millisecond
		switch one.How {
		case "after":
			message.DeliverAfter = wait
		case "at":
			message.DeliverAt = time.UnixMilli(due)
		default:
			due = 0
		}
		if one.IsLarge {
			producer, message.Payload = chunking, make([]byte, largeBytes)
		}
		message.Properties = map[string]string{"name": one.Name, "due": fmt.Sprint(due)}
		if _, err := producer.Send(ctx, message); err != nil {
			return fmt.Errorf("%s: %w", one.Name, err)
		}
	}
	return nil
}

// retries consumes each message of the input on each topic, asks for it again later as often as may be, then at the dead letter
// topic; prints all of that.
func (o options) retries(ctx context.Context, client pulsar.Client, times uint32) error {
	messages, err := input()
	if err != nil {
		return err
	}
	out := printer{out: json.NewEncoder(os.Stdout)}
	return everywhere(o.topic, func(_, topic string) error {
		dead, err := client.Subscribe(pulsar.ConsumerOptions{Topic: topic + "-go-DLQ", SubscriptionName: "dead"})
		if err != nil {
			return fmt.Errorf("consumer of dead letters: %w", err)
		}
		defer dead.Close()
		consumer, err := client.Subscribe(pulsar.ConsumerOptions{
			Topic: topic, SubscriptionName: "go", Type: pulsar.Shared, RetryEnable: true,
			SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
			DLQ: &pulsar.DLQPolicy{
				MaxDeliveries: times, RetryLetterTopic: topic + "-go-RETRY", DeadLetterTopic: topic + "-go-DLQ",
			},
		})
		if err != nil {
			return fmt.Errorf("consumer: %w", err)
		}
		defer consumer.Close()
		if err := publishDelayed(ctx, client, topic, messages); err != nil {
			return err
		}
		due := map[string]int64{}
		for range int(times+1) * len(messages) {
			message, err := consumer.Receive(ctx)
			if err != nil {
				return fmt.Errorf("consuming again: %w", err)
			}
			name, came := message.Properties()["name"], time.Now().UnixMilli()
			again := message.Properties()["RECONSUMETIMES"]
			if err := out.print(told{topic, name, due[name], came, again, len(message.Payload())}); err != nil {
				return err
			}
			due[name] = time.Now().Add(retryWait).UnixMilli()
			consumer.ReconsumeLater(message, retryWait)
		}
		for range messages {
			message, err := dead.Receive(ctx)
			if err != nil {
				return fmt.Errorf("dead letters: %w", err)
			}
			if err := out.print(told{topic, message.Properties()["name"], 0, 0, "dead", len(message.Payload())}); err != nil {
				return err
			}
		}
		return nil
	})
}
