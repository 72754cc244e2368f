// What the lab asks of Go's client, each thing by its name; Ground.ask says how the program is told.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand"
	"os"
	"reflect"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

const (
	patience = 15 * time.Second       // longest wait for a message that has to come
	silence  = 400 * time.Millisecond // shortest wait for one that must not
)

var (
	told  map[string]string
	input = bufio.NewReader(os.Stdin)
	quiet = log.NewLoggerWithSlog(slog.New(slog.NewTextHandler(io.Discard, nil)))
	bg    = context.Background()
)

type lacks string

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func say(values map[string]any) {
	fmt.Println(string(must(json.Marshal(values))))
}

func please(method, path string, body any) {
	say(map[string]any{"please": method, "path": path, "body": body})
	if answer := strings.TrimSpace(must(input.ReadString('\n'))); answer != "done" {
		panic("administration: " + answer)
	}
}

func path(topic string) string { return strings.Replace(topic, "://", "/", 1) }

func open(options pulsar.ClientOptions) pulsar.Client {
	if options.URL == "" {
		options.URL = told["service"]
	}
	options.OperationTimeout, options.Logger = 20*time.Second, quiet
	return must(pulsar.NewClient(options))
}

func client() pulsar.Client { return open(pulsar.ClientOptions{EnableTransaction: true}) }

func numbered(count int, prefix string) []string {
	var all []string
	for n := range count {
		all = append(all, fmt.Sprint(prefix, n))
	}
	return all
}

func subscribe(c pulsar.Client, topic string, change func(*pulsar.ConsumerOptions)) pulsar.Consumer {
	options := pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s", AckWithResponse: true,
		NackRedeliveryDelay: 200 * time.Millisecond}
	if change != nil {
		change(&options)
	}
	return must(c.Subscribe(options))
}

func ofType(kind pulsar.SubscriptionType) func(*pulsar.ConsumerOptions) {
	return func(options *pulsar.ConsumerOptions) { options.Type = kind }
}

func publish(c pulsar.Client, options pulsar.ProducerOptions, messages ...*pulsar.ProducerMessage) {
	producer := must(c.CreateProducer(options))
	defer producer.Close()
	var sent sync.WaitGroup
	var lock sync.Mutex
	var failed error
	for _, message := range messages {
		sent.Add(1)
		producer.SendAsync(bg, message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				lock.Lock()
				failed = err
				lock.Unlock()
			}
			sent.Done()
		})
	}
	check(producer.FlushWithCtx(bg))
	sent.Wait()
	check(failed)
}

func of(payloads []string) []*pulsar.ProducerMessage {
	var all []*pulsar.ProducerMessage
	for _, payload := range payloads {
		all = append(all, &pulsar.ProducerMessage{Payload: []byte(payload)})
	}
	return all
}

func single(topic string) pulsar.ProducerOptions {
	return pulsar.ProducerOptions{Topic: topic, DisableBatching: true}
}

func batched(topic string) pulsar.ProducerOptions {
	return pulsar.ProducerOptions{Topic: topic, BatchingMaxPublishDelay: 50 * time.Millisecond}
}

func next(consumer pulsar.Consumer, wait time.Duration) (pulsar.Message, bool) {
	ctx, cancel := context.WithTimeout(bg, wait)
	defer cancel()
	message, err := consumer.Receive(ctx)
	return message, err == nil
}

func receive(consumer pulsar.Consumer, count int, acks bool) []pulsar.Message {
	var got []pulsar.Message
	for n := range count {
		message, found := next(consumer, patience)
		if !found {
			panic(fmt.Sprint("nothing more after ", n))
		}
		got = append(got, message)
		if acks {
			check(consumer.Ack(message))
		}
	}
	return got
}

func drain(consumer pulsar.Consumer, wait time.Duration) []pulsar.Message {
	var got []pulsar.Message
	for {
		message, found := next(consumer, wait)
		if !found {
			return got
		}
		check(consumer.Ack(message))
		got = append(got, message)
	}
}

func data(messages []pulsar.Message) []string {
	all := []string{}
	for _, message := range messages {
		all = append(all, string(message.Payload()))
	}
	return all
}

func said(got, expected []string) string {
	if slices.Equal(got, expected) {
		return fmt.Sprint(len(got), " in order")
	}
	one, other := slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(expected))
	if slices.Equal(one, other) {
		return fmt.Sprint(len(got), " out of order")
	}
	missing := 0
	for _, payload := range expected {
		if !slices.Contains(got, payload) {
			missing++
		}
	}
	return fmt.Sprintf("%d came, %d missing, %d twice", len(got), missing, len(got)-len(slices.Compact(one)))
}

func pooled(count int, consumers ...pulsar.Consumer) [][]pulsar.Message {
	got := make([][]pulsar.Message, len(consumers))
	all := 0
	for until := time.Now().Add(patience); all < count && time.Now().Before(until); {
		for at, consumer := range consumers {
			if message, found := next(consumer, 20*time.Millisecond); found {
				check(consumer.Ack(message))
				got[at] = append(got[at], message)
				all++
			}
		}
	}
	return got
}

func byKey(got [][]pulsar.Message) string {
	at, count, both := map[string]int{}, 0, false
	for n, mine := range got {
		count += len(mine)
		for _, message := range mine {
			if where, found := at[message.Key()]; found && where != n {
				both = true
			}
			at[message.Key()] = n
		}
	}
	if both {
		return fmt.Sprint(count, ", keys at both")
	}
	return fmt.Sprint(count, ", each key at one")
}

func keyed(count, keys int) []*pulsar.ProducerMessage {
	messages := of(numbered(count, ""))
	for n, message := range messages {
		message.Key, message.Properties = fmt.Sprint("k", n%keys), map[string]string{"n": fmt.Sprint(n)}
	}
	return messages
}

func two(c pulsar.Client, topic string, kind pulsar.SubscriptionType) (pulsar.Consumer, pulsar.Consumer) {
	small := func(options *pulsar.ConsumerOptions) { options.Type, options.ReceiverQueueSize = kind, 5 }
	return subscribe(c, topic, small), subscribe(c, topic, small)
}

type ordered struct {
	Name  string `json:"name" avro:"name"`
	Count int    `json:"count" avro:"count"`
}

type wider struct {
	Name   string  `json:"name" avro:"name"`
	Count  int     `json:"count" avro:"count"`
	Remark *string `json:"remark" avro:"remark"`
}

const (
	orderedSchema = `{"type": "record", "name": "Ordered", "fields": [{"name": "name", "type": "string"}, {"name": "count", "type": "int"}]}`
	widerSchema   = `{"type": "record", "name": "Ordered", "fields": [{"name": "name", "type": "string"}, {"name": "count", "type": "int"},
		{"name": "remark", "type": ["null", "string"], "default": null}]}`
	otherSchema = `{"type": "record", "name": "Ordered", "fields": [{"name": "name", "type": "int"}]}`
)

func withSchema(c pulsar.Client, topic string, schema pulsar.Schema) string {
	consumer := subscribe(c, topic, func(options *pulsar.ConsumerOptions) { options.Schema = schema })
	for n := range 3 {
		publish(c, pulsar.ProducerOptions{Topic: topic, Schema: schema},
			&pulsar.ProducerMessage{Value: &ordered{fmt.Sprint("n", n), n}})
	}
	var all []string
	for _, message := range receive(consumer, 3, true) {
		var value ordered
		check(message.GetSchemaValue(&value))
		all = append(all, fmt.Sprint(value.Name, "=", value.Count))
	}
	return strings.Join(all, " ")
}

func codec(kind pulsar.CompressionType) func(pulsar.Client, string) string {
	return func(c pulsar.Client, topic string) string {
		consumer := subscribe(c, topic, nil)
		payloads := numbered(10, strings.Repeat("x", 1000))
		for _, single := range []bool{false, true} {
			publish(c, pulsar.ProducerOptions{Topic: topic, CompressionType: kind, DisableBatching: single}, of(payloads)...)
		}
		return said(data(receive(consumer, 20, true)), slices.Concat(payloads, payloads))
	}
}

func letters(c pulsar.Client, topic string, retries bool) string {
	dead := subscribe(c, topic+"-dead", nil)
	consumer := subscribe(c, topic, func(options *pulsar.ConsumerOptions) {
		options.Type, options.RetryEnable = pulsar.Shared, retries
		options.AckWithResponse = !retries // else this client waits for an answer that it does not read
		options.DLQ = &pulsar.DLQPolicy{MaxDeliveries: 3, DeadLetterTopic: topic + "-dead"}
		if retries {
			options.DLQ = &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: topic + "-dead", RetryLetterTopic: topic + "-retry"}
		}
	})
	publish(c, single(topic), of([]string{"bad"})...)
	count := 0
	for until := time.Now().Add(patience); time.Now().Before(until); {
		if message, found := next(consumer, 300*time.Millisecond); found {
			count++
			if retries {
				consumer.ReconsumeLater(message, 100*time.Millisecond)
			} else {
				consumer.Nack(message)
			}
			continue
		}
		if letter, found := next(dead, 300*time.Millisecond); found {
			return fmt.Sprintf("%d deliveries, then %s", count, letter.Payload())
		}
	}
	return fmt.Sprintf("%d deliveries, no dead letter", count)
}

func acrossTransaction(c pulsar.Client, topic string, commits bool) string {
	source, output := subscribe(c, topic, ofType(pulsar.Shared)), subscribe(c, topic+"-out", nil)
	publish(c, single(topic), of([]string{"input"})...)
	transaction := must(c.NewTransaction(30 * time.Second))
	taken := receive(source, 1, false)[0]
	producer := must(c.CreateProducer(pulsar.ProducerOptions{Topic: topic + "-out", SendTimeout: -1, DisableBatching: true}))
	for _, message := range of(numbered(5, "m")) {
		message.Transaction = transaction
		must(producer.Send(bg, message))
	}
	check(source.AckWithTxn(taken, transaction))
	before := "nothing before"
	if len(drain(output, silence)) > 0 {
		before = "some before"
	}
	if commits {
		check(transaction.Commit(bg))
		return before + ", then " + said(data(receive(output, 5, true)), numbered(5, "m"))
	}
	check(transaction.Abort(bg))
	source.Nack(taken)
	after := "nothing"
	if len(drain(output, silence)) > 0 {
		after = "some"
	}
	return after + ", and the " + data(receive(source, 1, true))[0] + " again"
}

func refusedWith(options pulsar.ClientOptions) string {
	other := open(options)
	defer other.Close()
	if _, err := other.CreateProducer(pulsar.ProducerOptions{Topic: "persistent://public/default/" + told["prefix"] + "-credentials"}); err != nil {
		return "refused"
	}
	return "admitted"
}

func readAll(reader pulsar.Reader) []string {
	var got []string
	for reader.HasNext() {
		ctx, cancel := context.WithTimeout(bg, patience)
		got = append(got, string(must(reader.Next(ctx)).Payload()))
		cancel()
	}
	return got
}

var things = map[string]func(pulsar.Client, string) string{
	"exclusive": func(c pulsar.Client, topic string) string {
		consumer := subscribe(c, topic, nil)
		other := client()
		defer other.Close()
		second := "second refused"
		if _, err := other.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s"}); err == nil {
			second = "second admitted"
		}
		publish(c, single(topic), of(numbered(20, "m"))...)
		return said(data(receive(consumer, 20, true)), numbered(20, "m")) + ", " + second
	},
	"failover": func(c pulsar.Client, topic string) string {
		other := client()
		defer other.Close()
		first := subscribe(c, topic, func(o *pulsar.ConsumerOptions) { o.Type, o.Name = pulsar.Failover, "a" })
		second := subscribe(other, topic, func(o *pulsar.ConsumerOptions) { o.Type, o.Name = pulsar.Failover, "b" })
		publish(c, single(topic), of(numbered(20, "m"))...)
		got := receive(first, 10, true)
		first.Close()
		return said(data(append(got, receive(second, 10, true)...)), numbered(20, "m"))
	},
	"shared": func(c pulsar.Client, topic string) string {
		a, b := two(c, topic, pulsar.Shared)
		publish(c, single(topic), of(numbered(60, "m"))...)
		got := pooled(60, a, b)
		all := data(slices.Concat(got...))
		have := "both have some"
		if len(got[0]) == 0 || len(got[1]) == 0 {
			have = "one has none"
		}
		return fmt.Sprintf("%d of %d, %s", len(slices.Compact(slices.Sorted(slices.Values(all)))), len(all), have)
	},
	"key shared": func(c pulsar.Client, topic string) string {
		a, b := two(c, topic, pulsar.KeyShared)
		publish(c, single(topic), keyed(60, 12)...)
		got := pooled(60, a, b)
		order := ", in order"
		for _, mine := range got {
			last := map[string]int{}
			for _, message := range mine {
				var n int
				must(fmt.Sscan(string(message.Payload()), &n))
				if before, found := last[message.Key()]; found && before > n {
					order = ", out of order"
				}
				last[message.Key()] = n
			}
		}
		return byKey(got) + order
	},
	"batches of mixed keys": func(c pulsar.Client, topic string) string {
		consumer := subscribe(c, topic, nil)
		publish(c, batched(topic), keyed(30, 7)...)
		got := receive(consumer, 30, true)
		kept := ", keys kept"
		for n, message := range got {
			if message.Key() != fmt.Sprint("k", n%7) || message.Properties()["n"] != fmt.Sprint(n) {
				kept = ", keys lost"
			}
		}
		return said(data(got), numbered(30, "")) + kept
	},
	"batches by key": func(c pulsar.Client, topic string) string {
		a, b := two(c, topic, pulsar.KeyShared)
		options := batched(topic)
		options.BatcherBuilderType = pulsar.KeyBasedBatchBuilder
		publish(c, options, keyed(60, 12)...)
		return byKey(pooled(60, a, b))
	},
	"part of a batch acknowledged": func(c pulsar.Client, topic string) string {
		change := func(o *pulsar.ConsumerOptions) { o.Type, o.EnableBatchIndexAcknowledgment = pulsar.Shared, true }
		consumer := subscribe(c, topic, change)
		publish(c, batched(topic), of(numbered(10, "m"))...)
		for _, message := range receive(consumer, 10, false)[:5] {
			check(consumer.Ack(message))
		}
		consumer.Close()
		again := subscribe(c, topic, change)
		got := append(receive(again, 5, true), drain(again, silence)...)
		return "others come again: " + said(data(got), numbered(10, "m")[5:])
	},
	"cumulative acknowledgement": func(c pulsar.Client, topic string) string {
		consumer := subscribe(c, topic, nil)
		publish(c, single(topic), of(numbered(10, "m"))...)
		check(consumer.AckCumulative(receive(consumer, 10, false)[5]))
		consumer.Close()
		again := subscribe(c, topic, nil)
		got := append(receive(again, 4, true), drain(again, silence)...)
		return "others come again: " + said(data(got), numbered(10, "m")[6:])
	},
	"chunks": func(c pulsar.Client, topic string) string {
		payload := make([]byte, 12_000_000)
		rand.New(rand.NewSource(7)).Read(payload)
		consumer := subscribe(c, topic, nil)
		publish(c, pulsar.ProducerOptions{Topic: topic, DisableBatching: true, EnableChunking: true},
			&pulsar.ProducerMessage{Payload: []byte("small")}, &pulsar.ProducerMessage{Payload: payload})
		large := receive(consumer, 2, true)[1].Payload()
		if !bytes.Equal(large, payload) {
			return fmt.Sprint(len(large), " bytes, others")
		}
		return fmt.Sprint(len(large), " bytes, the same")
	},
	"compression LZ4":    codec(pulsar.LZ4),
	"compression zlib":   codec(pulsar.ZLib),
	"compression zstd":   codec(pulsar.ZSTD),
	"compression Snappy": codec(pulsar.CompressionType(4)), // early versions have no name for it
	"schema JSON": func(c pulsar.Client, topic string) string {
		return withSchema(c, topic, pulsar.NewJSONSchema(orderedSchema, nil))
	},
	"schema Avro": func(c pulsar.Client, topic string) string {
		return withSchema(c, topic, pulsar.NewAvroSchema(orderedSchema, nil))
	},
	"schema evolved": func(c pulsar.Client, topic string) string {
		old := pulsar.NewAvroSchema(orderedSchema, nil)
		publish(c, pulsar.ProducerOptions{Topic: topic, Schema: old}, &pulsar.ProducerMessage{Value: &ordered{"old", 1}})
		publish(c, pulsar.ProducerOptions{Topic: topic, Schema: pulsar.NewAvroSchema(widerSchema, nil)},
			&pulsar.ProducerMessage{Value: &wider{"new", 2, nil}})
		consumer := subscribe(c, topic, func(o *pulsar.ConsumerOptions) {
			o.Schema, o.SubscriptionInitialPosition = old, pulsar.SubscriptionPositionEarliest
		})
		var all []string
		for _, message := range receive(consumer, 2, true) {
			var value ordered
			check(message.GetSchemaValue(&value))
			all = append(all, value.Name)
		}
		return strings.Join(all, " ")
	},
	"schema refused": func(c pulsar.Client, topic string) string {
		publish(c, pulsar.ProducerOptions{Topic: topic, Schema: pulsar.NewAvroSchema(orderedSchema, nil)},
			&pulsar.ProducerMessage{Value: &ordered{"old", 1}})
		_, err := c.CreateProducer(pulsar.ProducerOptions{Topic: topic, Schema: pulsar.NewAvroSchema(otherSchema, nil)})
		if err == nil {
			return "admitted"
		}
		if strings.Contains(err.Error(), "IncompatibleSchema") {
			return "refused"
		}
		return err.Error()
	},
	"schema string": func(c pulsar.Client, topic string) string {
		schema := pulsar.NewStringSchema(nil)
		consumer := subscribe(c, topic, func(o *pulsar.ConsumerOptions) { o.Schema = schema })
		publish(c, pulsar.ProducerOptions{Topic: topic, Schema: schema}, &pulsar.ProducerMessage{Value: "text"})
		var value *string // although it takes a text
		check(receive(consumer, 1, true)[0].GetSchemaValue(&value))
		return *value
	},
	"encryption": func(c pulsar.Client, topic string) string {
		keys := crypto.NewFileKeyReader(told["public"], told["private"])
		consumer := subscribe(c, topic, func(o *pulsar.ConsumerOptions) {
			o.Decryption = &pulsar.MessageDecryptionInfo{KeyReader: keys, ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionFail}
		})
		publish(c, pulsar.ProducerOptions{Topic: topic, Encryption: &pulsar.ProducerEncryptionInfo{KeyReader: keys, Keys: []string{"lab"}}},
			of(numbered(10, "m"))...)
		return said(data(receive(consumer, 10, true)), numbered(10, "m"))
	},
	"dead letters": func(c pulsar.Client, topic string) string { return letters(c, topic, false) },
	"retry topic":  func(c pulsar.Client, topic string) string { return letters(c, topic, true) },
	"seek by id": func(c pulsar.Client, topic string) string {
		consumer := subscribe(c, topic, nil)
		publish(c, single(topic), of(numbered(10, "m"))...)
		check(consumer.Seek(receive(consumer, 10, true)[4].ID()))
		return "from there: " + said(data(receive(consumer, 5, true)), numbered(10, "m")[5:])
	},
	"seek by time": func(c pulsar.Client, topic string) string {
		consumer := subscribe(c, topic, nil)
		publish(c, single(topic), of(numbered(5, "early"))...)
		time.Sleep(50 * time.Millisecond)
		moment := time.Now()
		time.Sleep(50 * time.Millisecond)
		publish(c, single(topic), of(numbered(5, "late"))...)
		receive(consumer, 10, true)
		check(consumer.SeekByTime(moment))
		return "from there: " + said(data(receive(consumer, 5, true)), numbered(5, "late"))
	},
	"seek to the begin": func(c pulsar.Client, topic string) string {
		consumer := subscribe(c, topic, nil)
		publish(c, single(topic), of(numbered(10, "m"))...)
		receive(consumer, 10, true)
		check(consumer.Seek(pulsar.EarliestMessageID()))
		return said(data(receive(consumer, 10, true)), numbered(10, "m"))
	},
	"reader from the begin": func(c pulsar.Client, topic string) string {
		publish(c, batched(topic), of(numbered(20, "m"))...)
		reader := must(c.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()}))
		return said(readAll(reader), numbered(20, "m"))
	},
	"reader from an id": func(c pulsar.Client, topic string) string {
		producer := must(c.CreateProducer(single(topic)))
		var ids []pulsar.MessageID
		for _, message := range of(numbered(10, "m")) {
			ids = append(ids, must(producer.Send(bg, message)))
		}
		reader := must(c.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: ids[3], StartMessageIDInclusive: true}))
		got := readAll(reader)
		if slices.Equal(got, numbered(10, "m")[3:]) {
			return "from there: in order"
		}
		return "from there: " + said(got, numbered(10, "m")[3:])
	},
	"last message id": func(c pulsar.Client, topic string) string {
		consumer := subscribe(c, topic, nil)
		producer := must(c.CreateProducer(single(topic)))
		var sent pulsar.MessageID
		for _, message := range of(numbered(3, "m")) {
			sent = must(producer.Send(bg, message))
		}
		last := must(consumer.GetLastMessageIDs())
		if len(last) == 1 && last[0].LedgerID() == sent.LedgerID() && last[0].EntryID() == sent.EntryID() {
			return "the last one"
		}
		return fmt.Sprint(last)
	},
	"table view": func(c pulsar.Client, topic string) string {
		view := must(c.CreateTableView(pulsar.TableViewOptions{Topic: topic, Schema: pulsar.NewBytesSchema(nil),
			SchemaValueType: reflect.TypeOf([]byte{})}))
		publish(c, batched(topic), keyed(10, 3)...) // a topic with clients takes no schema of bytes
		var seen []string
		for until := time.Now().Add(patience); view.Size() < 3 && time.Now().Before(until); {
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(silence)
		for key, value := range view.Entries() {
			seen = append(seen, fmt.Sprintf("%s=%s", key, value))
		}
		sort.Strings(seen)
		return strings.Join(seen, " ")
	},
	"pattern": func(c pulsar.Client, topic string) string {
		publish(c, single(topic+"-a"))
		consumer := must(c.Subscribe(pulsar.ConsumerOptions{TopicsPattern: topic + "-.*", SubscriptionName: "s",
			AutoDiscoveryPeriod: time.Second}))
		publish(c, single(topic+"-a"), of(numbered(3, "m"))...)
		count := len(receive(consumer, 3, true))
		late := must(c.CreateProducer(single(topic + "-b")))
		for range 30 {
			must(late.Send(bg, &pulsar.ProducerMessage{Payload: []byte("late")}))
			if _, found := next(consumer, 500*time.Millisecond); found {
				return fmt.Sprint(count, ", and of a later topic")
			}
		}
		return fmt.Sprint(count, ", none of a later topic")
	},
	"several topics": func(c pulsar.Client, topic string) string {
		topics := []string{topic + "-a", topic + "-b", topic + "-c"}
		consumer := must(c.Subscribe(pulsar.ConsumerOptions{Topics: topics, SubscriptionName: "s"}))
		for _, name := range topics {
			publish(c, single(name), of(numbered(4, name[len(name)-1:]))...)
		}
		payloads, from := map[string]bool{}, map[string]bool{}
		for _, message := range receive(consumer, 12, true) {
			payloads[string(message.Payload())], from[message.Topic()] = true, true
		}
		return fmt.Sprintf("%d of %d topics", len(payloads), len(from))
	},
	"partitions": func(c pulsar.Client, topic string) string {
		please("PUT", path(topic)+"/partitions", 3)
		consumer := subscribe(c, topic, nil)
		publish(c, single(topic), keyed(30, 10)...)
		payloads, of, several := map[string]bool{}, map[string]int32{}, false
		for _, message := range receive(consumer, 30, true) {
			payloads[string(message.Payload())] = true
			if where, found := of[message.Key()]; found && where != message.ID().PartitionIdx() {
				several = true
			}
			of[message.Key()] = message.ID().PartitionIdx()
		}
		if several {
			return fmt.Sprint(len(payloads), ", keys in several")
		}
		return fmt.Sprint(len(payloads), ", each key in one")
	},
	"partitions added": func(c pulsar.Client, topic string) string {
		please("PUT", path(topic)+"/partitions", 1)
		producer := must(c.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true,
			PartitionsAutoDiscoveryInterval: time.Second}))
		consumer := subscribe(c, topic, func(o *pulsar.ConsumerOptions) { o.AutoDiscoveryPeriod = time.Second })
		must(producer.Send(bg, &pulsar.ProducerMessage{Payload: []byte("0")}))
		please("POST", path(topic)+"/partitions", 3)
		from, received, sent := map[int32]bool{}, map[string]bool{}, 1
		for until := time.Now().Add(patience); len(from) < 3 && time.Now().Before(until); {
			must(producer.Send(bg, &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(sent))}))
			sent++
			if message, found := next(consumer, 200*time.Millisecond); found {
				received[string(message.Payload())], from[message.ID().PartitionIdx()] = true, true
			}
		}
		for _, message := range drain(consumer, 3*silence) {
			received[string(message.Payload())] = true
		}
		if len(received) != sent {
			return fmt.Sprintf("some missing, %d of %d of %d partitions", len(received), sent, len(from))
		}
		return fmt.Sprintf("10 of %d partitions", len(from))
	},
	"negative acknowledgement": func(c pulsar.Client, topic string) string {
		consumer := subscribe(c, topic, ofType(pulsar.Shared))
		publish(c, single(topic), of([]string{"again"})...)
		consumer.Nack(receive(consumer, 1, false)[0])
		message := receive(consumer, 1, true)[0]
		return fmt.Sprintf("%s, count %d", message.Payload(), message.RedeliveryCount())
	},
	"acknowledgement timeout": func(pulsar.Client, string) string { panic(lacks("no timeout of acknowledgements")) },
	"delayed": func(c pulsar.Client, topic string) string {
		consumer := subscribe(c, topic, ofType(pulsar.Shared))
		producer := must(c.CreateProducer(single(topic)))
		must(producer.Send(bg, &pulsar.ProducerMessage{Payload: []byte("later"), DeliverAfter: time.Second}))
		sent := time.Now()
		must(producer.Send(bg, &pulsar.ProducerMessage{Payload: []byte("now")}))
		got := data(receive(consumer, 2, true))
		if late := time.Since(sent); late < 900*time.Millisecond || late > 6*time.Second {
			return strings.Join(append(got, late.String()), ", ")
		}
		return strings.Join(append(got, "in time"), ", ")
	},
	"transaction committed": func(c pulsar.Client, topic string) string { return acrossTransaction(c, topic, true) },
	"transaction aborted":   func(c pulsar.Client, topic string) string { return acrossTransaction(c, topic, false) },
	"deduplication": func(c pulsar.Client, topic string) string {
		namespace := topic[strings.LastIndex(topic, "/")+1:]
		please("PUT", "namespaces/public/"+namespace, nil)
		please("POST", "namespaces/public/"+namespace+"/deduplication", true)
		own := "persistent://public/" + namespace + "/t"
		consumer := subscribe(c, own, nil)
		options := single(own)
		options.Name = "p"
		producer := must(c.CreateProducer(options))
		for _, id := range []int64{1, 2, 2, 1, 3} {
			must(producer.Send(bg, &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(id)), SequenceID: &id}))
		}
		return said(data(drain(consumer, 1500*time.Millisecond)), []string{"1", "2", "3"})
	},
	"closed in the middle": func(c pulsar.Client, topic string) string {
		consumer := subscribe(c, topic, ofType(pulsar.Shared))
		publish(c, single(topic), of(numbered(20, "m"))...)
		got := receive(consumer, 10, true)
		receive(consumer, 5, false)
		c.Close()
		other := client()
		defer other.Close()
		got = append(got, receive(subscribe(other, topic, ofType(pulsar.Shared)), 10, true)...)
		return said(data(got), numbered(20, "m"))
	},
	"broker started again": func(c pulsar.Client, topic string) string {
		consumer := subscribe(c, topic, nil)
		producer := must(c.CreateProducer(pulsar.ProducerOptions{Topic: topic, SendTimeout: time.Minute}))
		var got []string
		add := func(payload string) {
			if !slices.Contains(got, payload) {
				got = append(got, payload)
			}
		}
		for _, message := range of(numbered(10, "m")) {
			must(producer.Send(bg, message))
		}
		for _, payload := range data(receive(consumer, 5, true)) {
			add(payload)
		}
		please("restart", "", nil)
		for _, message := range of(numbered(10, "n")) {
			must(producer.Send(bg, message))
		}
		for until := time.Now().Add(2 * patience); len(got) < 20 && time.Now().Before(until); {
			if message, found := next(consumer, time.Second); found {
				consumer.Ack(message)
				add(string(message.Payload()))
			}
		}
		if !slices.Equal(got, append(numbered(10, "m"), numbered(10, "n")...)) {
			return fmt.Sprint(len(got), " of 20, out of order")
		}
		return fmt.Sprint(len(got), " of 20, in order")
	},
	"topic deleted": func(c pulsar.Client, topic string) string {
		producer := must(c.CreateProducer(pulsar.ProducerOptions{Topic: topic, SendTimeout: 20 * time.Second}))
		must(producer.Send(bg, &pulsar.ProducerMessage{Payload: []byte("before")}))
		please("DELETE", path(topic)+"?force=true", nil)
		if _, err := producer.Send(bg, &pulsar.ProducerMessage{Payload: []byte("after")}); err != nil {
			publish(c, single(topic), of([]string{"after"})...)
		}
		consumer := subscribe(c, topic, func(o *pulsar.ConsumerOptions) { o.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest })
		got := append(receive(consumer, 1, true), drain(consumer, silence)...)
		return "only " + strings.Join(data(got), " ")
	},
	"unsubscribe": func(c pulsar.Client, topic string) string {
		consumer := subscribe(c, topic, nil)
		publish(c, single(topic), of(numbered(3, "m"))...)
		check(consumer.Unsubscribe())
		again := subscribe(c, topic, func(o *pulsar.ConsumerOptions) { o.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest })
		return said(data(receive(again, 3, true)), numbered(3, "m"))
	},
	"properties and times": func(c pulsar.Client, topic string) string {
		consumer := subscribe(c, topic, nil)
		publish(c, single(topic), &pulsar.ProducerMessage{Payload: []byte("x"), Key: "k", OrderingKey: "o",
			Properties: map[string]string{"a": "1", "empty": ""}, EventTime: time.UnixMilli(12345)})
		m := receive(consumer, 1, true)[0]
		var pairs []string
		for name, value := range m.Properties() {
			pairs = append(pairs, fmt.Sprintf("('%s', '%s')", name, value))
		}
		sort.Strings(pairs)
		return fmt.Sprintf("[%s] %d %s %s", strings.Join(pairs, ", "), m.EventTime().UnixMilli(), m.Key(), m.OrderingKey())
	},
	"exclusive producer": func(c pulsar.Client, topic string) string {
		options := pulsar.ProducerOptions{Topic: topic, ProducerAccessMode: pulsar.ProducerAccessModeExclusive}
		must(c.CreateProducer(options))
		other := client()
		defer other.Close()
		_, err := other.CreateProducer(options)
		if err != nil && strings.Contains(err.Error(), "ProducerFenced") {
			return "second refused"
		}
		return fmt.Sprint("second: ", err)
	},
	"non-persistent": func(c pulsar.Client, topic string) string {
		passing := strings.Replace(topic, "persistent", "non-persistent", 1)
		consumer := subscribe(c, passing, nil)
		publish(c, batched(passing), of(numbered(10, "m"))...)
		return said(data(receive(consumer, 10, true)), numbered(10, "m"))
	},
	"without a queue": func(c pulsar.Client, topic string) string {
		consumer := subscribe(c, topic, func(o *pulsar.ConsumerOptions) { o.EnableZeroQueueConsumer = true })
		publish(c, single(topic), of(numbered(5, "m"))...)
		return said(data(receive(consumer, 5, true)), numbered(5, "m"))
	},
	"forged token": func(pulsar.Client, string) string {
		return refusedWith(pulsar.ClientOptions{Authentication: pulsar.NewAuthenticationToken(told["forged"])})
	},
	"expired token": func(pulsar.Client, string) string {
		return refusedWith(pulsar.ClientOptions{Authentication: pulsar.NewAuthenticationToken(told["expired"])})
	},
	"token over TLS": func(_ pulsar.Client, topic string) string {
		secure := open(pulsar.ClientOptions{URL: told["tls"], Authentication: pulsar.NewAuthenticationToken(told["token"]),
			TLSTrustCertsFilePath: told["trusted"], TLSValidateHostname: true})
		defer secure.Close()
		consumer := subscribe(secure, topic, nil)
		publish(secure, single(topic), of(numbered(10, "m"))...)
		return said(data(receive(consumer, 10, true)), numbered(10, "m"))
	},
	"TLS of a stranger": func(pulsar.Client, string) string {
		return refusedWith(pulsar.ClientOptions{URL: told["tls"], TLSTrustCertsFilePath: told["stranger"], TLSValidateHostname: true})
	},
	"lookup over HTTP": func(_ pulsar.Client, topic string) string {
		other := open(pulsar.ClientOptions{URL: told["http"]})
		defer other.Close()
		consumer := subscribe(other, topic, nil)
		publish(other, single(topic), of(numbered(5, "m"))...)
		return said(data(receive(consumer, 5, true)), numbered(5, "m"))
	},
}

func run(name string) (answer string) {
	defer func() {
		switch trouble := recover().(type) {
		case nil:
		case lacks:
			answer = "lacks: " + string(trouble)
		case error:
			answer = "error: " + trouble.Error()
			var known *pulsar.Error
			if errors.As(trouble, &known) {
				answer = fmt.Sprint("error: ", known.Result(), " ", trouble)
			}
		default:
			answer = fmt.Sprint("error: ", trouble)
		}
	}()
	thing, found := things[name]
	if !found {
		return "lacks: not in this program"
	}
	c := client()
	defer c.Close()
	return thing(c, "persistent://public/default/"+told["prefix"]+"-"+strings.ReplaceAll(name, " ", "-"))
}

func main() {
	check(json.Unmarshal([]byte(os.Args[len(os.Args)-1]), &told))
	for _, name := range strings.Split(told["things"], ",") {
		say(map[string]any{"thing": name, "answer": run(name)})
	}
}
