"""Replicated subscriptions: other clusters are told how far they are, and those that they tell of are moved.

    tick         -> snapshots are asked for, where a replicated subscription has messages that the last does not cover
    received     markers that other clusters' replicators have published, of which take_due works off:
                     request     -> response: its position here
                     response    -> the snapshot, or a second request
                     update      -> the subscription is moved forward to its position here, and made if there is none
    take_due     -> markers to be written: these, and an update for each subscription that has passed a snapshot

A cluster names only positions of its own, and takes back only these.  A subscription that an update has moved is not
told of again, so two clusters that mirror each other come to rest.  Nothing of this is kept on disk: after a start, the
first snapshot has all subscriptions told again.
"""
from collections import defaultdict
from collections.abc import Iterable

from google.protobuf.message import DecodeError, Message

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import SNAPSHOT_REQUEST, SNAPSHOT_RESPONSE, SUBSCRIPTION_UPDATE, replication_cursor
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.commands import subscriptions
from geminga.storage.cursors.snapshots import Lanes, Snapshots
from geminga.storage.errors import StorageFull
from geminga.storage.ledgers.managed_ledger import EARLIEST
from geminga.storage.ledgers.position import Position
from geminga.storage.open_topics import acknowledge, markers
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.markers import Markers, Received
from geminga.storage.open_topics.options_in_force import OptionsInForce
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.runtime.log import log
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription

ANSWERS_MAX = 10          # requests of a cluster about one partition that are answered in a second
_ID_MAX = 256             # characters of a snapshot's id; brokers use 36
_MADE_MAX = 1_000         # subscriptions of a partition, from which on no update makes another one
_POSITIONS_MAX = 64       # clusters that an update names


class ReplicatedSubscriptions(Watcher):
    """Replicated subscriptions of one owner's partitions."""

    def __init__(self, decisions: Decisions, catalogue: Catalogue, options: OptionsInForce):
        self._decisions, self._catalogue, self._options = decisions, catalogue, options
        self._snapshots: dict[Partition, Snapshots] = {}      # of partitions that go to other clusters
        self._received: list[Received] = []
        self._due: list[tuple[Partition, bytes]] = []         # markers to be written
        self._answers: defaultdict[tuple[Partition, str], int] = defaultdict(int)      # since the last tick

    def __repr__(self) -> str:
        return f"<ReplicatedSubscriptions partitions={len(self._snapshots)} received={len(self._received)}>"

    def watch(self, partition: Partition) -> None:
        """Follow a partition that goes to other clusters, and no other one."""
        if partition.policies.remote_clusters and self._options.current.replicated_subscriptions:
            self._snapshots.setdefault(partition, Snapshots())
        else:
            self._snapshots.pop(partition, None)

    def release(self, partition: Partition) -> None:
        """Forget a partition that the owner gives up."""
        self._snapshots.pop(partition, None)

    def tick(self, now_ms: int) -> None:
        """Ask for snapshots that are due, and give up those that were not answered; called once a second."""
        self._answers.clear()
        for partition, snapshots in self._snapshots.items():
            followed = [one for one in partition.subscriptions.values() if one.is_replicated and one.is_durable]
            if followed or snapshots.pending is not None:
                self._look(partition, snapshots, followed, now_ms)
        self._decisions.counters.set("snapshots_pending", sum(
            snapshots.pending is not None for snapshots in self._snapshots.values()))

    def _look(self, partition: Partition, snapshots: Snapshots, followed: list[Subscription], now_ms: int) -> None:
        options, pending, lanes = self._options.current, snapshots.pending, _lanes(partition)
        if pending is not None and pending.lanes != lanes:      # the other clusters may never have been asked
            snapshots.give_up()
        elif pending is not None and not 0 <= now_ms - pending.began_ms < options.replicated_snapshot_timeout_s * 1000:
            snapshots.give_up()
            self._decisions.counters.add("snapshots_timed_out")
        if followed and lanes is not None and not partition.is_terminated and snapshots.is_due(
                partition.next_message, lanes, now_ms, options.replicated_snapshot_interval_s * 1000):
            self._ask(partition, snapshots.begin(
                set(partition.policies.remote_clusters), partition.next_message, lanes, now_ms))
        for subscription in followed:
            self._tell(subscription)
        if followed:
            snapshots.forget_before(min(one.cursor.mark_delete for one in followed))

    def received(self, marked: Iterable[Markers]) -> None:
        """Take note of markers that have been stored in this pass."""
        for one in marked:
            if one.partition in self._snapshots and not one.is_own:
                self._received += markers.received(one)

    def take_due(self) -> list[tuple[Partition, bytes]]:
        """Work off what has been received, and return the markers to be written now: (partition, entry)."""
        if not (self._received or self._due or self._decisions.moved):      # nearly always
            return []
        received, self._received = self._received, []
        for one in received:
            if one.partition in self._snapshots and one.source in one.partition.policies.remote_clusters:
                try:
                    _WORK[one.kind](self, one)
                except DecodeError:
                    log.debug("a marker cannot be read", topic=one.partition.name, cluster=one.source)
        if self._decisions.moved:
            moved, self._decisions.moved = self._decisions.moved, {}
            for subscription in moved:
                self._tell(subscription)
        due, self._due = self._due, []
        return [each for each in due if not (each[0].is_released or each[0].is_terminated)]

    # -- markers of other clusters

    def _answer(self, one: Received) -> None:
        """Answer a request with its own position: everything before it had come from here to the asking cluster."""
        request = api.ReplicatedSubscriptionsSnapshotRequest.FromString(one.payload)
        if request.source_cluster != one.source or len(request.snapshot_id) > _ID_MAX:
            return
        self._answers[one.partition, one.source] += 1
        if self._answers[one.partition, one.source] > ANSWERS_MAX:
            return
        response = api.ReplicatedSubscriptionsSnapshotResponse(snapshot_id=request.snapshot_id, cluster=_at(
            self._options.current.cluster_name, one.position))
        self._write(one.partition, SNAPSHOT_RESPONSE, response, to=one.source)

    def _complete(self, one: Received) -> None:
        """Take the answer of a cluster.  The last one completes a snapshot, or a first round."""
        response, snapshots = api.ReplicatedSubscriptionsSnapshotResponse.FromString(one.payload), \
            self._snapshots[one.partition]
        if response.cluster.cluster != one.source:
            return
        pending = snapshots.answer(response.snapshot_id, one.source, _position(response.cluster))
        if pending is None:
            return
        if not pending.is_last_round:
            snapshots.ask_again()
            self._ask(one.partition, pending.snapshot_id)
            return
        now_ms, options = self._decisions.now_ms, self._options.current
        snapshots.complete(one.position, now_ms, options.replicated_snapshots_max)
        self._decisions.counters.observe("snapshot", max(0, now_ms - pending.began_ms) / 1000)
        for subscription in one.partition.subscriptions.values():
            self._tell(subscription)

    def _move(self, one: Received) -> None:
        """Move a subscription forward to its position here, if it is behind that; make it if there is none."""
        update = api.ReplicatedSubscriptionsUpdate.FromString(one.payload)
        own = self._options.current.cluster_name
        position = next((_position(each) for each in update.clusters[:_POSITIONS_MAX] if each.cluster == own), None)
        if position is None or position > one.partition.last_confirmed:
            return
        try:
            subscriptions.check_name(update.subscription_name)
            subscription = one.partition.subscriptions.get((update.subscription_name, True)) or \
                self._make(one.partition, update.subscription_name, position)
        except (Refusal, StorageFull) as error:      # the next update tries again
            log.debug(f"a subscription of another cluster is not made: {error}", topic=one.partition.name,
                      cluster=one.source)
            return
        if one.partition.has(position):
            acknowledge.skip_to(self._decisions, subscription, position)
            subscription.told = max(subscription.told, one.partition.since(position))

    def _make(self, partition: Partition, name: str, position: Position) -> Subscription:
        """Create a replicated subscription at a position, or at the first message behind it.

        Raises Refusal, StorageFull.
        """
        if len(partition.subscriptions) >= _MADE_MAX:
            raise Refusal(api.NotAllowedError, f"{partition.name} has {_MADE_MAX} subscriptions")
        if not partition.has(position):
            position = partition.mark_delete_before(EARLIEST)
        made = subscriptions.create_subscription(self._decisions, self._catalogue, partition, name, position)
        subscriptions.set_replicated(self._decisions, self._catalogue, made, True)
        return made

    # -- markers of our own

    def _ask(self, partition: Partition, snapshot_id: str) -> None:
        self._write(partition, SNAPSHOT_REQUEST, api.ReplicatedSubscriptionsSnapshotRequest(
            snapshot_id=snapshot_id, source_cluster=self._options.current.cluster_name))

    def _tell(self, subscription: Subscription) -> None:
        """Write an update if the subscription has passed a snapshot that no earlier update of it covers."""
        partition = subscription.partition
        if not (isinstance(partition, Partition) and partition in self._snapshots and subscription.is_replicated):
            return
        passed = self._snapshots[partition].passed(subscription.cursor.mark_delete)
        if passed is None or passed.messages <= subscription.told:
            return
        subscription.told = passed.messages
        self._write(partition, SUBSCRIPTION_UPDATE, api.ReplicatedSubscriptionsUpdate(
            subscription_name=subscription.name, clusters=[_at(*each) for each in sorted(passed.remote.items())]))

    def _write(self, partition: Partition, kind: int, payload: Message, *, to: str | None = None) -> None:
        self._due.append((partition, markers.entry_of(kind, payload, self._decisions.now_ms, to=to)))


_WORK = {SNAPSHOT_REQUEST: ReplicatedSubscriptions._answer, SNAPSHOT_RESPONSE: ReplicatedSubscriptions._complete,
         SUBSCRIPTION_UPDATE: ReplicatedSubscriptions._move}


def _lanes(partition: Partition) -> Lanes | None:
    """Return the handles of the consumers that take entries to other clusters; None: to one of these nothing goes."""
    handles = []
    for cluster in sorted(partition.policies.remote_clusters):
        cursor = partition.subscriptions.get((replication_cursor(cluster), True))
        if cursor is None or (consumer := cursor.first_consumer) is None:
            return None
        handles.append(consumer.handle)
    return tuple(handles)


def _at(cluster: str, position: Position) -> api.ClusterMessageId:
    return api.ClusterMessageId(cluster=cluster, message_id=api.MarkersMessageIdData(
        ledger_id=position[0], entry_id=position[1]))


def _position(there: api.ClusterMessageId) -> Position:
    return there.message_id.ledger_id, there.message_id.entry_id
