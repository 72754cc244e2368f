"""Deletions that keep their topic for a while: whether a policy says so, and for how long.

catalogue/kept_topics.py has the steps, upkeep/kept_topics.py the end.
"""
from pathlib import Path

from geminga.proto import names
from geminga.proto.names import TopicName
from geminga.storage import format
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.policies import policies_of
from geminga.storage.errors import StorageFull
from geminga.storage.options import StorageOptions


def seconds_of(catalogue: Catalogue, options: StorageOptions, topic: TopicName) -> int:
    """Return for how long a topic is kept when it is deleted; 0: it is not.  Raises StorageFull.

    topic: a base name.  Segments alone, non-persistent and system topics are not kept.
    """
    is_part = topic.is_segment or topic.partition >= 0 or catalogue.topics.whole(topic) != topic
    if not topic.is_persistent or is_part or names.is_system(str(topic)):
        return 0
    return policies_of(catalogue, topic, options).deleted_retention_s


def keep(catalogue: Catalogue, data_dir: Path, topic: TopicName, seconds: int, now_ms: int) -> None:
    """Delete a topic, and keep it for so long.  The owners of open partitions or segments have to unload these.

    topic: a base name.  One transaction does it, which is undone if it fails and else left to be committed.

    Raises Refusal, StorageFull, NotDurable.
    """
    parts = parts_of(catalogue, topic)
    ids = [stored[0] for part in parts if (stored := catalogue.partitions.find(part)) is not None]
    size = sum(_bytes_of(format.partition_folder(data_dir, partition_id)) for partition_id in ids)
    try:
        with catalogue.topics.transaction():
            catalogue.kept_topics.keep(topic, parts, now_ms=now_ms, until_ms=now_ms + seconds * 1_000, size=size)
    except StorageFull:
        catalogue.undo()
        raise


def parts_of(catalogue: Catalogue, topic: TopicName) -> list[TopicName]:
    """Return the names under which messages of a topic may be stored.  Raises StorageFull."""
    return catalogue.scalable_topics.stored_segments(topic) if topic.is_scalable else catalogue.topics.parts(topic)


def _bytes_of(folder: Path) -> int:
    """Return the bytes on the disk of all files in a folder, about: they change meanwhile."""
    size = 0
    for path in folder.rglob("*") if folder.exists() else ():
        try:
            size += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return size
