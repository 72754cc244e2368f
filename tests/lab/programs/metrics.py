"""Reads the broker's metrics with the parsers of prometheus-client; started by `Ground.ask`."""
import collections
import json
import math
import sys
import time
import urllib.request

import pulsar
from prometheus_client.parser import text_string_to_metric_families

TOLD = json.loads(sys.argv[-1])
SECONDS = 60      # metrics are gathered from time to time


def metrics():
    with urllib.request.urlopen(TOLD["http"] + "/metrics", timeout=SECONDS) as answer:
        return answer.read().decode()


def families():
    return list(text_string_to_metric_families(metrics()))


def samples():
    return [sample for family in families() for sample in family.samples]


def odd_name(name):
    """Use a topic with this name, and return whether the metrics come to show it."""
    topic = f"persistent://public/default/{TOLD['prefix']}{name}"
    client = pulsar.Client(TOLD["service"], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.create_producer(topic).send(b"x")
    until = time.monotonic() + SECONDS
    shown = False
    while not shown and time.monotonic() < until:
        shown = any(sample.labels.get("topic") == topic for sample in samples())
        time.sleep(0.5)
    client.close()
    return "shown as it is" if shown else "not shown"


def duplicates(things):
    return sorted(str(thing) for thing, count in collections.Counter(things).items() if count > 1)


THINGS = {
    "parsed": lambda: "some hundred samples" if len(samples()) > 100 else f"{len(samples())} samples",
    "families once": lambda: str(duplicates(family.name for family in families())),
    "samples once": lambda: str(duplicates((one.name, tuple(sorted(one.labels.items()))) for one in samples())),
    "types": lambda: str(sorted({family.name for family in families() if family.type == "unknown"})),
    "no NaN": lambda: str(sorted({sample.name for sample in samples() if math.isnan(sample.value)})),
    "counters are not negative": lambda: str(sorted({
        sample.name for family in families() if family.type == "counter" for sample in family.samples
        if sample.value < 0})),
    "buckets add up": lambda: str(uneven()),
    "a name with a quote": lambda: odd_name('a"quote'),
    "a name with a backslash": lambda: odd_name("a\\backslash"),
    "a name with letters of Greek": lambda: odd_name("αβγ"),
    "a name with braces": lambda: odd_name("a{b}=c"),
    "a name with a blank": lambda: odd_name("a blank"),
}


def uneven():
    """Return the histograms whose buckets go down, or whose last bucket is not their count."""
    found = set()
    for family in families():
        if family.type != "histogram":
            continue
        series = collections.defaultdict(dict)
        counts = {}
        for sample in family.samples:
            labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
            if sample.name.endswith("_bucket"):
                series[labels][float(sample.labels["le"])] = sample.value
            elif sample.name.endswith("_count"):
                counts[labels] = sample.value
        for labels, buckets in series.items():
            values = [buckets[bound] for bound in sorted(buckets)]
            if values != sorted(values) or values[-1] != counts.get(labels):
                found.add(family.name)
    return sorted(found)


def main():
    for thing in TOLD["things"].split(","):
        try:
            answer = THINGS[thing]()
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps({"thing": thing, "answer": answer}), flush=True)


if __name__ == "__main__":
    main()
