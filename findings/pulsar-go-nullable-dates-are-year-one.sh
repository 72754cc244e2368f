#!/bin/sh
# Apache Pulsar's Go client 0.19.0 reads each date of a nullable Avro field as one of the year 1, without an error.
#
# Java and Python make every field of a record nullable unless told otherwise, a union of null and the type. A time.Time in
# the struct of a Go program gets such dates and timestamps wrong; numbers and texts fail with "unsupported for Avro
# union" instead. A *time.Time is right, and so is writing a time.Time with the same definition.
#
# Expected: 2024-02-29. Seen: 0001-01-01 and no error. Exit status 0: it still is so.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/go.mod" <<'MODULE'
module finding

go 1.24

require github.com/apache/pulsar-client-go v0.19.0
MODULE
cat > "$folder/main.go" <<'PROGRAM'
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

type Day struct {
	Value time.Time `avro:"value"`
}

type MaybeDay struct {
	Value *time.Time `avro:"value"`
}

func main() {
	schema := pulsar.NewAvroSchema(`{"type": "record", "name": "Day", "fields": [
		{"name": "value", "type": ["null", {"type": "int", "logicalType": "date"}]}]}`, nil)
	written, err := schema.Encode(Day{time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC)})
	if err != nil {
		panic(err)
	}
	var day Day
	var maybe MaybeDay
	failed, failedMaybe := schema.Decode(written, &day), schema.Decode(written, &maybe)
	fmt.Println("time.Time: expected 2024-02-29; seen", day.Value.Format(time.DateOnly), failed)
	fmt.Println("*time.Time: expected 2024-02-29; seen", maybe.Value.Format(time.DateOnly), failedMaybe)
	if day.Value.Year() != 1 || failed != nil || maybe.Value.Year() != 2024 {
		os.Exit(1)
	}
}
PROGRAM
cd "$folder"
GOFLAGS=-mod=mod go run . 2> said || { cat said; exit 1; }
