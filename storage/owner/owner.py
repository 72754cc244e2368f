"""An owner: the only process that writes its partitions.

This file builds an owner from its parts, each of which is given the tables and parts that it uses.  Start with
owner_pass.py, which has the steps of a pass.
"""
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.admin.queries import Questions
from geminga.storage.admin.topic_changes import put_options_in_force
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.commands.commands import Commands
from geminga.storage.commands.holder_probes import HolderProbes
from geminga.storage.commands.subscriptions import create_subscription
from geminga.storage.enforcement.admitted_producers import Migration, RequiredEncryption
from geminga.storage.enforcement.backlog_quota import BacklogQuotas
from geminga.storage.enforcement.batch_priorities import BatchPriorities
from geminga.storage.enforcement.closed_partition_scan import ClosedPartitionScan
from geminga.storage.enforcement.dead_letters import DeadLetters
from geminga.storage.enforcement.delay_policy import DelayPolicy
from geminga.storage.enforcement.inactive_topics import InactiveTopics
from geminga.storage.enforcement.message_ttl import MessageTtl
from geminga.storage.enforcement.own_ttl import OwnTtl
from geminga.storage.enforcement.rate_limiter import RateLimiter
from geminga.storage.enforcement.replicated_subscriptions import ReplicatedSubscriptions
from geminga.storage.enforcement.replication_cursors import ReplicationCursors
from geminga.storage.enforcement.retention import Retention
from geminga.storage.enforcement.unacknowledged_limit import UnacknowledgedLimit
from geminga.storage.ledgers.journal import Journal
from geminga.storage.open_topics.answers import refuse
from geminga.storage.open_topics.backup_snapshot import BackupSnapshots
from geminga.storage.open_topics.clients import Clients, Producers
from geminga.storage.open_topics.compacted_views import CompactedViews
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.discovery import Discovery
from geminga.storage.open_topics.disk_space import DiskSpace
from geminga.storage.open_topics.durability import Durability
from geminga.storage.open_topics.held_sends import HeldSends
from geminga.storage.open_topics.left_out_sends import LeftOutSends
from geminga.storage.open_topics.options_in_force import OptionsInForce
from geminga.storage.open_topics.publish_gate import PublishGate
from geminga.storage.open_topics.publisher import Publisher
from geminga.storage.open_topics.reports import Reports
from geminga.storage.open_topics.session import Session, Sessions
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.options import StorageOptions
from geminga.storage.owner.dispatching import Dispatching
from geminga.storage.owner.owner_pass import Pass
from geminga.storage.owner.publishing import Publishing
from geminga.storage.owner.requests import Requests
from geminga.storage.recurring.recurring import RecurringMessages
from geminga.storage.runtime.counters import Counters
from geminga.storage.scalable.drained import SealedSegments
from geminga.storage.scalable.inheritance import Inheritance
from geminga.storage.scalable.notices import Notices
from geminga.storage.scalable.stream_consumers import StreamConsumers
from geminga.storage.statistics.statistics import Statistics
from geminga.storage.transactions.admission import Admission
from geminga.storage.transactions.coordinator import Coordinator
from geminga.storage.transactions.exchange import Exchange
from geminga.storage.transactions.held_acks import HeldAcks
from geminga.storage.transactions.participant import Participant
from geminga.storage.transactions.peers import Peers
from geminga.storage.upkeep.delayed_scheduler import DelayedScheduler
from geminga.storage.upkeep.hole_punching import HolePuncher
from geminga.storage.upkeep.kept_topics import KeptTopicsUpkeep
from geminga.storage.upkeep.memory_pressure import MemoryPressure
from geminga.storage.upkeep.missing_files import MissingFiles
from geminga.storage.upkeep.trimming import Trimming

if TYPE_CHECKING:
    from geminga.storage.owner.recovery import Recovery


class Owner:
    """One owner: its tables (open_topics/), and the parts that work on them."""

    def __init__(self, data_dir: Path, options: StorageOptions, catalogue: Catalogue, journal: Journal,
                 counters: Counters, now_ms: int, recovery: "Recovery | None" = None,
                 is_mine: Callable[[str], bool] = lambda name: True, *, index: int = 0, owners: int = 1,
                 has_moved: bool = False):
        """Build an owner without open topics.

        recovery: states that are in the journal but not yet in state files.  is_mine: whether a partition's name
        belongs to this owner.  index, owners: this is owner `index` of so many.  has_moved: whether the number of
        owners has changed.
        """
        self.catalogue, self.journal, self.counters = catalogue, journal, counters
        self.peers = Peers(index, owners)
        self.notices = Notices(self.peers)
        self._make_tables(data_dir, options, recovery, is_mine, now_ms)
        self._make_policies(is_mine)
        self._make_transactions(recovery, index, owners, has_moved=has_moved)
        self._make_publishing(is_mine)
        self._make_requests()
        self._make_pass()
        self._list_watchers()

    def _make_tables(self, data_dir: Path, options: StorageOptions, recovery: "Recovery | None",
                     is_mine: Callable[[str], bool], now_ms: int) -> None:
        """Make the tables of open topics and of clients, and what partitions are opened with."""
        self.decisions = Decisions(self.journal, self.counters, now_ms)
        self.options = OptionsInForce(self.catalogue, options)
        self.reports = Reports(self.counters, now_ms)
        self.clients = Clients(Producers(HeldSends(self.decisions)))
        self.space = DiskSpace(self.journal.folder, options, self.counters)
        self.memory = MemoryPressure(self.counters)
        self.journal.spare = self.space.spare
        self.discovery = Discovery(self.catalogue, options.discovery_grace_s * 1000)
        self.durability = Durability(self.decisions, self.catalogue, self.options, self.reports, self.space)
        self.snapshots = BackupSnapshots(data_dir, self.durability, self.journal, recovery)
        self.topics = TopicTable(
            data_dir, self.decisions, self.clients, self.catalogue, self.options, self.reports, self.durability,
            self.space, self.snapshots, recovery, is_mine, self._waits_for_owners)
        self.stream_consumers = StreamConsumers(self.catalogue, self.decisions.outbox, self.notices,
                                                options.stream_consumer_grace_s * 1000)
        self.sealed = SealedSegments(self.decisions, self.topics, self.notices)
        self.inheritance = Inheritance(
            self.decisions, self.clients.sessions, self.topics, self.notices,
            partial(create_subscription, self.decisions, self.catalogue), self._resume, partial(refuse, self.decisions))
        self.views = CompactedViews(self.decisions, self.clients.sessions, self.snapshots)
        self.left_out = LeftOutSends()

    def _resume(self, place: tuple[int, int]) -> None:
        self.commands.resume_at(place, is_alive=False)

    def _waits_for_owners(self) -> bool:
        return self.coordinator.waits_for_owners

    def _make_policies(self, is_mine: Callable[[str], bool]) -> None:
        """Make what looks at open topics again and again: policies, limits, upkeep and statistics."""
        decisions, clients, topics, reports = self.decisions, self.clients, self.topics, self.reports
        catalogue, options = self.catalogue, self.options
        self.closed_scan = ClosedPartitionScan(topics, reports, is_mine, self._waits_for_owners)
        self.missing = MissingFiles(topics, reports)
        self.kept = KeptTopicsUpkeep(decisions, clients, topics, self.space, is_mine)
        self.schedules = DelayedScheduler(decisions, topics.data_dir, options, reports)
        self.expiry, self.retention = MessageTtl(decisions), Retention(decisions, topics)
        self.dead_letters, self.own_ttl = DeadLetters(decisions), OwnTtl(decisions)
        self.quotas = BacklogQuotas(decisions, options)
        self.puncher = HolePuncher(decisions, topics, self.space, self.discovery)
        self.inactive = InactiveTopics(decisions, clients, topics, reports, self.discovery)
        self.rates = RateLimiter(decisions, clients.producers, catalogue, options)
        self.crowding = UnacknowledgedLimit(decisions, topics)
        self.replication = ReplicationCursors(decisions, clients, catalogue, options, reports)
        self.replicated = ReplicatedSubscriptions(decisions, catalogue, options)
        self.statistics = Statistics(decisions, clients.producers, topics, options.configured.stats_window_s)
        self.gate = PublishGate(
            decisions, clients.sessions, self.space, self.memory, self.quotas, self.replication)
        self.delays = DelayPolicy(decisions, clients.producers, self.left_out)
        self.priorities = BatchPriorities(clients.producers)
        self.encryption = RequiredEncryption(decisions, clients, catalogue)
        self.holder_probes = HolderProbes(decisions, clients.producers)
        self.trimming = Trimming(decisions, topics, self.durability, self.space, self.discovery, self.views)

    def _make_transactions(self, recovery: "Recovery | None", index: int, owners: int, *, has_moved: bool) -> None:
        """Make the coordinator, and what holds back SENDs and ACKs until a coordinator has answered."""
        sessions = self.clients.sessions
        coordinators = {} if recovery is None else recovery.coordinators
        self.coordinator = Coordinator(
            self.decisions, sessions, self.topics, self.reports, self.peers, dict(coordinators), has_moved=has_moved)
        self.admission = Admission(self.decisions, self.clients, self.left_out, self.peers)
        self.held_acks = HeldAcks(self.decisions, sessions, self.peers, self._carry_out)

    def _carry_out(self, session: Session, command: api.BaseCommand) -> None:
        self.commands.carry_out(session, command)

    def _make_publishing(self, is_mine: Callable[[str], bool]) -> None:
        """Make the publishing of SENDs, and the parts that have SENDs published which wait."""
        self.publishing = Publishing(
            self.decisions, self.clients, self.topics, self.left_out, self.durability, self.trimming, space=self.space,
            gate=self.gate, rates=self.rates, delays=self.delays, priorities=self.priorities, quotas=self.quotas,
            schedules=self.schedules, statistics=self.statistics, admission=self.admission,
            subscriptions=self.replicated, reports=self.reports)
        self.recurring = RecurringMessages(
            self.decisions, self.clients, self.topics, self.publishing, is_mine)
        self.migration = Migration(self.decisions, self.clients, self.publishing)
        self.participant = Participant(self.decisions, self.topics, self.reports, self.publishing, self.peers)
        self.exchange = Exchange(self.coordinator, self.participant, self.admission, self.held_acks, self.peers)

    def _make_requests(self) -> None:
        """Make the commands of clients and the questions of administration; each function is given what it uses."""
        parts: dict[type, object] = {type(part): part for part in (
            self.decisions, self.clients, self.topics, self.catalogue, self.options, self.reports, self.durability,
            self.space, self.snapshots, self.views, self.discovery, self.gate, self.coordinator, self.participant,
            self.held_acks, self.rates, self.dead_letters, self.expiry, self.retention, self.closed_scan,
            self.schedules, self.trimming, self.statistics, self.stream_consumers, self.sealed, self.inheritance,
            self.recurring)}
        parts |= {Publisher: self.publishing, Sessions: self.clients.sessions}
        self.commands = Commands(
            self.decisions, self.clients, self.topics, self.reports, self.gate, self.discovery, self.stream_consumers,
            self.coordinator, parts)
        self.questions = Questions(self.topics, parts)
        self.requests = Requests(
            self.decisions, self.clients.sessions, self.discovery, self.stream_consumers, self.commands, self.questions)

    def _make_pass(self) -> None:
        """Make dispatching, and the pass with its steps."""
        self._dispatching = Dispatching(self.decisions, self.clients, self.topics, self.rates, self.schedules)
        self.passes = Pass(
            self.decisions, self._tick, requests=self.requests, publishing=self.publishing,
            dispatching=self._dispatching, durability=self.durability, trimming=self.trimming, gate=self.gate,
            schedules=self.schedules, exchange=self.exchange, peers=self.peers, segments=self.sealed,
            notices=self.notices, recurring=self.recurring, carry_out=self._carry_out)

    def _list_watchers(self) -> None:
        """List all watchers, in the order in which they are called once a second.

        Encryption and migration come last: they close producers, which are to find all other policies in force.
        """
        self.topics.watchers += [
            self.closed_scan, self.missing, self.kept, self.schedules, self.dead_letters, self.expiry, self.own_ttl,
            self.quotas, self.retention, self.puncher,
            self.inactive, self.views, self.rates, self.crowding, self.statistics, self.gate, self.delays,
            self.priorities, self.participant, self.coordinator, self.held_acks, self.holder_probes,
            self.publishing, self._dispatching, self.topics, self.trimming, self.replication,
            self.replicated, self.stream_consumers, self.sealed, self.inheritance, self.recurring, self.encryption,
            self.migration]
        self.topics.topic_watchers += [
            self.rates, self.statistics, self.publishing, self.holder_probes, self.encryption]

    def __repr__(self) -> str:
        return f"<Owner {self.topics!r} {self.clients!r}>"

    def _tick(self) -> None:
        """Check disk, memory and journal, and call all watchers; called once a second."""
        self.reports.tick(self.decisions.now_ms)
        self.space.look()
        self.memory.look()
        self.journal.check()
        for watcher in self.topics.watchers:
            watcher.tick(self.decisions.now_ms)

    def can_be_configured(self, options: StorageOptions) -> bool:
        """Whether `configure` can apply these options.  A different segment size needs a new process."""
        return options.journal_segment_bytes == self.options.configured.journal_segment_bytes

    def configure(self, options: StorageOptions) -> None:
        """Apply options of a new configuration.  Options in the catalogue still override them."""
        self.options.configure(options)
        self.discovery.grace_ms = options.discovery_grace_s * 1000
        self.stream_consumers.grace_ms = options.stream_consumer_grace_s * 1000
        self.space.configure(options)
        self.statistics.configure(options.stats_window_s)
        self.journal.segments_max = options.journal_segments_max
        put_options_in_force(self.topics, self.rates, self.closed_scan)

    def drain(self) -> None:
        """Stop all deliveries.  Acknowledgements are still applied, and outstanding messages are counted."""
        self._dispatching.drain()

    def owner_is_up(self, index: int) -> None:
        """Tell another owner, which serves now, what its process may not know, and ask it what this one may not."""
        self.exchange.owner_is_up(index)
        self.stream_consumers.owner_is_up(index)
        self.sealed.owner_is_up(index)

    def worker_gone(self, worker: int) -> None:
        """End all connections of a worker whose process has ended."""
        self.requests.end_sessions(worker)
        self.decisions.forget_worker(worker)

    def close(self, until: float = math.inf) -> None:
        """Write all changes to disk, so that the next start has nothing to replay.

        until: time.monotonic() after which the rest is left to the next start.  Raises NotDurable.
        """
        self.passes.apply_received()
        self.durability.commit()
        while self.space.is_full and self.space.give_up():
            pass
        # Delayed indexes get half of the time: they can be scanned anew, while a journal is replayed as a whole.
        now = time.monotonic()
        self.schedules.close(now + (until - now) / 2)
        self.journal.close(until)
        self.catalogue.close()
