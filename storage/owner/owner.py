"""An owner: the only process that writes its partitions.

This file builds an owner from its parts, and forwards calls of other packages (topics/owner_context.py) to them.  Start
with owner_pass.py, which has the steps of a pass.
"""
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import TopicName
from geminga.proto.rows import Rows
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.commands.holder_probes import HolderProbes
from geminga.storage.enforcement.backlog_quota import BacklogQuotas
from geminga.storage.enforcement.closed_partition_scan import ClosedPartitionScan
from geminga.storage.enforcement.delay_policy import DelayPolicy
from geminga.storage.enforcement.inactive_topics import InactiveTopics
from geminga.storage.enforcement.message_ttl import MessageTtl
from geminga.storage.enforcement.publish_gate import PublishGate
from geminga.storage.enforcement.rate_limiter import RateLimiter
from geminga.storage.enforcement.replicated_subscriptions import ReplicatedSubscriptions
from geminga.storage.enforcement.replication_cursors import ReplicationCursors
from geminga.storage.enforcement.retention import Retention
from geminga.storage.enforcement.unacknowledged_limit import UnacknowledgedLimit
from geminga.storage.ledgers.journal import Journal
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.options import StorageOptions
from geminga.storage.owner.dispatching import Dispatching
from geminga.storage.owner.durability import Durability
from geminga.storage.owner.owner_pass import Pass
from geminga.storage.owner.partition_table import PartitionTable
from geminga.storage.owner.publishing import Publishing
from geminga.storage.owner.requests import Requests
from geminga.storage.owner.trimming import Trimming
from geminga.storage.runtime.counters import Counters
from geminga.storage.runtime.log import log
from geminga.storage.statistics.statistics import Statistics
from geminga.storage.topics.decisions import Decisions
from geminga.storage.topics.non_persistent import NonPersistentTopic
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.session import Session
from geminga.storage.topics.subscription import Consumer, Producer, Subscription, Topic
from geminga.storage.transactions.admission import Admission
from geminga.storage.transactions.coordinator import Coordinator
from geminga.storage.transactions.exchange import Exchange
from geminga.storage.transactions.held_acks import HeldAcks
from geminga.storage.transactions.participant import Participant
from geminga.storage.transactions.peers import Peers
from geminga.storage.upkeep.backup_snapshot import BackupSnapshots
from geminga.storage.upkeep.compacted_views import CompactedViews
from geminga.storage.upkeep.delayed_scheduler import DelayedScheduler
from geminga.storage.upkeep.discovery import Discovery
from geminga.storage.upkeep.disk_space import DiskSpace
from geminga.storage.upkeep.hole_punching import HolePuncher
from geminga.storage.upkeep.memory_pressure import MemoryPressure
from geminga.storage.upkeep.missing_files import MissingFiles

if TYPE_CHECKING:
    from geminga.storage.ledgers.position import Position
    from geminga.storage.owner.recovery import Recovery
    from geminga.storage.topics.owner_context import ParkedCommands

_MINUTE_MS = 60_000


class Owner(Decisions):
    """One owner: its tables, its parts, and the decisions of the current pass."""

    def __init__(self, data_dir: Path, options: StorageOptions, catalogue: Catalogue, journal: Journal,
                 counters: Counters, now_ms: int, recovery: "Recovery | None" = None,
                 is_mine: Callable[[str], bool] = lambda name: True, *, index: int = 0, owners: int = 1,
                 has_moved: bool = False):
        """Build an owner without open partitions.

        recovery: states that are in the journal but not yet in state files.  is_mine: whether a partition's name
        belongs to this owner.  index, owners: this is owner `index` of so many.  has_moved: whether the number of
        owners has changed.
        """
        super().__init__(journal, counters, now_ms)
        self.data_dir, self.catalogue = data_dir, catalogue
        self._configured = options                                # of the configuration; the catalogue overrides them
        self.options = catalogue.options.applied_to(options)
        self.began_ms, self.began = now_ms, time.perf_counter()
        self._make_tables()
        self._make_partitions(recovery, is_mine)
        self._make_watchers(is_mine)
        self._make_transactions(recovery, index, owners, has_moved=has_moved)
        self._make_pass()
        self._list_watchers()

    def _make_tables(self) -> None:
        """Make empty tables: of what clients have open, and of what was reported and logged."""
        self.sessions: dict[tuple[int, int], Session] = {}        # by worker and connection
        self.producers: dict[int, Producer] = {}                  # by handle
        self.replicators: dict[int, Producer] = {}                # producers of other clusters' replicators, by handle
        self.addressed: dict[int, Producer] = {}                  # producers for one subscription each, by handle
        self.consumers: dict[int, Consumer] = {}                  # by handle
        self.non_persistent: dict[TopicName, NonPersistentTopic] = {}
        self.non_persistent_producers: dict[int, Producer] = {}   # producers of non-persistent topics, by handle
        self.contended: dict[Topic, None] = {}                    # with producers that wait for exclusive access
        self.parked: dict[tuple[int, int], ParkedCommands] = {}   # by the connection that was probed
        self.expected_readers: dict[Subscription, int] = {}       # readers' subscriptions -> time of their seek, in ms
        self.unreadable: set[tuple[Partition, Position]] = set()  # entries reported as damaged by clients this minute
        self._unreadable_since_ms = self.now_ms
        self._next_handle = 1
        self._logged_once: set[str] = set()                       # texts of lines logged by log_once

    def _make_partitions(self, recovery: "Recovery | None", is_mine: Callable[[str], bool]) -> None:
        """Make what partitions are opened with: the measures of disk and memory, durability, and their table."""
        self.space = DiskSpace(self.journal.folder, self._configured, self.counters)
        self.memory = MemoryPressure(self.counters)
        self.journal.spare = self.space.spare
        self.discovery = Discovery(self.catalogue, self._configured.discovery_grace_s * 1000)
        self.snapshots = BackupSnapshots(self, recovery)
        self._durability = Durability(self, self.space)
        self.partitions = PartitionTable(self, self._durability, self.space, self.snapshots, recovery, is_mine,
                                         self._waits_for_owners)
        self.by_name = self.partitions.by_name

    def _waits_for_owners(self) -> bool:
        return self.coordinator.waits_for_owners

    def _make_watchers(self, is_mine: Callable[[str], bool]) -> None:
        """Make what looks at open partitions again and again: policies, limits, upkeep and statistics."""
        self.closed_scan = ClosedPartitionScan(self, is_mine, self._waits_for_owners)
        self.missing = MissingFiles(self)
        self.schedules = DelayedScheduler(self)
        self.expiry, self.quotas, self.retention = MessageTtl(self), BacklogQuotas(self), Retention(self)
        self.puncher, self.views = HolePuncher(self), CompactedViews(self)
        self.inactive, self.rates, self.crowding = InactiveTopics(self), RateLimiter(self), UnacknowledgedLimit(self)
        self.replication, self.replicated = ReplicationCursors(self), ReplicatedSubscriptions(self)
        self.statistics = Statistics(self, self._configured.stats_window_s)
        self.gate = PublishGate(self, self.space, self.memory, self.quotas, self.replication)
        self.delays, self.holder_probes = DelayPolicy(self), HolderProbes(self)

    def _make_transactions(self, recovery: "Recovery | None", index: int, owners: int, *, has_moved: bool) -> None:
        """Make the coordinator, the participant of this owner's partitions, and what connects both to other owners."""
        self.peers = Peers(index, owners)
        self.participant = Participant(self)
        coordinators = {} if recovery is None else recovery.coordinators
        self.coordinator = Coordinator(self, dict(coordinators), has_moved=has_moved)
        self.admission, self.held_acks = Admission(self), HeldAcks(self)
        self.exchange = Exchange(self.coordinator, self.participant, self.admission, self.held_acks, self.peers)

    def _make_pass(self) -> None:
        """Make the parts that the steps of a pass use, and the pass itself."""
        self._trimming = Trimming(self, self.partitions, self._durability, self.space, self.discovery, self.views)
        self._publishing = Publishing(
            self, self.partitions, self._durability, self._trimming, space=self.space, gate=self.gate, rates=self.rates,
            delays=self.delays, quotas=self.quotas, schedules=self.schedules, statistics=self.statistics,
            admission=self.admission, subscriptions=self.replicated)
        self._dispatching = Dispatching(self, self.partitions, self.rates, self.schedules)
        self._requests = Requests(self, self.discovery)
        self.passes = Pass(
            self, self._tick, requests=self._requests, publishing=self._publishing, dispatching=self._dispatching,
            durability=self._durability, trimming=self._trimming, gate=self.gate, schedules=self.schedules,
            exchange=self.exchange)

    def _list_watchers(self) -> None:
        """List all watchers, in the order in which they are called once a second."""
        self.watchers = self.partitions.watchers
        self.watchers += [
            self.closed_scan, self.missing, self.schedules, self.expiry, self.quotas, self.retention, self.puncher,
            self.inactive, self.views, self.rates, self.crowding, self.statistics, self.gate, self.delays,
            self.participant, self.coordinator, self.held_acks, self.holder_probes,
            self._publishing, self._dispatching, self.partitions, self._trimming, self.replication,
            self.replicated]
        self.partitions.topic_watchers += [self.rates, self.statistics, self._publishing, self.holder_probes]

    def __repr__(self) -> str:
        return f"<Owner partitions={len(self.by_name)} sessions={len(self.sessions)} " \
               f"producers={len(self.producers)} consumers={len(self.consumers)}>"

    def _tick(self) -> None:
        """Check disk, memory and journal, and call all watchers; called once a second."""
        if not 0 <= self.now_ms - self._unreadable_since_ms < _MINUTE_MS:
            self.unreadable.clear()
            self._unreadable_since_ms = self.now_ms
        self.space.look()
        self.memory.look()
        self.journal.check()
        for watcher in self.watchers:
            watcher.tick(self.now_ms)

    # -- called by the process

    @property
    def sign_of_life(self) -> Callable[[], None]:
        """A function that answers the supervisor's pings; it is called between commands, because a pass may execute
        many.
        """
        return self._requests.sign_of_life

    @sign_of_life.setter
    def sign_of_life(self, call: Callable[[], None]) -> None:
        self._requests.sign_of_life = call

    def can_be_configured(self, options: StorageOptions) -> bool:
        """Whether `configure` can apply these options.  A different segment size needs a new process."""
        return options.journal_segment_bytes == self._configured.journal_segment_bytes

    def configure(self, options: StorageOptions) -> None:
        """Apply options of a new configuration.  Options in the catalogue still override them."""
        self._configured = options
        self.discovery.grace_ms = options.discovery_grace_s * 1000
        self.space.configure(options)
        self.statistics.configure(options.stats_window_s)
        self.journal.segments_max = options.journal_segments_max
        self.apply_options()

    def drain(self) -> None:
        """Stop all deliveries.  Acknowledgements are still applied, and outstanding messages are counted."""
        self._dispatching.drain()

    def worker_gone(self, worker: int) -> None:
        """End all connections of a worker whose process has ended."""
        self._requests.end_sessions(worker)
        self.forget_worker(worker)

    def close(self) -> None:
        """Write all changes to disk, so that the next start has nothing to replay.  Raises NotDurable."""
        self.passes.apply_received()
        self._durability.commit()
        while self.space.is_full and self.space.give_up():
            pass
        self.schedules.close()
        self.journal.close()
        self.catalogue.close()

    # -- called by other packages, see OwnerContext

    def has(self, session: Session) -> bool:
        return not session.is_over and self.sessions.get(session.key) is session

    def new_handle(self) -> int:
        self._next_handle += 1
        return self._next_handle

    def commit(self) -> None:
        self._durability.commit_and_sync()

    def partition(self, name: TopicName) -> Partition | None:
        return self.partitions.find(name)

    def create_partition(self, name: TopicName) -> Partition:
        return self.partitions.create(name)

    def refuse_foreign(self, name: TopicName) -> None:
        self.partitions.refuse_foreign(name)

    def release(self, partition: Partition) -> None:
        self.partitions.unload(partition)

    def delete(self, name: TopicName) -> None:
        self.partitions.delete(name)

    def forget_topic(self, topic: NonPersistentTopic) -> bool:
        if self.non_persistent.pop(topic.name, None) is None:
            return False
        for watcher in self.partitions.topic_watchers:
            watcher.release(topic)
        return True

    def apply_policies(self, topic: Topic) -> None:
        self.partitions.apply_policies(topic)

    def apply_options(self) -> None:
        self.options = self.catalogue.options.applied_to(self._configured)
        self.rates.configure()
        self.partitions.apply_options()
        self.closed_scan.begin()

    def roll(self, partition: Partition, *, is_idle: bool = False) -> None:
        self.partitions.roll(partition, is_idle=is_idle)

    def trim(self) -> None:
        self._trimming.trim()

    def truncate(self, partition: Partition) -> None:
        self._trimming.truncate(partition)

    def forget_mapped(self, ledger: Ledger) -> None:
        self.partitions.forget_mapped(ledger)

    def publish_held(self, topic: Topic) -> None:
        self._publishing.publish_held(topic)

    def publish_asked(self, partition: Partition, transaction: int) -> None:
        self._publishing.publish_asked(partition, transaction)

    def drop_sends(self, worker: int, rows: Rows) -> None:
        self._publishing.drop_sends(worker, rows)

    def refuse_sends(self, worker: int, rows: Rows, code: api.ServerError.ValueType, text: str) -> None:
        self._publishing.refuse_sends(worker, rows, code, text)

    def carry_out(self, session: Session, command: api.BaseCommand, *, probed: bool = False) -> None:
        self._requests.carry_out(session, command, probed=probed)

    def log_once(self, text: str, *, code: str, **fields: str) -> None:
        if text not in self._logged_once:
            self._logged_once.add(text)
            log.error(text, code=code, **fields)

    def report_damage(self, text: str, *, code: str = "G120") -> None:
        self.counters.add("damage_found")
        self.log_once(text, code=code)
