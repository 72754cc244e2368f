package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

const (
	lifetime = 4 * time.Second // of a transaction: one that broke blocks the readers behind it for so long
	together = 5               // messages in a transaction, at most
	gather   = 100 * time.Millisecond
	backlog  = 1_000 // messages that a lane holds, at most
)

// tally counts what became of the transactions of all lanes.
type tally struct{ committed, aborted, broken, moved atomic.Int64 }

// move takes messages from the topic to o.to, each transaction with what it takes and what it gives, in some lanes, until
// nothing has come for o.silence.  Every seventh transaction is aborted on purpose.
func (o options) move(ctx context.Context, client pulsar.Client) error {
	var total tally
	var lanes sync.WaitGroup
	failed := make(chan error, o.lanes)
	for lane := range o.lanes {
		lanes.Add(1)
		go func() {
			defer lanes.Done()
			if err := o.lane(ctx, client, lane, &total); err != nil {
				failed <- err
			}
		}()
	}
	lanes.Wait()
	close(failed)
	fmt.Printf("committed %d aborted %d broken %d messages %d\n",
		total.committed.Load(), total.aborted.Load(), total.broken.Load(), total.moved.Load())
	return <-failed
}

func (o options) lane(ctx context.Context, client pulsar.Client, lane int, total *tally) error {
	producer, err := persist(ctx, func() (pulsar.Producer, error) {
		return client.CreateProducer(pulsar.ProducerOptions{
			Topic: o.to, DisableBatching: !o.batching, SendTimeout: -1, BatchingMaxPublishDelay: time.Millisecond,
		})
	})
	if err != nil {
		return fmt.Errorf("producer: %w", err)
	}
	defer producer.Close()
	consumer, err := persist(ctx, func() (pulsar.Consumer, error) {
		return client.Subscribe(pulsar.ConsumerOptions{
			Topic: o.topic, SubscriptionName: "mover", Type: pulsar.Shared, NackRedeliveryDelay: gather,
			ReceiverQueueSize: 20, EnableAutoScaledReceiverQueueSize: false,
		})
	})
	if err != nil {
		return fmt.Errorf("consumer: %w", err)
	}
	defer consumer.Close()
	received := receive(ctx, consumer)
	for last, turn := time.Now(), lane; time.Since(last) < o.silence; turn++ {
		taken := take(received)
		if len(taken) == 0 {
			continue
		}
		err := o.one(ctx, client, consumer, producer, taken, turn%7 == 3)
		last = time.Now() // after it, as an acknowledgement whose answer is lost takes longer than the silence
		switch {
		case err == nil:
			total.committed.Add(1)
			total.moved.Add(int64(len(taken)))
			continue
		case errors.Is(err, errOnPurpose):
			total.aborted.Add(1)
		default:
			total.broken.Add(1)
		}
		for _, message := range taken {
			consumer.Nack(message) // what a transaction holds comes when that ends, all else soon
		}
	}
	return nil
}

// persist tries until it succeeds: the client connects again by itself, but gives up a producer or consumer whose
// connection ends while that is made.
func persist[T any](ctx context.Context, try func() (T, error)) (T, error) {
	for {
		made, err := try()
		if err == nil || ctx.Err() != nil {
			return made, err
		}
		time.Sleep(gather)
	}
}

// receive takes messages off the consumer at once, until that is closed.  The client reads no answer on a connection while
// a consumer's queue is full, and after a new subscribe the queue may hold more than it was made for.
func receive(ctx context.Context, consumer pulsar.Consumer) <-chan pulsar.Message {
	received := make(chan pulsar.Message, backlog)
	go func() {
		defer close(received)
		for {
			message, err := consumer.Receive(ctx)
			if err != nil {
				return
			}
			received <- message
		}
	}()
	return received
}

// take returns what comes within a moment.
func take(received <-chan pulsar.Message) []pulsar.Message {
	var taken []pulsar.Message
	moment := time.After(gather)
	for len(taken) < together {
		select {
		case message, isOpen := <-received:
			if !isOpen {
				return taken
			}
			taken = append(taken, message)
		case <-moment:
			return taken
		}
	}
	return taken
}

var errOnPurpose = errors.New("aborted on purpose")

// one moves messages in one transaction, and returns nil if that is committed.
func (o options) one(ctx context.Context, client pulsar.Client, consumer pulsar.Consumer, producer pulsar.Producer,
	taken []pulsar.Message, isUndone bool) error {
	transaction, err := client.NewTransaction(lifetime)
	if err != nil {
		return err
	}
	var receipts sync.WaitGroup
	refused := make(chan error, len(taken))
	for _, message := range taken {
		receipts.Add(1)
		producer.SendAsync(ctx, &pulsar.ProducerMessage{Payload: message.Payload(), Transaction: transaction},
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				if err != nil {
					refused <- err
				}
				receipts.Done()
			})
	}
	for _, message := range taken {
		if err = consumer.AckWithTxn(message, transaction); err != nil {
			break
		}
	}
	receipts.Wait()
	close(refused)
	if err == nil {
		err = <-refused
	}
	if err == nil && !isUndone {
		return transaction.Commit(ctx)
	}
	if undone := transaction.Abort(ctx); err == nil && undone == nil {
		return errOnPurpose
	}
	return errors.Join(err, errors.New("to be aborted"))
}
