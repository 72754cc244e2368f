// Objects of Go with a field of one kind each; things.go has the rest of the program.
//
// "write Go FORMAT KIND" publishes one, "read WRITER FORMAT KIND" reads one that WRITER has published.
package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

type inner struct {
	A int32  `json:"a" avro:"a"`
	B string `json:"b" avro:"b"`
}

type box[T any] struct {
	ID    int32 `json:"id" avro:"id"`
	Value T     `json:"value" avro:"value"`
}

func objectText(value any) string {
	switch value := value.(type) {
	case []byte:
		return "x" + hex.EncodeToString(value)
	case time.Time:
		return strings.TrimSuffix(value.UTC().Format("2006-01-02T15:04:05.999999Z"), "T00:00:00Z")
	case *big.Rat:
		return value.FloatString(2)
	case float64:
		return strings.TrimPrefix(fmt.Sprint(value), "+")
	case []int32:
		return strings.ReplaceAll(fmt.Sprint(value), " ", ", ")
	case map[string]int64:
		return strings.NewReplacer("map[", "{", "]", "}", ":", ": ").Replace(fmt.Sprint(value))
	case inner:
		return fmt.Sprintf("{a: %d, b: %s}", value.A, value.B)
	case *int32:
		if value == nil {
			return "null"
		}
		return fmt.Sprint(*value)
	}
	return fmt.Sprint(value)
}

func kind[T any](name string, value T, formats ...string) {
	if len(formats) == 0 {
		formats = []string{"JSON", "AVRO"}
	}
	for _, format := range formats {
		schema := func() pulsar.Schema {
			var all map[string]json.RawMessage
			check(json.Unmarshal([]byte(told["definitions"]), &all))
			if format == "JSON" {
				return pulsar.NewJSONSchema(string(all[name]), nil)
			}
			return pulsar.NewAvroSchema(string(all[name]), nil)
		}
		for _, writer := range []string{"Java", "Python", "Go", "Rust"} {
			object := writer + " " + format + " " + name
			things["write "+object] = func(c pulsar.Client, topic string) string {
				options := single(strings.Replace(topic, "-write-", "-", 1))
				options.Schema = schema()
				publish(c, options, &pulsar.ProducerMessage{Value: &box[T]{0, value}})
				return "done"
			}
			things["read "+object] = func(c pulsar.Client, topic string) string {
				consumer := subscribe(c, strings.Replace(topic, "-read-", "-", 1), func(o *pulsar.ConsumerOptions) {
					o.Schema, o.SubscriptionName, o.SubscriptionInitialPosition = schema(), "go", pulsar.SubscriptionPositionEarliest
				})
				var got box[T]
				check(receive(consumer, 1, true)[0].GetSchemaValue(&got))
				return objectText(got.Value)
			}
		}
	}
}

func init() {
	seven := int32(7)
	kind("bool", true)
	kind("int8", int8(-6))
	kind("int32", int32(math.MinInt32))
	kind("int64", int64(1<<53+1))
	kind("uint64", uint64(math.MaxUint64))
	kind("float", float32(0.25))
	kind("double", 0.1)
	kind("nan", math.NaN())
	kind("char", 'ß')
	kind("text", "Zoë 🙂 \\ \"q\"")
	kind("bytes", []byte{0, 255, 'a'})
	kind("enum", "GREEN")
	kind("date", "2024-02-29", "JSON")
	kind("date", time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC), "AVRO")
	kind("time", time.UnixMilli(1_706_696_130_123).UTC())
	kind("decimal", json.Number("12.25"), "JSON")
	kind("decimal", big.NewRat(49, 4), "AVRO")
	kind("uuid", "00000000-0000-0001-0000-000000000002")
	kind("list", []int32{1, 2})
	kind("map", map[string]int64{"a": 1<<53 + 1})
	kind("nested", inner{1, "x"})
	kind[*int32]("null", nil)
	kind("optional", &seven)
}
