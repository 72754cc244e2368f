"""How `geminga produce` reads messages, publishes them, and tells what happened."""
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.compression import compress
from geminga.supervisor.cli.output import Column, Output, remark
from geminga.supervisor.cli.progress import Progress
from geminga.supervisor.wording import human
from geminga.workers.messages import blocks, outgoing, publishing, topics
from geminga.workers.messages.entries import CODECS, About, Outgoing
from geminga.workers.pulsar_client import key_hashing, producers
from geminga.workers.pulsar_client.client import BrokerConnection
from geminga.workers.pulsar_client.connection import ClientError

SHOWN_MAX = 20                  # ids of more messages, and lines about more wrong ones, are not printed
_BATCH = 1_000                  # messages of an entry, if there are many
_RUN = 1_000                    # arguments that are repeated are published in groups of so many
_LINE_MAX = 512 << 20           # bytes; twice the largest message that a broker can be configured to take
_INPUT = "-"
_COLUMNS = (Column("id"), Column("partition", is_number=True), Column("sequenceId", "sequence id", is_number=True))


class Source(NamedTuple):
    """Where the messages are: in this order."""

    texts: tuple[str, ...]              # arguments; "-" is standard input, a message on each line
    files: tuple[str, ...]
    line_files: tuple[str, ...]
    json_files: tuple[str, ...]

    @property
    def is_long(self) -> bool:
        """Whether there may be more messages than arguments and whole files."""
        return _INPUT in self.texts or bool(self.line_files or self.json_files)

    @property
    def waits_for_person(self) -> bool:
        """Whether messages are typed, so that each is to be answered at once."""
        return _INPUT in (*self.texts, *self.line_files, *self.json_files) and sys.stdin.isatty()

    def size(self, count: int) -> int | None:
        """Return the bytes of all messages, sent `count` times; None if they are not known."""
        if _INPUT in (*self.texts, *self.line_files, *self.json_files):
            return None
        paths = (*self.files, *self.line_files, *self.json_files)
        return count * (sum(len(text) + 1 for text in self.texts) + sum(os.stat(path).st_size for path in paths))


@dataclass(frozen=True, slots=True)
class Wishes:
    """How the messages are to be published: the options of the command."""

    key: str | None
    properties: tuple[tuple[str, str], ...]
    event_time: int                     # ms; 0: none
    deliver_after: int                  # ms
    deliver_at: int                     # ms; 0: at once
    is_typed: bool                      # encoded by the topic's newest schema
    schema_file: str | None
    partition: int | None
    hashing: str                        # a key of key_hashing.HASHES
    compression: str
    batch: int | None
    rate: float                         # messages a second; 0: no limit
    count: int
    name: str
    sequence_id: int | None


@dataclass(slots=True)
class Report:
    """The outcome of a publishing command: counts, and ids that are printed as receipts come."""

    output: Output
    is_quiet: bool
    prints_at_once: bool                # ids, and not only when it is known that they are few
    is_persistent: bool = True
    is_begun: bool = False              # producers are open
    read: int = 0                       # messages of the source, wrong ones too
    stored: int = 0
    stored_bytes: int = 0
    duplicates: int = 0
    wrong: int = 0
    began: float = field(default_factory=time.monotonic)
    _held: list[str] = field(default_factory=list)
    _rows: list[dict[str, Any]] = field(default_factory=list)

    def take(self, receipt: producers.Receipt) -> None:
        """Count an entry that is answered, and print its ids if they are wished for."""
        before = self.stored + self.duplicates
        if receipt.has_id or not self.is_persistent:
            self.stored += receipt.messages
            self.stored_bytes += receipt.payload_bytes
        else:
            self.duplicates += receipt.messages
        if self.is_quiet or (self.output.is_for_people and before >= SHOWN_MAX):
            return
        rows = [self._row(receipt, index) for index in range(receipt.messages)]
        if self.output.form == "jsonl":
            self.output.rows(rows, _COLUMNS)
        elif not self.output.is_for_people:
            self._rows += rows
        elif self.prints_at_once:
            print(*map(self._line, rows), sep="\n", flush=True)
        else:
            self._held += map(self._line, rows)

    def _row(self, receipt: producers.Receipt, index: int) -> dict[str, Any]:
        row: dict[str, Any] = {"id": None}
        if receipt.has_id and self.is_persistent:
            at = f":{index}" if receipt.messages > 1 else ""
            row["id"] = f"{receipt.ledger_id}:{receipt.entry_id}{at}"
        if receipt.producer.partition >= 0:
            row["partition"] = receipt.producer.partition
        return row | {"sequenceId": receipt.sequence_id + index}

    def _line(self, row: dict[str, Any]) -> str:
        if row["id"] is None:
            return "published" if not self.is_persistent else \
                f"not published: the broker has sequence id {row['sequenceId']} of this producer already"
        place = f" to partition {row['partition']}" if "partition" in row else ""
        return f"published {row['id']}{place}"

    def refuse(self, why: str) -> None:
        """Print why a message, the last that was read, is not published."""
        self.wrong += 1
        if self.wrong <= SHOWN_MAX:
            remark(f"message {self.read} is not published: {why}")

    def end(self) -> int:
        """Print what is left to say, and return the exit status of a command that was not stopped by an error."""
        if not self.is_begun:
            return 0
        if self.output.form in ("json", "yaml"):
            self.output.rows(self._rows, _COLUMNS)
        elif self.output.is_for_people:
            is_short = self.stored + self.duplicates <= SHOWN_MAX and not self.is_quiet
            for line in self._held if is_short else [self.summary()]:
                print(line)
        if self.wrong > SHOWN_MAX:
            remark(f"{human.count(self.wrong - SHOWN_MAX)} more messages are not published")
        return int(self.wrong > 0)

    def summary(self) -> str:
        seconds = max(time.monotonic() - self.began, 1e-6)
        text = (f"published {_messages(self.stored)} ({human.size(self.stored_bytes)}) in {seconds:.3g} s: "
                f"{human.rate(self.stored / seconds)} messages/s, {human.size(self.stored_bytes / seconds)}/s")
        return f"{text}; the broker had {_messages(self.duplicates)} already" if self.duplicates else text

    def unfinished(self, under_way: int) -> str:
        """Return what became of the messages if the command ends before their end."""
        return f"{_messages(self.stored)} stored, {human.count(under_way)} sent without an answer"


def _messages(count: int) -> str:
    return f"{human.count(count)} message{'' if count == 1 else 's'}"


class InputError(Exception):
    """An error: standard input or a file cannot be read to its end."""

    exit_status = 1


class Production:
    """One run of the command."""

    def __init__(self, source: Source, wishes: Wishes, report: Report) -> None:
        self._source, self._wishes, self._report = source, wishes, report
        self._sending: producers.Sending | None = None
        self._encoder: outgoing.Encoder | None = None
        self._message_max = 0

    def __repr__(self) -> str:
        return f"<Production of {self._report.read} messages with {self._sending}>"

    @property
    def under_way(self) -> int:
        """Messages that were sent and have no answer."""
        return 0 if self._sending is None else self._sending.messages_under_way

    async def run(self, connection: BrokerConnection, topic: names.TopicName, schema: api.Schema | None,
                  bar: Progress) -> None:
        """Publish everything.  schema: a new one to encode by.  Raises ClientError, InputError."""
        wishes, self._report.is_persistent = self._wishes, topic.is_persistent
        nearest = await topics.nearest_to_new(connection, topic)
        if wishes.is_typed:
            schema = await producers.newest_schema(connection, str(topic.base))
            if schema is None:
                raise ClientError(f"{topic} has no schema: --schema-file adds one")
        if schema is not None:
            from geminga.storage.schemas import registry
            from geminga.workers.messages.schema_encoding import SchemaEncoder
            self._encoder = SchemaEncoder(registry.from_wire(schema))
        self._sending = sending = producers.Sending(connection, self._report.take)
        try:
            opened = await publishing.open_producers(connection, sending, topic, wishes.partition, wishes.name, schema)
        except ClientError as error:
            raise type(error)(f"{error}{nearest or ''}", error.code) from None
        if nearest:
            remark(f"{topic} did not exist before{nearest}")
        self._message_max = connection.message_size_max
        is_long = self._source.is_long or len(self._source.texts) * wishes.count > SHOWN_MAX
        publisher = publishing.Publisher(
            sending, opened, key_hashing.Scheme(wishes.hashing, key_hashing.HASHES[wishes.hashing]),
            codec=CODECS[wishes.compression], batch=wishes.batch or (_BATCH if is_long else 1),
            sequence_id=wishes.sequence_id, rate=wishes.rate)
        self._report.is_begun, self._report.began = True, time.monotonic()
        async with sending:
            try:
                await self._publish(publisher, bar)
            except ClientError as error:
                raise ClientError(f"{error}; {self._report.unfinished(self.under_way)}", error.code) from None
        await sending.close()

    async def _publish(self, publisher: publishing.Publisher, bar: Progress) -> None:
        for _ in range(self._wishes.count if not self._is_repeatable else 1):
            async for payloads, is_json in self._runs():
                if payloads:
                    await publisher.publish(self._messages(payloads, is_json))
                    bar.advance(sum(map(len, payloads)) + len(payloads))
                else:
                    await publisher.write()
        await publisher.flush()

    @property
    def _is_repeatable(self) -> bool:
        """Whether all messages are arguments, which `_runs` repeats by itself."""
        source = self._source
        return not (source.is_long or source.files)

    async def _runs(self) -> AsyncIterator[tuple[list[bytes], bool]]:
        """Yield (payloads, whether they are JSON lines); no payloads each time before waiting for more."""
        source = self._source
        if self._is_repeatable:
            for payloads in _repeated([os.fsencode(text) for text in source.texts], self._wishes.count):
                yield payloads, False
            return
        for text in source.texts:
            if text == _INPUT:
                async for payloads in self._lines(text):
                    yield payloads, False
            else:
                yield [os.fsencode(text)], False
        for path in source.files:
            with _reading(path), open(path, "rb") as file:
                content = file.read()
            yield [content], False
        for is_json, paths in ((False, source.line_files), (True, source.json_files)):
            for path in paths:
                async for payloads in self._lines(path):
                    yield payloads, is_json

    async def _lines(self, path: str) -> AsyncIterator[list[bytes]]:
        with _reading(path):
            descriptor = 0 if path == _INPUT else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                async for lines in blocks.lines(descriptor, _LINE_MAX):
                    yield lines
            except blocks.TooLong:
                raise InputError(f"{_called(path)}: a line is longer than {human.size(_LINE_MAX)}") from None
            finally:
                if descriptor:
                    os.close(descriptor)

    def _messages(self, payloads: list[bytes], is_json: bool) -> list[Outgoing]:
        """Return the messages of payloads; for wrong ones a line is printed."""
        report, about = self._report, self._about()
        if self._encoder is None and not is_json and max(map(len, payloads)) <= self._message_max:
            report.read += len(payloads)
            return [Outgoing(payload, about) for payload in payloads]
        read = outgoing.of_json if is_json else outgoing.of_payload
        messages = []
        for payload in payloads:
            report.read += 1
            try:
                message = read(payload, about, self._encoder)
                self._check_size(message)
                messages.append(message)
            except outgoing.Wrong as error:
                report.refuse(str(error))
        return messages

    def _check_size(self, message: Outgoing) -> None:
        if len(message.payload) <= self._message_max:
            return
        size = len(compress(CODECS[self._wishes.compression], message.payload))
        if size > self._message_max:
            raise outgoing.Wrong(f"it has {size} bytes, and the broker takes {self._message_max}")

    def _about(self) -> About:
        wishes = self._wishes
        deliver_at = time.time_ns() // 1_000_000 + wishes.deliver_after if wishes.deliver_after else wishes.deliver_at
        return About(wishes.key, properties=wishes.properties, event_time=wishes.event_time, deliver_at=deliver_at)


def _repeated(payloads: list[bytes], count: int) -> Iterator[list[bytes]]:
    at_once = max(1, min(count, _RUN // len(payloads)))
    for first in range(0, count, at_once):
        yield payloads * min(at_once, count - first)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turn errors of a file, which would look like errors of the connection, into InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{_called(path)}: {error.strerror}") from None


def _called(path: str) -> str:
    return "standard input" if path == _INPUT else path


def of_schema_file(path: str) -> api.Schema:
    """Return the schema that a file defines.  Raises ValueError, OSError."""
    from geminga.storage.schemas import registry
    from geminga.workers.messages import schema_files
    return registry.to_wire(schema_files.read(path), "")

