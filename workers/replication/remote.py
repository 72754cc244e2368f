"""Another cluster: its channels, whether there is a connection to it, and the lanes that go there.

Channels are few: each takes some lanes, and there are at most CHANNELS_MAX to a broker.  When a connection cannot be
made or is lost, one probe after the other tries again, and lanes wait for its success.
"""
import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import TopicName
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.runtime.counters import Counters
from geminga.storage.runtime.log import log
from geminga.storage.schemas import registry
from geminga.workers.pulsar_client import client, reasons
from geminga.workers.pulsar_client.connection import ClientError, greeting
from geminga.workers.replication.backoff import Backoff
from geminga.workers.replication.channel import Channel, RemoteSide
from geminga.workers.replication.connection import Ended
from geminga.workers.replication.lane import Lane, LinkDown, Standstill
from geminga.workers.replication.partitioned import PartitionedTopics, Upkeep, partitions_there
from geminga.workers.replication.records import ClusterAddresses, WrongRecord, addresses_of
from geminga.workers.replication.reports import LinkState

if TYPE_CHECKING:
    import ssl

CHANNELS_MAX = 16            # channels to one broker, as many as Pulsar's brokers make
_LANES_FEW = 32              # lanes of a channel; with more on all of them, another channel is made
_OPENING_MAX = 64            # lanes that open at a time, so that thousands do not hold up a broker there
_HOPS_MAX = 10               # redirections of a lookup
_CONNECT_S = 10.0
_IDLE_S = 60.0               # for which a channel without lanes is kept
_PING_S, _SILENCE_S = 30.0, 60.0      # silence after which a remote is asked for a sign of life, or given up
_STEADY_S = 30.0             # a link that was up so long begins its back-off anew
Key = tuple[str, str]        # address of a broker or proxy, and host:port of the broker behind the proxy


class Remote:
    """One other cluster."""

    def __init__(self, own: str, name: str, clients: Path, catalogue: Catalogue, counters: Counters,
                 window_s: float) -> None:
        """own, name: this cluster and the other one.  clients: the socket of the workers in the data folder.

        window_s: of which rates are averages.
        """
        self.own, self.name, self.counters, self.window_s = own, name, counters, window_s
        self._clients, self._catalogue = clients, catalogue
        self._loop = asyncio.get_running_loop()
        self._record: dict[str, Any] | None = None
        self._place: ClusterAddresses | None = None
        self._tls: ssl.SSLContext | None = None
        self._partitioned = PartitionedTopics(catalogue, name)
        self._upkeep = Upkeep(self, self._partitioned)
        self.lanes: dict[str, Lane] = {}               # by the partition's name
        self._channels: dict[Key, list[Channel]] = {}
        self._connecting: dict[Key, asyncio.Lock] = {}
        self._turns = asyncio.Semaphore(_OPENING_MAX)
        # The link: whether the last connection could be made, and is open.
        self.error = ""
        self.since_ms = self.down_since_ms = 0
        self.next_try_s = 0.0                          # seconds since 1970; 0: none is due
        self._up_s = 0.0
        self._told_ms = 0                              # since 1970; when the log was told that the link is down, or 0
        self._backoff = Backoff()
        self._waiting: dict[Lane | Upkeep, None] = {}
        self._probe_timer: asyncio.TimerHandle | None = None
        self._probe_task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Remote {self.name} lanes={len(self.lanes)} channels={sum(map(len, self._channels.values()))}>"

    # -- what the process says

    def configure(self, record: dict[str, Any] | None, partitions: Iterable[str], partitioned: Iterable[str]) -> None:
        """Follow the cluster's record, the partitions whose entries go there, and their partitioned topics.

        Raises StorageFull.
        """
        if record != self._record:
            self._record = record
            self._begin_anew()
        wanted = set(partitions)
        for name in self.lanes.keys() - wanted:
            lane = self.lanes.pop(name)
            self._waiting.pop(lane, None)
            lane.close()
        for name in sorted(wanted - self.lanes.keys()):
            lane = self.lanes[name] = Lane(self, names.parse(name))
            lane.start()
        self._upkeep.follow(map(names.parse, partitioned))

    def _begin_anew(self) -> None:
        """Use the new record: end all channels."""
        self._place, self._backoff = None, Backoff()
        self._partitioned.forget()
        for channel in self._all_channels():
            channel.retire("the cluster's record was changed")
        self._waiting.clear()
        for lane in self.lanes.values():
            lane.start()
        self._upkeep.begin_anew()

    async def stop(self, seconds: float) -> None:
        """End all lanes, and give the remote some seconds for receipts."""
        until = self._loop.time() + seconds
        self._upkeep.close()
        for channel in self._all_channels():
            channel.hold(is_held=True)
        while any(lane.unanswered for lane in self.lanes.values()) and self._loop.time() < until:
            await asyncio.sleep(0.01)
        for lane in self.lanes.values():
            lane.close()
        for channel in self._all_channels():
            channel.retire("the broker stops")
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        if self._probe_task is not None:
            self._probe_task.cancel()

    def look(self, now_s: float) -> None:
        """Look once a second for silent remotes, and for channels without lanes.  now_s: the loop's time."""
        for lane in list(self.lanes.values()):
            lane.look(now_s)
        if self._upkeep not in self._waiting:
            self._upkeep.start()
        for channel in self._all_channels():
            silent_s = now_s - channel.remote.heard_s
            if silent_s > _SILENCE_S:
                channel.close(f"the remote was silent for {_SILENCE_S:g} s")
            elif silent_s > _PING_S:
                channel.remote.send(api.CommandPing())
            if channel.lanes:
                channel.idle_since_s = now_s
            elif now_s - channel.idle_since_s > _IDLE_S:
                channel.retire("no topic needs the connection")
        if self._up_s and now_s - self._up_s > _STEADY_S:
            self._works()

    def _all_channels(self) -> list[Channel]:
        return [channel for channels in self._channels.values() for channel in channels]

    # -- the link

    @property
    def is_up(self) -> bool:
        return any(self._channels.values())

    def wait_for_link(self, waiting: Lane | Upkeep) -> float:
        """Start a lane, or the upkeep, when there is a connection again; return the seconds until the next try."""
        self._waiting[waiting] = None
        if self._probe_timer is None and self._probe_task is None:
            self._probe_soon(self._backoff.next_s())
        return max(0.0, self.next_try_s - time.time())

    def progressed(self) -> None:
        """Take note of a receipt: the link works."""
        if self._backoff.failures or self._told_ms:
            self._works()

    def _probe_soon(self, delay_s: float) -> None:
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        self.next_try_s = time.time() + delay_s
        self._probe_timer = self._loop.call_later(delay_s, self._begin_probe)

    def _begin_probe(self) -> None:
        self._probe_timer = None
        if self._probe_task is None:
            self._probe_task = self._loop.create_task(self._probe())

    async def _probe(self) -> None:
        try:
            await self._service_channel(is_probe=True)
        except (LinkDown, ClientError, OSError):
            if self._waiting:
                self._probe_soon(self._backoff.next_s())
            return
        finally:
            self._probe_task = None
        self.next_try_s = 0.0
        waiting, self._waiting = self._waiting, {}
        for one in waiting:
            one.start()

    def _went_down(self, why: str) -> None:
        self.error, self._up_s = why, 0.0
        if not self.down_since_ms:
            self.down_since_ms = time.time_ns() // 1_000_000
        if not self._told_ms:
            self._told_ms = self.down_since_ms
            log.warning(f"there is no connection to cluster {self.name}: {why}", code="G541", cluster=self.name)

    def _came_up(self) -> None:
        self.error, self.next_try_s = "", 0.0
        if not self._up_s:
            self._up_s, self.since_ms = self._loop.time(), time.time_ns() // 1_000_000
        self.down_since_ms = 0

    def _works(self) -> None:
        """Take note that the link carries messages or has been up for long, and tell the log if it was down.

        A connection alone does not show it: two lines for each would fill the log while a remote lets us in and then
        ends the connection.
        """
        self._backoff.reset()
        if self._told_ms and self._up_s:
            down_s, self._told_ms = (self.since_ms - self._told_ms) / 1000, 0
            log.info(f"the connection to cluster {self.name} is back after {down_s:.1f} s", code="G541",
                     cluster=self.name)

    def channel_ended(self, channel: Channel, why: str) -> None:
        """Forget a channel."""
        for key, channels in list(self._channels.items()):
            if channel in channels:
                channels.remove(channel)
                if not channels:
                    del self._channels[key]
        if not self.is_up and not channel.is_retired:
            self._went_down(why)

    def auth_data(self) -> tuple[str, bytes]:
        """Return the method and the data of the credentials, read anew: a token's file may have changed."""
        try:
            shown = addresses_of(self._record).credentials
        except WrongRecord:
            return "", b""
        return shown.method, shown.data.encode()

    # -- what lanes need

    async def opening(self) -> None:
        await self._turns.acquire()

    def opened(self) -> None:
        self._turns.release()

    async def prepare(self, topic: TopicName) -> None:
        """Make sure that the partitioned topic of a partition exists there.

        Raises LinkDown, ClientError, Standstill.
        """
        if topic.partition >= 0:
            await self.keep(topic.base, topic.partition + 1)

    async def keep(self, topic: TopicName, least: int) -> None:
        """Have a partitioned topic there with at least so many partitions.  Raises LinkDown, ClientError, Standstill.
        """
        place = self._usable_place()
        channel = await self._service_channel()
        await self._partitioned.make(topic, least, place, channel.remote)

    def doubt(self, topic: TopicName) -> None:
        """Look again whether the partitioned topic of a partition exists there: its lane has failed."""
        if topic.partition >= 0:
            self._partitioned.doubt(topic.base)
            self._upkeep.look_soon(topic.base)

    def stands_still(self, topic: TopicName, why: str) -> None:
        """Stop the lanes of a partitioned topic that is not there: what they send goes to topics that nobody finds."""
        for lane in list(self.lanes.values()):
            if lane.is_sending and lane.topic.partition >= 0 and lane.topic.base == topic:
                lane.failed(why, is_lasting=True)

    async def channel_for(self, topic: str) -> Channel:
        """Return a channel to the broker there that serves the topic.  Raises LinkDown, ClientError."""
        place, channel = self._usable_place(), await self._service_channel()
        await _refuse_partitioned(channel.remote, topic)
        is_authoritative = False
        for _ in range(_HOPS_MAX):
            side = channel.remote
            request = api.CommandLookupTopic(topic=topic, authoritative=is_authoritative)
            if place.listener:
                request.advertised_listener_name = place.listener
            answer = await side.ask(request)
            if answer.response == answer.Failed:
                raise ClientError(f"LOOKUP: {answer.message}", answer.error)
            url = answer.brokerServiceUrlTls if place.is_secure else answer.brokerServiceUrl
            if not url:
                raise ClientError("LOOKUP: the remote names no address " + ("with" if place.is_secure else "without")
                                  + " TLS")
            key = (place.urls[0], _netloc(url)) if answer.proxy_through_service_url else (url, "")
            try:
                channel = await self._channel(key)
            except LinkDown as error:      # one broker of several: the link may be up
                raise Ended(str(error)) from None
            if answer.response == answer.Connect:
                return channel
            is_authoritative = answer.authoritative
        raise ClientError(f"LOOKUP: {topic} has no broker there: each names another one")

    async def schema(self, topic: str, channel: Channel) -> api.Schema | None:
        """Return the newest schema there, None without one.  Raises ClientError.

        The producer names it, so that a topic there which refuses producers without a schema takes this one.
        """
        try:
            return (await channel.remote.schema_version(topic)).schema
        except ClientError as error:
            if error.code in (api.TopicNotFound, api.MetadataError):
                return None
            raise

    async def schema_there(self, topic: TopicName, version: bytes, channel: Channel) -> bytes:
        """Add a schema version of this cluster there, and return its version there.  Raises ClientError, Standstill."""
        answer = await channel.remote.ask(api.CommandGetOrCreateSchema(
            topic=str(topic), schema=schema_of(self._catalogue, topic, version)))
        there: bytes = answer.schema_version
        return there

    # -- channels

    def _usable_place(self) -> ClusterAddresses:
        """Return where the cluster is; files that its record names are read until they can be.  Raises LinkDown."""
        if self._place is None:
            try:
                place = addresses_of(self._record)
                self._tls, self._place = place.context(), place
            except WrongRecord as error:
                self._went_down(str(error))
                raise LinkDown(str(error)) from None
        return self._place

    async def _service_channel(self, *, is_probe: bool = False) -> Channel:
        """Return a channel to the address in the cluster's record, the next one if the first does not answer.

        Raises LinkDown.
        """
        place, error = self._usable_place(), LinkDown("")
        for url in place.urls:
            try:
                return await self._channel((url, ""), is_probe=is_probe)
            except LinkDown as failed:
                error = failed
        raise error

    async def _channel(self, key: Key, *, is_probe: bool = False) -> Channel:
        """Return a channel to an address: a new one if those that there are have many lanes.  Raises LinkDown."""
        lock = self._connecting.setdefault(key, asyncio.Lock())
        async with lock:
            channels = self._channels.get(key, [])
            least = min(channels, key=lambda channel: len(channel.lanes), default=None)
            if least is not None and (len(least.lanes) < _LANES_FEW or len(channels) >= CHANNELS_MAX):
                return least
            if not is_probe and self._waiting and self.error:
                raise LinkDown(self.error)      # one probe tries: thousands of lanes would storm a cluster that starts
            try:
                channel = await self._connect(key)
            except (OSError, TimeoutError, ClientError, ValueError) as error:      # ValueError: a host that is no name
                why = _reason(error, key[0])
                if not self.is_up:
                    self._went_down(why)
                raise LinkDown(why) from None
            self._channels.setdefault(key, []).append(channel)
            self._came_up()
            return channel

    async def _connect(self, key: Key) -> Channel:
        """Make a channel.  Raises OSError, TimeoutError, ClientError."""
        url, beyond = key
        host, port = client.address_of(url)
        is_secure = url.startswith("pulsar+ssl:")
        channel = Channel(self._clients, f"{host}:{port}", self.auth_data, self.channel_ended)
        side = channel.remote
        async with asyncio.timeout(_CONNECT_S):
            await self._loop.create_connection(lambda: side, host, port, ssl=self._tls if is_secure else None)
        try:
            method, data = self.auth_data()
            request = greeting(method, data, beyond)
            flags = request.feature_flags
            flags.supports_auth_refresh = flags.supports_broker_entry_metadata = flags.supports_partial_producer = True
            flags.supports_get_partitioned_metadata_without_auto_creation = True
            flags.supports_repl_dedup_by_lid_and_eid = True
            answer = await side.greet(request)
        except BaseException as error:
            side.finish(str(error))
            raise
        side.knows_positions = answer.feature_flags.supports_repl_dedup_by_lid_and_eid
        return channel

    # -- reports

    def state_now(self) -> LinkState:
        """Return the state of the link for reports; times are ms since 1970."""
        lanes = list(self.lanes.values())
        return {"connected": self.is_up, "connectedSince": self.since_ms if self.is_up else 0,
                "address": ",".join(sorted({channel.address for channel in self._all_channels()})),
                "connections": len(self._all_channels()), "error": self.error, "downSince": self.down_since_ms,
                "nextTry": round(self.next_try_s * 1000), "lanes": len(lanes),
                "lanesConnected": sum(lane.is_sending for lane in lanes),
                "unanswered": sum(lane.unanswered for lane in lanes)}


def schema_of(catalogue: Catalogue, topic: TopicName, version: bytes) -> api.Schema:
    """Return a schema version of a topic here, as its bytes are in the metadata of messages.  Raises Standstill."""
    version_here = registry.find(catalogue, topic, int.from_bytes(version)) if len(version) == 8 else None
    if version_here is None:
        raise Standstill(f"a message has schema version {version.hex()}, which the topic does not have any more")
    return registry.to_wire(version_here.definition, topic.base.local_name)


async def _refuse_partitioned(side: RemoteSide, topic: str) -> None:
    """Raise Standstill if the name is that of a partitioned topic there; ClientError."""
    count = await partitions_there(side, topic)
    if count:
        raise Standstill(f"{topic} is a partitioned topic there, of {count} partitions, and none here")


def _netloc(url: str) -> str:
    """Return host and port of a URL that another cluster names.  Raises ClientError."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        raise ClientError(f"LOOKUP: the remote names {url!r}, which is no address") from None


def _reason(error: Exception, url: str) -> str:
    try:
        place = urlsplit(url).netloc
    except ValueError:
        place = url
    if isinstance(error, TimeoutError):
        return f"{place}: no answer within {_CONNECT_S:g} s"
    if isinstance(error, ClientError):
        return f"{place}: {error}"
    return f"{place}: {reasons.of(error, is_secure=url.startswith('pulsar+ssl:'))}"
