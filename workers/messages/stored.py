"""Messages that a data folder stores, chosen by a filter: read from the ledgers, without the broker.

The conditions of the options are given to the search of ledgers (storage/offline/search.py) as far as it knows them.
Then only messages that may match are decoded, and the filter decides.
"""
import heapq
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from geminga.proto import frames, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import TopicName
from geminga.storage.errors import CorruptFile, text_of
from geminga.storage.jobs import confirmed, one_by_one
from geminga.storage.offline import search
from geminga.storage.offline.search import Advance, Conditions, Hit, Piece
from geminga.storage.schemas import registry
from geminga.workers.messages.decoding import Decoder
from geminga.workers.messages.filters import Filter, Wish
from geminga.workers.messages.message import Message
from geminga.workers.messages.report import Report
from geminga.workers.messages.values import Values, complete
from geminga.workers.pulsar_client.entries import Entry

# Schemas whose values are the payloads as text, or that have no values.  None: a schema that was deleted.
_TEXT_KINDS = {api.Schema.Type.Value("None"), api.Schema.String, None}
_GLOB = re.compile(r"\*+|\?|\[!?\]?[^\]]*\]")
_LITERAL = re.compile(r"[\w\s/:;,=@%&#~\"'<>!-]+")      # no sign of a regular expression
_WORD = re.compile(r"[A-Za-z0-9_-]+")                   # any JSON has it as it is


class StoredMessages:
    """The messages of a topic or namespace in the ledgers of a data folder."""

    def __init__(self, data_dir: Path, text: str, values: Mapping[str, Any], wish: Wish) -> None:
        """Find the topics.  values: the options of the filter.

        Raises LookupError if there are none of this name, Refusal, CatalogueError, OSError, click.UsageError.
        """
        self._data_dir = data_dir
        self._filter = Filter.of(dict(values))
        self._conditions, self._is_exact = _conditions(values, self._filter, wish)
        self._grep = values["grep"]
        chosen = search.partitions(data_dir, text)
        self._kinds = _schema_kinds(data_dir, {topic.base for _, topic in chosen})
        self._pieces = search.pieces(data_dir, chosen)
        self._values = Values(self._schema)

    def __repr__(self) -> str:
        return f"<StoredMessages {self._data_dir} ledgers={len(self._pieces)}>"

    @property
    def size(self) -> int:
        """Bytes of all ledgers."""
        return sum(piece.size for piece in self._pieces)

    def count(self, report: Report, advance: Advance) -> int:
        """Return the number of messages that match."""
        number = 0
        for piece in self._pieces:
            conditions = self._conditions_for(piece)
            if self._is_exact and (self._grep is None or conditions is not self._conditions):
                try:
                    number += search.count(self._data_dir, piece, conditions, report, advance)
                except (CorruptFile, OSError) as error:
                    report(_reason(error))
            else:
                number += sum(1 for _ in self._of_ledger(piece, report, advance))
        return number

    def messages(self, report: Report, advance: Advance) -> Iterator[Message]:
        """Iterate over the messages that match: topic by topic, in the order of their positions."""
        for piece in self._pieces:
            yield from self._of_ledger(piece, report, advance)

    def newest_first(self, report: Report, advance: Advance) -> Iterator[Message]:
        """Iterate over the messages that match, the newest first.

        Messages of one partition come in the order of positions, backwards; those of several by their publish times.
        """
        def of_partition(pieces: list[Piece]) -> Iterator[Message]:
            for piece in reversed(pieces):
                yield from self._of_ledger(piece, report, advance, is_backwards=True)

        partitions = [of_partition(list(pieces))
                      for _, pieces in itertools.groupby(self._pieces, attrgetter("partition_id"))]
        return heapq.merge(*partitions, key=lambda message: -message.publish_time_ms)

    def _of_ledger(self, piece: Piece, report: Report, advance: Advance,
                   is_backwards: bool = False) -> Iterator[Message]:
        decoder = Decoder()
        try:
            for hit in search.entries(self._data_dir, piece, self._conditions_for(piece), report, advance,
                                      is_backwards):
                messages = _decoded(decoder, str(piece.topic), hit)
                for message in reversed(list(messages)) if is_backwards else messages:
                    if message.batch_index in hit.indexes:
                        complete(self._values.decode([message]))
                        if self._filter.matches(message):
                            yield message
                for lines in (decoder.left_out, self._values.complaints):
                    for line in lines:
                        report(f"{piece.topic}: {line}")
                    lines.clear()
        except (CorruptFile, OSError) as error:
            report(_reason(error))

    async def _schema(self, topic: str, version: bytes) -> api.Schema | None:
        """Return a schema version of a topic, the newest for b"", None if there is none."""
        if version and (len(version) != 8 or version[0] & 0x80):
            return None      # no broker gives such versions, but a producer may write anything
        catalogue = confirmed.open_catalogue(self._data_dir)
        try:
            kept = registry.find(catalogue, names.parse(topic), int.from_bytes(version) if version else None)
        finally:
            catalogue.close()
        return None if kept is None else registry.to_wire(kept.definition, "")

    def _conditions_for(self, piece: Piece) -> Conditions:
        """Return the conditions for a ledger, with the text of the payload where payloads are text."""
        grep, kinds = self._grep, self._kinds[piece.topic.base]
        if grep is None or not (kinds <= _TEXT_KINDS or (kinds <= {api.Schema.Json} and _WORD.fullmatch(grep))):
            return self._conditions
        text = grep.encode() if _LITERAL.fullmatch(grep) else None
        return replace(self._conditions, payload_text=text, payload_pattern=grep if text is None else None)


def _conditions(values: Mapping[str, Any], filter: Filter, wish: Wish) -> tuple[Conditions, bool]:
    """Return (conditions that all messages meet which match the options, whether no others meet them)."""
    key, pairs = values["key"], [text.partition("=") for text in values["properties"]]
    is_glob = key is not None and any(char in key for char in "*?[")
    times = (-(1 << 62) if filter.since_ms is None else filter.since_ms,
             1 << 62 if filter.until_ms is None else filter.until_ms - 1)
    return Conditions(
        times, None if is_glob else key, pattern_of(key) if is_glob else None,
        tuple((name, value if has_value else None) for name, has_value, value in pairs),
        producer=wish.producer, sequence_ids=wish.sequence_ids,
    ), values["where"] is None and not pairs and not (is_glob and "[" in key)


def pattern_of(glob: str) -> str:
    """Return a pattern of RE2 that whole texts match if they match a shell's pattern, and some others."""
    pieces, at = [], 0
    for sign in _GLOB.finditer(glob):
        pieces += [re.escape(glob[at:sign.start()]), ".*" if sign[0].startswith("*") else "."]
        at = sign.end()
    return f"(?:{''.join(pieces)}{re.escape(glob[at:])}|{re.escape(glob)})"


def _schema_kinds(data_dir: Path, topics: set[TopicName]) -> dict[TopicName, set[int | None]]:
    """Return the types of the schemas that messages of each topic may have."""
    catalogue = confirmed.open_catalogue(data_dir)
    try:
        return {topic: {kind for _, kind, _ in catalogue.schemas.versions(catalogue.topics.whole(topic))}
                for topic in topics}
    finally:
        catalogue.close()


def _reason(error: CorruptFile | OSError) -> str:
    return text_of(error) if isinstance(error, OSError) else str(error)


def _decoded(decoder: Decoder, topic: str, hit: Hit) -> Iterator[Message]:
    """Iterate over all messages of an entry that was found."""
    for (ledger_id, entry_id), data in hit.entries:
        metadata, _ = one_by_one.split(data)
        yield from decoder.messages(topic, Entry(ledger_id, entry_id, metadata, frames.with_checksum(data)))
