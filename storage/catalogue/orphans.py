"""Mending of the catalogue at a start: each stored partition has one topic that lists it."""
from geminga.proto import names
from geminga.storage.catalogue.catalogue import Catalogue


def mend(catalogue: Catalogue) -> list[str]:
    """Give each stored partition one topic, and return the names of topics that were created for partitions.

    A deletion that a kill interrupted leaves partitions without a topic, which no list has. Older versions let a
    partitioned topic take over topics with the names of its partitions: these had two topics, and keep the partitioned
    one. Partitions that a killed request would have added to a partitioned topic stay: a repeated request finds them.
    Segments are left out, also those that were partitions: their topic's row stays until the last is deleted. The
    caller commits. Raises StorageFull, NotDurable.
    """
    counts: dict[str, int] = dict(catalogue.read("SELECT name, partitions FROM topics"))
    for name, count in counts.items():
        topic = names.parse(name)
        if not count and topic.partition >= 0 and topic.partition < counts.get(str(topic.base), 0):
            catalogue.topics.forget_name(topic)
    orphans = [name for name in catalogue.partitions.names() if not names.parse(name).is_segment
               and name not in counts and not counts.get(names.without_partition(name))
               and not catalogue.scalable_topics.claims(names.parse(name))]
    for name in orphans:
        topic = names.parse(name)
        catalogue.namespaces.create(topic.namespace)
        catalogue.topics.create(topic, 0)
    return orphans
