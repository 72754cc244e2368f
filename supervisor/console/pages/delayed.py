"""Pages of delayed messages: those of a topic one by one, and by time over all topics."""
import asyncio
import shlex
from typing import Any

from geminga.proto.names import without_partition
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.bars import bars_of
from geminga.supervisor.console.page import PATH, Pages, Values
from geminga.supervisor.console.rendering import topic_path
from geminga.supervisor.wording import human

pages = Pages()
_ROWS = 100                  # messages on a page
_HOURS = 1_000
_TOPICS = 100                # whose delayed messages are added


@pages.at("/console/topics" + PATH + "/delayed", "topic_delayed.html")
async def of_topic(ask: Asking) -> Values:
    path, query = f"/ops/v1/delayed/{ask.topic_path}", {name: ask.query[name] for name in ("from", "to")
                                                       if ask.query.get(name)}
    hours, messages = await asyncio.gather(ask.get(path, by="hour", limit=_HOURS),
                                           ask.get(path, by="message", limit=_ROWS, **query))
    bars = bars_of(hours["rows"], f"/console/topics/{ask.topic_path}/delayed")
    for row in messages["rows"]:
        row["topic"] = ask.topic if row["partition"] < 0 or ask.topic != without_partition(ask.topic) \
            else f"{ask.topic}-partition-{row['partition']}"
    options = [word for name, value in query.items() for word in (f"--{name}", value)]
    return {"topic": ask.topic, "hours": hours, "messages": messages, "bars": bars, "narrowed": query,
            "next": query | {"from": messages["rows"][-1]["deliver_at"]} if messages["has_more"] else None,
            "commands": [shlex.join(["geminga", "admin", "delayed", "list", human.short(ask.topic), *options,
                                     "--by", "message"])]}


@pages.at("/console/delayed", "delayed.html", every_s=5)
async def everywhere(ask: Asking) -> Values:
    table = await ask.get("/ops/v1/subscriptions", sort="delayed", limit=1_000)
    waiting = [row for row in table["rows"] if row["delayed"]]
    topics = list(dict.fromkeys(without_partition(row["topic"]) for row in waiting))
    listings = await asyncio.gather(*(_of(ask, topic) for topic in topics[:_TOPICS]))
    rows = sorted(filter(None, listings), key=lambda row: -row["waiting"])
    return {"rows": rows, "bars": bars_of((hour for row in rows for hour in row["hours"]), ""),
            "total": len(topics), "waiting": sum(row["waiting"] for row in rows),
            "is_bounded": len(topics) > _TOPICS or (table["more"] and len(waiting) == len(table["rows"])),
            "commands": ["geminga subscriptions --sort delayed"] + [
                shlex.join(["geminga", "admin", "delayed", "list", human.short(row["topic"])]) for row in rows[:3]]}


async def _of(ask: Asking, topic: str) -> dict[str, Any] | None:
    """Return what waits in a topic, None if the role may not see it or nothing waits any more."""
    hours = await ask.maybe(f"/ops/v1/delayed/{topic_path(topic)}", by="hour", limit=_HOURS)
    if hours is None or not hours["waiting"]:
        return None
    return {"topic": topic, "waiting": hours["waiting"], "next_due_ms": hours["next_due_at"], "hours": hours["rows"],
            "index_bytes": hours["index_bytes"], "memory_bytes": hours["memory_bytes"]}
