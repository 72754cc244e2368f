"""A table published to a topic, for `geminga import --from-table`: once each, also if killed and repeated.

One producer with a fixed name sends the rows in order.  The sequence id of a message is the number of its row in the
table, so the last sequence id that a deduplicating partition knows says which rows are there.  Sequence ids of a
partition rise, with gaps for the rows of other partitions.

    begin       open the producers, which shuts out another run; have the topic deduplicate; write the record
    each block  send its rows, wait for all receipts
    end         write the record with the number of rows

Rows of a block are sent when all rows before it have receipts.  So a repeated run begins to read at the block of the
highest sequence id.  If deduplication has forgotten the name, the topic is read for messages of the import.
"""
import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.schemas import registry
from geminga.storage.schemas.registry import Definition, T
from geminga.supervisor.configuration.target import Target
from geminga.supervisor.tables import payloads, roles
from geminga.supervisor.tables.files import BadTable, Rows, Table
from geminga.supervisor.tables.roles import Choice, Roles
from geminga.supervisor.tables.rows import Messages
from geminga.supervisor.tasks.import_record import NotOnce, Record, Records, digest_of
from geminga.workers.messages import topics
from geminga.workers.messages.entries import Batch, Making, Outgoing
from geminga.workers.messages.outgoing import Wrong
from geminga.workers.messages.publishing import Batches
from geminga.workers.pulsar_client import producers
from geminga.workers.pulsar_client.client import BrokerConnection
from geminga.workers.pulsar_client.connection import ClientError
from geminga.workers.pulsar_client.key_hashing import Scheme
from geminga.workers.pulsar_client.producers import Producer, Receipt, Sending
from geminga.workers.pulsar_client.rest import NotReachable

BLOCK = 1 << 16             # rows; never smaller, as imports that an older program has begun go on by it
_BATCH = 1_000              # messages of an entry
_RESUME_S = 60              # how long a lost connection is tried anew, without a message stored meanwhile
_RETRY_S = 0.5
_SCHEMA_TYPES = {"json": T.Json, "avro": T.Avro}
_PASSING = (None, api.ServiceNotReady)      # codes of errors that a restart of the broker gives


class Unfit(Exception):
    """An error: a row cannot be published.  The text names file, row, column and reason."""

    exit_status = 1


class Wishes(NamedTuple):
    """How a table is to be published."""

    choice: Choice
    schema_type: str | None             # for a topic without a schema: json, avro, none; None: json
    hashing: Scheme
    subscriptions: tuple[str, ...]      # created before the first message
    name: str                           # of the producer, "" for the one of table and topic
    skips_unfit: bool


@dataclass(slots=True)
class Report:
    """Progress of an import: rows."""

    rows: int                           # of the table
    told: Callable[[str], None]         # prints a line for people
    advanced: Callable[[int], None]     # shows so many more rows as done
    stored: int = 0
    stored_bytes: int = 0
    earlier: int = 0                    # stored before this run
    unfit: int = 0
    began: float = field(default_factory=time.monotonic)

    def row(self) -> dict[str, int]:
        """Return the figures for programs."""
        return {"rows": self.stored, "bytes": self.stored_bytes, "earlier": self.earlier, "unfit": self.unfit}


class TableImport:
    """One run of an import."""

    def __init__(self, broker: Target, table: Table, topic: names.TopicName, wishes: Wishes, report: Report) -> None:
        self._broker, self._table, self._topic, self._wishes, self._report = broker, table, topic, wishes, report
        self._name = wishes.name or f"geminga-import-{digest_of(table.path, str(topic))}"
        self._records = Records(broker.broker(), topic, self._name)
        self._making: _Making | None = None
        self._record: Record        # set by _session
        self._shown = self._judged = 0      # rows shown as done; rows of which wrong ones are counted
        self._has_begun = self._is_lost = False      # rows were sent; their connection is lost
        self._alive = time.monotonic()      # when a row was stored last

    def __repr__(self) -> str:
        return f"<TableImport of {self._table} to {self._topic} by {self._name}>"

    async def run(self) -> None:
        """Publish all rows that are not published yet.

        Raises ClientError, OSError, BadTable, NotOnce, Unfit, Refused, NotReachable.
        """
        while True:
            try:
                connection = await self._broker.connect()
                try:
                    return await self._session(connection)
                finally:
                    connection.close()
            except (OSError, ClientError, NotReachable) as error:
                is_passing = not isinstance(error, ClientError) or error.code in _PASSING
                if not self._has_begun or not is_passing or time.monotonic() > self._alive + _RESUME_S:
                    raise
                why = error
            if not self._is_lost:
                self._is_lost = True
                self._report.told(f"{' '.join(str(why).split())}: the import goes on as soon as the broker answers")
            await asyncio.sleep(_RETRY_S)

    async def _session(self, connection: BrokerConnection) -> None:
        """Publish by one connection."""
        nearest = await topics.nearest_to_new(connection, self._topic)
        if self._making is None:
            self._making = await _prepared(connection, self._table, self._topic, self._wishes)
        count = await connection.partition_count(str(self._topic))
        if (record := self._known(count)) is not None:
            if record.done >= self._table.rows:
                return self._end(self._report.earlier if self._has_begun else self._table.rows)
            count = record.partitions
        sending = Sending(connection, self._take)
        opened = await self._open(sending, count)
        if nearest:
            self._report.told(f"{self._topic} did not exist before{nearest}")
        if self._records.deduplicate():
            self._report.told(f"deduplication is on for {self._topic} from now on, as each row is to be stored once")
        record = self._known(count)      # again: another run may have had the producers until now
        is_new = record is None or record.done == self._table.rows_of(record.files)
        if record is None or is_new:      # new also: the import had ended, and files were added since
            ends = [await _last(connection, one.topic) for one in opened]
            record = Record(0, "", self._options, count, ends, 0 if record is None else record.done)
        if record.partitions != count:
            raise NotOnce(f"another run has begun this import with {record.partitions} partitions: run it again")
        self._record = record._replace(files=len(self._table.files), digest=self._table.chain[-1])
        if not record.done:
            for subscription in self._wishes.subscriptions:
                for one in opened:
                    await connection.close_consumer(await connection.subscribe(one.topic, subscription))
        lasts = await self._lasts(connection, opened, record, is_new=is_new)
        self._records.write(self._record)
        publisher = _Publisher(sending, opened, lasts, self._wishes.hashing, connection.message_size_max)
        async with sending:
            await self._publish(publisher, lasts)
        await sending.close()

    def _known(self, partitions: int) -> Record | None:
        """Return the record of this import, None if it has not begun.  Raises NotOnce, Refused, NotReachable."""
        record = self._records.read()
        if record is not None:
            self._records.check(record, self._table, self._options, partitions)
        return record

    @property
    def _options(self) -> str:
        assert self._making is not None
        return digest_of(self._making.roles, self._wishes.hashing.name, self._making.form)

    async def _open(self, sending: Sending, count: int) -> list[Producer]:
        assert self._making is not None
        opened: list[Producer] = []
        for number in range(max(1, count)):
            topic = str(self._topic.partition_name(number) if count else self._topic)

            async def open_producer(topic: str = topic, partition: int = number if count else -1) -> None:
                opened.append(await sending.open(topic, partition, self._name, self._schema))
            await producers.unless_busy(open_producer)
        return opened

    @property
    def _schema(self) -> api.Schema | None:
        assert self._making is not None
        return None if self._making.schema is None else registry.to_wire(self._making.schema, "")

    async def _lasts(self, connection: BrokerConnection, opened: list[Producer], record: Record, *,
                     is_new: bool) -> list[int]:
        """Return the number of the last row that each partition has, -1 for none.  Raises NotOnce."""
        lasts = [one.last_sequence_id for one in opened]
        is_forgotten = not is_new and max(lasts) < 0
        for at, one in enumerate(opened):
            if lasts[at] < 0 and not is_new:
                last = await _recalled(connection, one, record.ends[at])
                if last is None and is_forgotten and record.done:
                    raise NotOnce("this import has begun, but the broker has forgotten how far it came, and "
                                  f"{one.topic} has no message of it any more: a new import with --producer NAME "
                                  "publishes all rows again")
                lasts[at] = -1 if last is None else last
        return [max(last, record.done - 1) for last in lasts]

    async def _publish(self, publisher: "_Publisher", lasts: list[int]) -> None:
        assert self._making is not None
        start = max(min(lasts) + 1, max(lasts) // BLOCK * BLOCK)
        is_first, self._has_begun, self._is_lost = not self._has_begun, True, False
        if is_first:
            self._report.earlier = start
        self._show(start)
        with closing(self._table.batches(start, self._making.roles.columns)) as batches:
            await self._send(publisher, _in_blocks(batches), start if is_first else None)
        await publisher.flush()
        self._records.write(self._record._replace(done=self._table.rows))
        self._end(self._report.earlier)

    async def _send(self, publisher: "_Publisher", blocks: Iterator[Rows], start: int | None) -> None:
        """Send the rows that the topic lacks.  start: number of the first row in the first session, else None."""
        assert self._making is not None
        for rows in blocks:
            if rows.first % BLOCK == 0:
                await publisher.flush()
            for number, message in enumerate(self._making.messages.of(rows.batch), rows.first):
                if isinstance(message, Wrong):
                    await self._leave_out(publisher, rows, number, message)
                elif (why := publisher.refusal(message)) is not None:
                    await self._leave_out(publisher, rows, number, why)
                else:
                    await publisher.send(number, message)
            if start is not None:
                self._report.earlier = start + publisher.skipped
            self._show(rows.first + len(rows.batch))
            if not self._record.done:
                await self._settle(publisher, rows.first + len(rows.batch))

    async def _settle(self, publisher: "_Publisher", number: int) -> None:
        """Wait until all rows before a number are stored, and write into the record that some are."""
        await publisher.flush()
        if not self._record.done and self._report.stored:
            self._record = self._record._replace(done=number)
            self._records.write(self._record)

    async def _leave_out(self, publisher: "_Publisher", rows: Rows, number: int, why: Wrong) -> None:
        """Count a row that does not fit, or store all rows before it and raise Unfit."""
        text = f"{rows.file.path}: row {number - rows.file.first}: {why}"
        if not self._wishes.skips_unfit:
            await self._settle(publisher, number)
            raise Unfit(text)
        if number >= self._judged:      # a lost connection has rows judged again
            self._judged = number + 1
            self._report.unfit += 1
            self._report.told(f"{text}; it is left out")

    def _end(self, earlier: int) -> None:
        """Complete the report: receipts of a lost connection are missing in it."""
        report = self._report
        report.earlier, report.stored = earlier, self._table.rows - earlier - report.unfit
        self._show(self._table.rows)

    def _show(self, row: int) -> None:
        if row > self._shown:
            self._report.advanced(row - self._shown)
            self._shown = row

    def _take(self, receipt: Receipt) -> None:
        if not receipt.has_id:
            raise ClientError(f"{receipt.producer.topic} took row {receipt.sequence_id} for a duplicate",
                              api.UnknownError)
        self._alive = time.monotonic()
        self._report.stored += receipt.messages
        self._report.stored_bytes += receipt.payload_bytes


class _Making(NamedTuple):
    """How rows become messages of a topic."""

    roles: Roles
    messages: Messages
    schema: Definition | None
    form: str                   # of payloads


async def _prepared(connection: BrokerConnection, table: Table, topic: names.TopicName, wishes: Wishes) -> _Making:
    """Return how a table's rows become messages of a topic.  Raises BadTable, NotEncodable, InvalidSchema."""
    newest = await producers.newest_schema(connection, str(topic.base))
    known = None if newest is None else registry.from_wire(newest)
    if known is not None and wishes.schema_type in _SCHEMA_TYPES and _SCHEMA_TYPES[wishes.schema_type] != known.kind:
        raise BadTable(f"{topic} has a schema already, of the type {registry.TYPES[known.kind]}: without --schema-type "
                       "rows are encoded by it")
    record = None if known is None else payloads.record_of(known)
    chosen = roles.of(table, wishes.choice, {one.name for one in getattr(record, "fields", ())})
    if chosen.payload is not None:
        return _Making(chosen, Messages(chosen, payloads.Raw(chosen.payload)), None, "raw")
    fields = [table.schema.field(name) for name in chosen.value]
    if wishes.schema_type == "none" or (known is not None and known.kind == getattr(T, "None")):
        return _Making(chosen, Messages(chosen, payloads.Json(fields, None)), None, "json")
    if known is None:
        known = payloads.derived(fields, _SCHEMA_TYPES[wishes.schema_type or "json"])
    return _Making(chosen, Messages(chosen, payloads.for_schema(known, fields)), known, "schema")


def _in_blocks(all_rows: Iterator[Rows]) -> Iterator[Rows]:
    """Yield rows, cut where a block begins."""
    for rows in all_rows:
        at = 0
        while at < len(rows.batch):
            size = BLOCK - (rows.first + at) % BLOCK
            yield Rows(rows.file, rows.first + at, rows.batch.slice(at, size))
            at += size


async def _last(connection: BrokerConnection, topic: str) -> tuple[int, int] | None:
    consumer = await connection.subscribe(topic)
    end = await connection.last(consumer)
    await connection.close_consumer(consumer)
    return end


async def _recalled(connection: BrokerConnection, producer: Producer, end: tuple[int, int] | None) -> int | None:
    """Return the highest sequence id that a producer has in its topic.

    end: the topic's last entry before the producer sent the first one.  Return -1 if that is the last one still, None
    if entries came and none of them, as far as they are kept, is the producer's.
    """
    consumer = await connection.subscribe(producer.topic, first=end)
    last = await connection.last(consumer)
    highest = -1
    if last is not None and last != end:
        async for run in connection.entries(consumer, last):
            highest = max(highest, *(max(entry.metadata.sequence_id, entry.metadata.highest_sequence_id)
                                     if entry.metadata.producer_name == producer.name else -1 for entry in run))
    await connection.close_consumer(consumer)
    return highest if highest >= 0 or (last == end and end is not None) else None


class _Publisher(Batches):
    """Messages on their way into batches of a topic's producers, with their rows' numbers as sequence ids."""

    def __init__(self, sending: Sending, opened: list[Producer], lasts: list[int], hashing: Scheme,
                 size_max: int) -> None:
        """lasts: numbers of the last rows that the partitions have.  size_max: bytes of the largest message."""
        super().__init__(sending, opened, [Batch(Making(one.name, one.schema_version), _BATCH, 0) for one in opened])
        self._lasts, self._hash, self._size_max = lasts, hashing.hash, size_max
        self.skipped = 0            # rows that their partitions have

    def refusal(self, message: Outgoing) -> Wrong | None:
        """Return the reason why the broker would not take a message with its key and properties; None: it would."""
        about, size = message.about, len(message.payload)
        if about.key is not None:
            size += len(about.key.encode())
        for name, value in about.properties:
            size += len(name.encode()) + len(value.encode())
        return Wrong(f"it has {size} bytes, and the broker takes {self._size_max}") if size > self._size_max else None

    async def send(self, number: int, message: Outgoing) -> None:
        """Send the message of a row unless its partition has it.  Raises Lost."""
        key, at = message.about.key, 0
        if len(self._batches) > 1:
            at = (number if key is None else self._hash(key)) % len(self._batches)
        if number <= self._lasts[at]:
            self.skipped += 1
            return
        batch = self._batches[at]
        if not batch.takes(message):
            await self._close(at)
        batch.add(message, number)
        if batch.is_full:
            await self._close(at)
