"""Rows about transactions that have not ended: for the table of them, and for the alarm about those that hang.

Coordinators know the transactions, owners of topics what these have done there.  A look at them opens no topic.
"""
import asyncio
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.admin.transactions import (
    DoneInPartition,
    GetDone,
    ListedTransaction,
    ListTransactions,
)
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.runtime.routing import owner_of
from geminga.supervisor.admin.requests.owners import Owners

KEYS = ("transaction", "state", "open_seconds", "left_seconds", "ending_seconds", "role", "partitions",
        "subscriptions", "messages", "acknowledgements", "waiting")
Row = dict[str, Any]
_Answer = TypeVar("_Answer")


async def rows_of(owners: Owners, catalogue: Catalogue,
                  question: ListTransactions) -> tuple[list[Row], int, list[int]]:
    """Return rows, the longest open first; how many transactions there are; and owners that do not answer.

    There are at most SHOWN_MAX rows of each coordinator.
    """
    asked = [owners.ask_owner(index, question) for index in range(owners.count)]
    listings = await asyncio.gather(*map(_answered, asked))
    transactions = [each for listing in listings if listing is not None for each in listing.transactions]
    transactions.sort(key=lambda each: each.opened_ms)
    topics = {partition_id: name for each in transactions for partition_id in {*each.added, *each.left}
              if (name := catalogue.partitions.name_of(partition_id)) is not None}
    done = await _done(owners, transactions, topics)
    now_ms = time.time_ns() // 1_000_000
    return ([_row(each, topics, done, now_ms) for each in transactions],
            sum(listing.total for listing in listings if listing is not None),
            [index for index, listing in enumerate(listings) if listing is None])


async def _answered(asked: Awaitable[_Answer]) -> _Answer | None:
    """Return an owner's answer, None if the owner does not answer.  Raises Refusal."""
    try:
        return await asked
    except Refusal as refusal:
        if refusal.code != api.ServiceNotReady:
            raise
        return None


async def _done(owners: Owners, found: list[ListedTransaction],
                topics: dict[int, str]) -> dict[tuple[int, int], DoneInPartition | None]:
    """Return {(transaction, partition id): what it has done there}, without partitions of owners that do not answer."""
    wanted: dict[int, list[tuple[int, int]]] = {}
    for each in found:
        for partition_id in each.added:
            if partition_id in topics:      # else it was deleted since
                to = owner_of(topics[partition_id], owners.count)
                wanted.setdefault(to, []).append((each.transaction, partition_id))
    asked = [owners.ask_owner(to, GetDone(wanted=some)) for to, some in wanted.items()]
    answers = await asyncio.gather(*map(_answered, asked))
    return {pair: one for some, answer in zip(wanted.values(), answers, strict=True) if answer is not None
            for pair, one in zip(some, answer, strict=True)}


def _row(each: ListedTransaction, topics: dict[int, str], done: dict[tuple[int, int], DoneInPartition | None],
         now_ms: int) -> Row:
    there = {partition_id: done.get((each.transaction, partition_id)) for partition_id in each.added
             if partition_id in topics}
    answered = [one for one in there.values() if one is not None]
    is_whole = len(answered) == len(there) and len(each.added) == each.partitions
    return {
        "transaction": names.transaction_text(each.transaction), "state": each.state,
        "open_seconds": _seconds(now_ms - each.opened_ms),
        "left_seconds": None if each.decided_ms else _seconds(each.opened_ms + each.lifetime_ms - now_ms),
        "ending_seconds": _seconds(now_ms - each.decided_ms) if each.decided_ms else None,
        "role": each.role or None, "partitions": each.partitions, "subscriptions": each.subscriptions,
        "messages": sum(one.messages for one in answered) if is_whole else None,
        "acknowledgements": sum(one.acknowledgements for one in answered) if is_whole else None,
        "waiting": [{"topic": topics[partition_id], "subscription": name} for partition_id, one in there.items()
                    if one is not None for name in one.waiting],
        "unfinished": [topics[partition_id] for partition_id in each.left if partition_id in topics]}


def _seconds(ms: int) -> int:
    return max(0, ms) // 1_000
