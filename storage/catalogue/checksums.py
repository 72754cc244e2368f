"""Checksums of the catalogue's tables.

SQLite does not notice a wrong bit within a value. So table `sums` has a checksum of each table: the sum of a hash of
each row. Triggers update it in the transaction that changes a row, and `geminga verify` computes it again.
"""
import hashlib
import sqlite3
from collections.abc import Iterator

COLUMNS = {          # {table: columns that its checksum covers}
    "tenants": ("name",), "namespaces": ("name", "tenant"), "topics": ("name", "namespace", "partitions", "created_ms"),
    "partitions": ("id", "name", "topic_epoch", "is_terminated"), "subscriptions": ("id", "partition_id", "name"),
    "counters": ("name", "value"), "policies": ("scope", "name", "value"), "properties": ("scope", "value"),
    "schemas": ("topic", "version", "type", "hash", "created_ms", "properties", "data"),
    "layouts": ("name", "epoch", "next_segment", "segments", "is_deleted"),
    "layout_changes": ("name", "change", "is_done"),
    "schedules": ("id", "topic", "name", "partition", "since_ms", "is_paused", "timing", "message", "metadata",
                  "payload"),
    "kept_topics": ("id", "topic", "partitions", "deleted_ms", "until_ms", "bytes", "is_given_up", "record"),
    "kept_cursors": ("id", "kept_id", "partition_id", "ledger", "entry"),
    "inherited": ("partition_id", "producer", "through", "missing", "contents", "anew_from")}


def with_row(total: int, sign: int, *values: int | str | bytes | None) -> int:
    """Return a table's checksum (64 bits, signed) after a row was added (sign 1) or removed (sign -1).

    Triggers call it as an SQL function.
    """
    digest = hashlib.blake2b(repr(values).encode(), digest_size=8).digest()
    return (total + sign * int.from_bytes(digest, "little") + (1 << 63)) % (1 << 64) - (1 << 63)


def sum_of(connection: sqlite3.Connection, table: str) -> int:
    """Return a table's checksum, computed from its rows."""
    total = 0
    for row in connection.execute(f"SELECT {', '.join(COLUMNS[table])} FROM {table}"):
        total = with_row(total, 1, *row)
    return total


def triggers(table: str) -> Iterator[str]:
    """Yield the SQL statements that create a table's three triggers, which keep its checksum up to date."""
    old, new = (", ".join(f"{which}.{column}" for column in COLUMNS[table]) for which in ("OLD", "NEW"))
    for event, value in (("INSERT", f"with_row(value, 1, {new})"), ("DELETE", f"with_row(value, -1, {old})"),
                         ("UPDATE", f"with_row(with_row(value, -1, {old}), 1, {new})")):
        yield (f"CREATE TRIGGER sum_{table}_{event} AFTER {event} ON {table} BEGIN "
               f"UPDATE sums SET value = {value} WHERE name = '{table}'; END")
