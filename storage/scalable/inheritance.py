"""Subscriptions that are made on a segment after it was sealed, and that the segments behind it get first.

A split gives the children all subscriptions of their parent.  A client that has not learned of it yet may still make
one on the parent.  When its SUBSCRIBE is answered, it is to miss nothing of what is published from then on, but that
goes to the children, which the client does not know.  Neither may the broker count on the client coming there in time:
what no subscription keeps may be deleted, and at the end of a child it would begin behind what has come meanwhile.  So
the SUBSCRIBE waits until the owners of all segments behind the sealed one have made the subscription, and is then
carried out.  The layout is read again first: a child may have split while its owner was asked.

On a topic that deduplicates, the children also get the sequence ids of their parents' producers.  A message that is
sent again after a split goes to a child, which must not store it again.  So PRODUCERs to a new segment wait until it
has them, which takes some milliseconds; the change of the layout is under way until then.
"""
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage.errors import CorruptFile, StorageFull
from geminga.storage.ledgers.managed_ledger import EARLIEST
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.session import Session, Sessions
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.scalable.notices import INHERIT, INHERITED, Notices
from geminga.storage.topics.partition import Partition

_PATIENCE_MS = 5_000           # how long a SUBSCRIBE waits for other owners before it is refused
_SEQUENCES = ""                # in the place of a subscription: PRODUCERs wait for sequence ids
_NO_WORKER = -1                # in the place of a worker's number: commands are parked for no connection

Key = tuple[str, str]          # sealed segment, subscription
# (partition, subscription, position to begin at) -> None: makes it
Make = Callable[[Partition, str, tuple[int, int]], object]


@dataclass(eq=False, slots=True)
class _Heirs:
    """The segments behind a sealed one that are asked for a subscription, and those that have it."""

    number: int                                  # under which the SUBSCRIBEs are parked
    since_ms: int
    asked: set[str] = field(default_factory=set)
    made: set[str] = field(default_factory=set)


class Inheritance(Watcher):
    """SUBSCRIBEs to sealed segments, and PRODUCERs of new ones, that wait for other segments, of one owner."""

    def __init__(self, decisions: Decisions, sessions: Sessions, topics: TopicTable, notices: Notices, make: Make,
                 resume: Callable[[tuple[int, int]], None],
                 refuse: Callable[[Session, api.BaseCommand, Refusal], None]):
        """resume: carries out the commands that are parked for a pair.  refuse: answers a command with an error."""
        self._decisions, self._sessions, self._topics, self._notices = decisions, sessions, topics, notices
        self._make, self._resume, self._refuse = make, resume, refuse
        self._waiting: dict[Key, _Heirs] = {}
        self._given: set[str] = set()      # segments that have got sequence ids in a change that is under way
        self._numbers = itertools.count(1)
        notices.functions |= {INHERIT: self._inherit, INHERITED: self._inherited}

    def __repr__(self) -> str:
        return f"<Inheritance {len(self._waiting)}>"

    def park(self, session: Session, command: api.BaseCommand, partition: Partition) -> bool:
        """Park a SUBSCRIBE that makes a subscription on a sealed segment.  Raises Refusal, StorageFull.

        Returns False if all segments behind the sealed one have the subscription: then it may be made.
        """
        request = command.subscribe
        key = str(partition.name), request.subscription
        heirs = self._waiting.get(key)
        behind = self._behind(partition.name)
        if behind <= (heirs.made if heirs is not None else set()):
            self._waiting.pop(key, None)
            return False
        if heirs is None:
            heirs = self._waiting[key] = _Heirs(next(self._numbers), self._decisions.now_ms)
        is_latest = request.initialPosition == api.CommandSubscribe.Latest
        begins_early = not is_latest or request.start_message_rollback_duration_sec > 0
        for segment in sorted(behind - heirs.asked):
            heirs.asked.add(segment)
            self._notices.send(segment, INHERIT, segment, request.subscription, begins_early, key[0])
        place = _NO_WORKER, heirs.number
        self._hold(session, command, request.consumer_id, place)
        return True

    def park_producer(self, session: Session, command: api.BaseCommand, partition: Partition) -> bool:
        """Park a PRODUCER of a segment that has yet to get sequence ids.  Returns False if it has them."""
        name = partition.name
        if not (name.is_segment and partition.deduplicates and self._lacks_sequences(name)):
            return False
        key = str(name), _SEQUENCES
        heirs = self._waiting.get(key)
        if heirs is None:
            heirs = self._waiting[key] = _Heirs(next(self._numbers), self._decisions.now_ms)
        self._hold(session, command, command.producer.producer_id, (_NO_WORKER, heirs.number))
        return True

    def has_sequences(self, partition: Partition) -> None:
        """Carry out the PRODUCERs of a segment that has got the sequence ids."""
        self._given.add(str(partition.name))
        self._let_in(str(partition.name))

    def _lacks_sequences(self, name: TopicName) -> bool:
        """Whether the change that makes a segment is under way, and has not given it the sequence ids yet."""
        change = self._topics.catalogue.scalable_topics.change_of(name.base)
        return (change is not None and str(name) in [child.topic for child in change.children]
                and str(name) not in self._given)

    def _let_in(self, segment: str) -> None:
        heirs = self._waiting.pop((segment, _SEQUENCES), None)
        if heirs is not None:
            self._resume((_NO_WORKER, heirs.number))

    def _hold(self, session: Session, command: api.BaseCommand, object_id: int, place: tuple[int, int]) -> None:
        session.waiting[command.type, object_id] = place
        self._sessions.parked.setdefault(place, {})[session, command.type, object_id] = command

    def _behind(self, name: TopicName) -> set[str]:
        """Return the names of all segments that have taken over hashes of a sealed one, and of those behind them.

        The first parent of a merge is sealed before the new layout is in force.
        """
        topics = self._topics.catalogue.scalable_topics
        topic = name.base.scalable
        change, layout = topics.change_of(topic), topics.layout(topic)
        if change is not None and name.segment_number in change.parents:
            layout = change.layout
        return set() if layout is None else {segment.topic for segment in layout.behind(name.segment_number)}

    # -- notices of owners

    def _inherit(self, segment: str, subscription: str, begins_early: bool, parent: str) -> None:
        """Make a subscription on a segment, and answer.  What cannot be made is not answered: the asker gives up."""
        name, catalogue = names.parse(segment), self._topics.catalogue
        try:
            partition = self._topics.find(name)
            change = catalogue.scalable_topics.change_of(name.base)
            is_made = change is not None and segment in [child.topic for child in change.children]
            if partition is None and (is_made or catalogue.topics.exists(name)):
                partition = self._topics.create(name)
            if partition is not None and (subscription, True) not in partition.subscriptions:
                position = partition.mark_delete_before(EARLIEST) if begins_early else partition.last_confirmed
                self._make(partition, subscription, position)
        except (Refusal, StorageFull, CorruptFile, OSError):
            return
        self._decisions.answer_needs_sync()
        self._notices.send(parent, INHERITED, parent, subscription, segment)

    def _inherited(self, parent: str, subscription: str, segment: str) -> None:
        heirs = self._waiting.get((parent, subscription))
        if heirs is not None:
            heirs.made.add(segment)
            if heirs.asked <= heirs.made:
                self._resume((_NO_WORKER, heirs.number))

    def tick(self, now_ms: int) -> None:
        """Refuse commands that have waited too long; their clients try again."""
        changing = self._topics.catalogue.scalable_topics.change_of
        self._given = {name for name in self._given if changing(names.parse(name).base) is not None}
        # A change may end while the owner is started again, which then is given nothing any more.
        for segment in [key[0] for key in self._waiting if key[1] == _SEQUENCES]:
            if not self._lacks_sequences(names.parse(segment)):
                self._let_in(segment)
        for key, heirs in list(self._waiting.items()):
            if not 0 <= now_ms - heirs.since_ms < _PATIENCE_MS:
                del self._waiting[key]
                parked = self._sessions.parked.pop((_NO_WORKER, heirs.number), {})
                for (session, kind, object_id), command in parked.items():
                    session.waiting.pop((kind, object_id), None)
                    self._refuse(session, command, Refusal(
                        api.ServiceNotReady, "Segments of the topic are being changed; try again"))
