"""Deletion of scalable topics, which is finished later if a kill or an owner's end interrupts it.

The topic goes at once, with its rights, policies and schemas, so that clients which reconnect do not find it.  Then the
owners delete its segments.  The topic's row stays until the last one is deleted, and says what is left to do.  If a
policy keeps the topic, its segments are kept in the same transaction, and owners close those that are open.
"""
import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

from aiohttp import web

from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage.admin.questions import Delete
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.database import now_ms
from geminga.storage.errors import NotDurable, StorageFull
from geminga.storage.open_topics import kept
from geminga.storage.runtime.log import log
from geminga.supervisor.admin.requests.owners import OWNERS, Owners
from geminga.supervisor.admin.requests.request_parts import TOPICS
from geminga.supervisor.admin.resources.retries import RETRIES, Retries

LEFT = web.AppKey("scalable_deletions_left", asyncio.Event)      # set when a deletion is to be finished later
DELETION = "deletion"
_AGAIN_SECONDS = 1           # between tries to finish a deletion that was cut short


async def delete(app: web.Application, topics: Iterable[TopicName]) -> None:
    """Delete scalable topics, or keep them.  If an owner fails, the rest of the deletion is done later.

    Raises Refusal.
    """
    topics, catalogue, owners = list(topics), app[TOPICS].catalogue, app[OWNERS]
    for topic in topics:
        seconds = kept.seconds_of(catalogue, app[TOPICS].storage, topic)
        if seconds and kept.parts_of(catalogue, topic):
            kept.keep(catalogue, app[TOPICS].config.data_dir, topic, seconds, now_ms())
        else:
            catalogue.scalable_topics.begin_deletion(topic)
    catalogue.commit()
    try:
        for topic in topics:
            await finish(catalogue, owners, topic)
    except BaseException:      # also a request that is given up: nobody can ask again for what is no topic any more
        app[LEFT].set()
        raise


async def finish(catalogue: Catalogue, owners: Owners, topic: TopicName) -> None:
    """Delete what is left of the segments of a topic that is not there any more, and close kept ones.  Raises Refusal.
    """
    for segment in catalogue.scalable_topics.deleted_segments(topic):
        await owners.ask(Delete(segment, force=True, gone=True))
    catalogue.scalable_topics.end_deletion(topic)
    catalogue.commit()


async def _finish_always(catalogue: Catalogue, owners: Owners, left: asyncio.Event, retries: Retries) -> None:
    """Finish deletions that a killed process has begun, and later those that have failed."""
    while True:
        left.clear()
        if await finish_all(catalogue, owners, retries):
            await left.wait()
        else:
            await asyncio.sleep(_AGAIN_SECONDS)


async def finish_all(catalogue: Catalogue, owners: Owners, retries: Retries) -> bool:
    """Try to delete what is left of all topics whose deletion was begun; return whether nothing is left of any.

    None waits for another one that fails.
    """
    try:
        topics = catalogue.scalable_topics.being_deleted()
    except StorageFull:
        return False
    retries.keep(DELETION, topics)
    is_done = True
    for topic in topics:
        try:
            await finish(catalogue, owners, topic)
            retries.ended(topic)
            log.info("the deletion of a scalable topic was finished", topic=topic)
        except (Refusal, StorageFull, NotDurable) as error:      # an owner is being started, or there is no room
            catalogue.undo()
            retries.failed(topic, DELETION, error)
            is_done = False
    return is_done


async def serve(app: web.Application) -> AsyncIterator[None]:
    """Finish deletions in the background while the application runs, for `cleanup_ctx`."""
    task = asyncio.create_task(_finish_always(app[TOPICS].catalogue, app[OWNERS], app[LEFT], app[RETRIES]))
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
