// Scrapes the broker with the OpenTelemetry collector's receiver for Prometheus; Ground.ask says how the program is told.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/receiver/prometheusreceiver"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

const wait = 60 * time.Second // metrics are gathered from time to time

var told map[string]string

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func text(value any) string {
	made, err := json.Marshal(value)
	check(err)
	return string(made)
}

func main() {
	check(json.Unmarshal([]byte(os.Args[len(os.Args)-1]), &told))
	core, logged := observer.New(zapcore.WarnLevel)
	scrapes, end := started(zap.New(core))
	for _, thing := range strings.Split(told["things"], ",") {
		fmt.Println(text(map[string]string{"thing": thing, "answer": answer(thing, scrapes, logged)}))
	}
	end()
}

// started runs the receiver; it returns what it scrapes, by the metrics' names, and a function that ends it.
func started(log *zap.Logger) (<-chan map[string]pmetric.Metric, func()) {
	target, err := url.Parse(told["http"])
	check(err)
	factory := prometheusreceiver.NewFactory()
	config := factory.CreateDefaultConfig()
	check(confmap.NewFromStringMap(map[string]any{"config": map[string]any{"scrape_configs": []any{map[string]any{
		"job_name": "broker", "scrape_interval": "1s", "scrape_timeout": "1s",
		"static_configs": []any{map[string]any{"targets": []any{target.Host}}},
	}}}}).Unmarshal(config))
	scrapes := make(chan map[string]pmetric.Metric, 1)
	next, err := consumer.NewMetrics(func(_ context.Context, metrics pmetric.Metrics) error {
		select {
		case scrapes <- byName(metrics):
		default: // the last one was not looked at yet
		}
		return nil
	})
	check(err)
	settings := receivertest.NewNopSettings(factory.Type())
	settings.Logger = log
	made, err := factory.CreateMetrics(context.Background(), settings, config, next)
	check(err)
	check(made.Start(context.Background(), componenttest.NewNopHost()))
	return scrapes, func() { check(made.Shutdown(context.Background())) }
}

func byName(metrics pmetric.Metrics) map[string]pmetric.Metric {
	copied, found := pmetric.NewMetrics(), make(map[string]pmetric.Metric)
	metrics.CopyTo(copied)
	for _, resource := range copied.ResourceMetrics().All() {
		for _, scope := range resource.ScopeMetrics().All() {
			for _, metric := range scope.Metrics().All() {
				found[metric.Name()] = metric
			}
		}
	}
	return found
}

// answer looks at scrapes until the answer is the wanted one, or the time is over.
func answer(thing string, scrapes <-chan map[string]pmetric.Metric, logged *observer.ObservedLogs) string {
	until, said := time.After(wait), "nothing was scraped"
	for {
		select {
		case metrics := <-scrapes:
			var done bool
			if said, done = looked(thing, metrics, logged); done {
				return said
			}
		case <-until:
			return said
		}
	}
}

func looked(thing string, metrics map[string]pmetric.Metric, logged *observer.ObservedLogs) (string, bool) {
	switch thing {
	case "scraped":
		if len(metrics) > 100 {
			return "some hundred metrics", true
		}
		return fmt.Sprint(len(metrics), " metrics"), false
	case "types":
		var none []string
		for name, metric := range metrics {
			if metric.Type() == pmetric.MetricTypeEmpty || metric.Metadata().AsRaw()["prometheus.type"] == "unknown" {
				none = append(none, name)
			}
		}
		slices.Sort(none)
		return fmt.Sprint(none), true
	case "no warnings":
		var messages []string
		for _, entry := range logged.All() {
			messages = append(messages, entry.Message)
		}
		return fmt.Sprint(messages), true
	}
	topic := told[thing]
	for _, metric := range metrics {
		if metric.Type() != pmetric.MetricTypeGauge {
			continue
		}
		for _, point := range metric.Gauge().DataPoints().All() {
			if value, is := point.Attributes().Get("topic"); is && value.Str() == topic {
				return "shown as it is", true
			}
		}
	}
	return "not shown", false
}
