package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

type inner struct {
	A int
}

// everything has a field of each type that Go's library for JSON writes in a way of its own.
type everything struct {
	Truth    bool
	Number   int
	Large    int64
	Real     float64
	Text     string
	Unsigned uint64
	Price    json.Number
	Count    *big.Int
	Bytes    []byte
	Encoded  []byte
	Moment   time.Time
	Written  time.Time
	Numbered map[int]string
	List     []int
	Inner    inner
	Nothing  *int
}

const everythingSchema = `{"type": "record", "name": "Everything", "fields": [
	{"name": "Truth", "type": "boolean"}, {"name": "Number", "type": "int"}, {"name": "Large", "type": "long"},
	{"name": "Real", "type": "double"}, {"name": "Text", "type": "string"}, {"name": "Unsigned", "type": "string"},
	{"name": "Price", "type": "string"}, {"name": "Count", "type": "string"},
	{"name": "Bytes", "type": {"type": "bytes", "java-class": "[B"}}, {"name": "Encoded", "type": "bytes"},
	{"name": "Moment", "type": {"type": "long", "logicalType": "timestamp-micros"}}, {"name": "Written", "type": "string"},
	{"name": "Numbered", "type": {"type": "map", "values": "string"}},
	{"name": "List", "type": {"type": "array", "items": "int"}},
	{"name": "Inner", "type": {"type": "record", "name": "Inner", "fields": [{"name": "A", "type": "int"}]}},
	{"name": "Nothing", "type": ["null", "int"], "default": null}]}`

// types publishes one message with all of them.
func (o options) types(ctx context.Context, client pulsar.Client) error {
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: o.topic, Schema: pulsar.NewJSONSchema(everythingSchema, nil),
	})
	if err != nil {
		return fmt.Errorf("producer: %w", err)
	}
	defer producer.Close()
	moment := time.Date(2024, 1, 31, 10, 15, 30, 123_456_000, time.UTC)
	_, err = producer.Send(ctx, &pulsar.ProducerMessage{Value: &everything{
		Truth: true, Number: 7, Large: 1 << 60, Real: 0.5, Text: "tä", Unsigned: math.MaxUint64, Price: "12.50",
		Count: new(big.Int).Lsh(big.NewInt(1), 100), Bytes: []byte{1, 2, 255}, Encoded: []byte{1, 2, 255}, Moment: moment,
		Written: moment, Numbered: map[int]string{1: "one"}, List: []int{1, 2}, Inner: inner{A: 1},
	}})
	return err
}
