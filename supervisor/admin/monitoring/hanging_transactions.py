"""Transactions that hang, for the alarm about them: a sentence for each, with the next step.

    open       longer than `transaction_s` of [alarms], and consumers wait for its end
    decided    for longer than a minute, but not ended in a partition, because an owner is down or the topic's files
               cannot be used
"""
import asyncio
import time
from typing import Any

from aiohttp import web

from geminga.proto import names
from geminga.proto.errors import Refusal
from geminga.storage.admin.transactions import ListTransactions
from geminga.storage.errors import StorageFull
from geminga.storage.runtime.routing import owner_of
from geminga.supervisor.admin.monitoring import transaction_rows
from geminga.supervisor.admin.requests.owners import OWNERS, Owners
from geminga.supervisor.admin.requests.request_parts import TOPICS

_LOOK_SECONDS = 5.0
ENDING_SECONDS = 60      # a decided transaction that takes longer to end hangs
Row = dict[str, Any]


class HangingTransactions:
    """The transactions that hang, as they were at the last look."""

    def __init__(self) -> None:
        self.open_seconds = 0                       # transactions that are open for longer may hang; 0: never
        self.sentences: dict[str, str] = {}         # transaction, such as (0,17) -> what is wrong, and the next step

    def __repr__(self) -> str:
        return f"<HangingTransactions {list(self.sentences)}>"

    async def watch(self, app: web.Application) -> None:
        """Look for transactions that hang, for ever."""
        while True:
            await self._look(app)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _look(self, app: web.Application) -> None:
        owners, bound = app[OWNERS], min(self.open_seconds or ENDING_SECONDS, ENDING_SECONDS)
        question = ListTransactions(opened_before_ms=time.time_ns() // 1_000_000 - 1_000 * bound)
        try:
            rows, _, missing = await transaction_rows.rows_of(owners, app[TOPICS].catalogue, question)
        except (Refusal, StorageFull):      # the next look may succeed; until then the last one holds
            return
        self.sentences = sentences(self.sentences, rows, missing, owners, self.open_seconds)


def sentences(before: dict[str, str], rows: list[Row], missing: list[int], owners: Owners,
              open_seconds: int) -> dict[str, str]:
    """Return {transaction: sentence} of those that hang.

    before: the last answer.  It still holds for coordinators of `missing` owners, which have not answered.
    """
    kept = {name: text for name, text in before.items()
            if int(name.strip("()").partition(",")[0]) % owners.count in missing}
    return kept | {row["transaction"]: text for row in rows if (text := sentence(row, owners, open_seconds))}


def sentence(row: Row, owners: Owners, open_seconds: int) -> str:
    """Return what is wrong with a transaction, and the next step; "" if it does not hang.

    row: of transaction_rows.rows_of.
    """
    name = row["transaction"]
    if row["state"] != "open":
        return _ending(row, owners) if row["ending_seconds"] > ENDING_SECONDS and row["unfinished"] else ""
    if not open_seconds or row["open_seconds"] <= open_seconds or not row["waiting"]:
        return ""
    first, count = row["waiting"][0], len(row["waiting"])
    others = f" and {count - 1:,} more wait" if count > 1 else " waits"
    role = f" of {row['role']}" if row["role"] else ""
    return (f"transaction {name} has been open for {_length(row['open_seconds'])}, and subscription "
            f"{first['subscription']} of {first['topic']}{others} for its end: look at the application{role} that "
            f"began it, or give it up by geminga transactions abort {name.strip('()')}")


def _ending(row: Row, owners: Owners) -> str:
    hangs = f"transaction {row['transaction']} has been {row['state']} for {_length(row['ending_seconds'])}"
    for topic in row["unfinished"]:
        if not owners.is_up(index := owner_of(str(names.parse(topic)), owners.count)):
            return (f"{hangs}, because owner {index}, which has {topic}, is down: journalctl -u geminga "
                    f"PROCESS=owner-{index} tells why, and the transaction ends when the owner serves")
    return (f"{hangs}, because it cannot end in {row['unfinished'][0]}: journalctl -u geminga CODE=G120 tells why, and "
            "the transaction ends when that topic can be used, or is deleted")


def _length(seconds: int) -> str:
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60:,} min"
