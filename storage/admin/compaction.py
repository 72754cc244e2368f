"""Questions about the compacted views of partitions, and the order to adopt one that a job has made."""
from typing import Any

from geminga.proto.names import TopicName
from geminga.storage.commands.topic_lookup import stored
from geminga.storage.topics.partition import Partition
from geminga.storage.upkeep.compacted_views import news


def _adopt(owner: Any, topic: TopicName, arguments: dict[str, Any]) -> dict[str, Any]:
    partition = stored(owner, topic)
    owner.views.adopt(partition, arguments["view"])
    return _view_of(partition)


def _due(owner: Any, topic: None, arguments: dict[str, Any]) -> list[tuple[int, str]]:
    due: list[tuple[int, str]] = owner.views.due()
    return due


def _compaction(owner: Any, topic: TopicName, arguments: dict[str, Any]) -> dict[str, Any]:
    return _view_of(stored(owner, topic))


def _view_of(partition: Partition) -> dict[str, Any]:
    """The compacted view of a partition, {"view": number, ...}; view 0: there is none."""
    manifest = partition.view.manifest if partition.view is not None else None
    return {"view": partition.view_number, "horizon": partition.horizon, "entries": manifest.entries if manifest else 0,
            "messages": manifest.messages if manifest else 0, "bytes": manifest.size if manifest else 0, "news": news(partition),
            "created_ms": manifest.created_ms if manifest else 0, "report": manifest.report if manifest else {}}


QUESTIONS = {"adopt-view": _adopt, "compaction-due": _due, "compaction": _compaction}
