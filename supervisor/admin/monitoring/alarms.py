"""Alarms: conditions that an operator has to act on. This process looks for all of them once a second.

    alarm         is raised while
    disk          an owner refuses publishing, or cannot read or write its files (storage/open_topics/disk_space.py)
    memory        less than a part of the limit, or of the host's memory, is free; near the end publishing is refused
    certificate   a certificate expires within 30 days; logged again 7 days and one day before
    clock         the clock was put forward or back in the last hour, more than a time daemon corrects it
    nightly       the last night failed, or none has succeeded for two days
    damage        damage was found, a file was removed, or clients could not read messages; until acknowledged
    sync          a sync failed; until acknowledged
    processes     a process was started three times within ten minutes
    transactions  consumers wait for a transaction that is open for long, or a decided one does not end
    exports       a message that nights have to export is older than two days, and is not exported
    replication   a message that is to go to another cluster is older than ten minutes, and is not there
    segments      a change of segments, or a deletion of a scalable topic, has failed for 30 s, and is tried again
    standby       the known standby is not connected, or more than ten seconds behind; until it is, or is forgotten

Each alarm is a metric, a line in the log when it is raised and when it is over, a line of `geminga status`, and a page
of the runbook. Numbers that have to outlive this process are in the shared counters: clock jumps, and the counts that
an operator has acknowledged (`geminga status --seen`).
"""
import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, TypedDict, cast

from aiohttp import web

from geminga.proto.errors import Refusal
from geminga.storage.admin.table_questions import Listing, ListUnexported, ListUnreplicated
from geminga.storage.runtime.counters import Counters
from geminga.storage.runtime.log import log
from geminga.storage.upkeep import missing_files
from geminga.supervisor.admin.monitoring.hanging_transactions import HangingTransactions
from geminga.supervisor.admin.requests.owners import OWNERS, Owners, whole_listing
from geminga.supervisor.admin.resources.retries import Retries
from geminga.supervisor.configuration.config import Config
from geminga.supervisor.host import host
from geminga.supervisor.tasks.job_socket import REPORT, NightReport, last_report
from geminga.supervisor.wording import human
from geminga.workers.identity.certificates import Tls, warning

if TYPE_CHECKING:
    from geminga.supervisor.admin.resources.standby import Standby

_LOOK_SECONDS = 1.0
# The clock has jumped if it changed by more than these seconds plus this part of the time that passed.  A time daemon
# corrects it by less.
_JUMP_SECONDS, _SLEW = 2.0, 0.1
_JUMPED_SECONDS = 3600.0             # the alarm ends after this time without a jump
_MEMORY_REST = 0.05                  # part of the memory that must be free again before the alarm ends
_LATE_SECONDS = 2 * 24 * 3600.0      # time without a nightly job that succeeded, after which the alarm is raised
_STARTS_SECONDS = 600.0              # three starts of a process within this time raise the alarm
# between two looks for late exports and late replication, for which owners make rows of all topics
_EXPORTS_SECONDS, _REPLICATION_SECONDS = 60, 30
_BEHIND_SECONDS = 10.0               # of a standby, more than any pause of its disk or network
_TOLD_MAX = 3                        # transactions that the text of an alarm describes
# files that are never replaced while a broker serves
_STAY = "catalogue.sqlite", "catalogue.sqlite-wal", "format", "lock"
_TIMER = Path("/etc/systemd/system/timers.target.wants/geminga-nightly.timer")      # exists while the timer is enabled
_PAGES = Path(__file__).resolve().parents[3] / "systemd" / "runbook", Path("/usr/share/doc/geminga/runbook")


class Reason(NamedTuple):
    """The reason why an alarm is raised: a text for the operator, and a key whose change is logged."""

    key: Any          # a change of the key is logged
    text: str


class RaisedAlarm(TypedDict):
    """A raised alarm as `geminga status` and the console get it."""

    alarm: str
    since: str
    since_ms: int
    text: str
    page: str
    can_be_seen_to: bool


class Raised(NamedTuple):
    """An alarm that is raised: its reason, and since when."""
    reason: Reason
    since: float      # Unix time


# Alarm -> the code of its log lines; empty if another process writes them.
ALARMS = {
    "disk": "",
    "memory": "G310",
    "certificate": "G401",
    "clock": "G311",
    "nightly": "G510",
    "damage": "G125",
    "sync": "G111",
    "processes": "G206",
    "transactions": "G520",
    "exports": "G530",
    "replication": "G540",
    "segments": "G560",
    "standby": "G550",
}
# Alarms that are logged as errors.  All further alarms are warnings, which can wait for the morning.
_COSTLY = "memory", "damage", "sync", "processes"
Rows = dict[tuple[str, int], dict[str, int]]


class Alarms:
    """All alarms of one broker, and the state from which they are evaluated."""

    def __init__(
        self,
        config: Config,
        counters: dict[tuple[str, int], Counters],
        root: Path = Path("/"),
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ):
        """Watch one broker.  steady: a monotonic clock in seconds, which also counts while the host sleeps."""
        self._counters, self._root, self._wall, self._steady = counters, root, wall, steady
        self._own = counters["admin", 0]
        self.raised: dict[str, Raised] = {}
        self.memory = host.memory(root)
        self.certificates: Tls | None = None
        self.transactions = HangingTransactions()
        self.exports = Late(ListUnexported, _EXPORTS_SECONDS)
        self.replication = Late(ListUnreplicated, _REPLICATION_SECONDS)
        self.retries = Retries(wall)
        self.standby: Standby | None = None
        self._watched = missing_files.WatchedFiles([config.data_dir / name for name in _STAY], self._tell_missing)
        self._night: tuple[tuple[int, int] | None, NightReport] = None, {}
        self.configure(config)

    def __repr__(self) -> str:
        return f"<Alarms raised={list(self.raised)}>"

    def configure(self, config: Config) -> None:
        """Apply a new configuration."""
        self._options, self._data_dir = config.alarms, config.data_dir
        self.transactions.open_seconds, self.exports.bound_s = config.alarms.transaction_s, config.alarms.export_s
        self.replication.bound_s = config.alarms.replication_s

    async def serve(self, app: web.Application) -> AsyncIterator[None]:
        """Evaluate all alarms at intervals while the application runs."""
        tasks = [asyncio.create_task(watching) for watching in (
            self._watch(), self.transactions.watch(app), self.exports.watch(app[OWNERS]),
            self.replication.watch(app[OWNERS]))]
        yield
        for task in tasks:
            task.cancel()

    async def _watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    def look(self) -> None:
        """Evaluate every alarm, and log each one that is raised or ends."""
        self._look_at_memory()
        self._look_at_clock()
        self._watched.look()
        rows = self._rows()
        for name, code in ALARMS.items():
            reason, before = getattr(self, f"_{name}")(rows), self.raised.get(name)
            if reason is not None and (before is None or before.reason.key != reason.key) and code:
                (log.error if name in _COSTLY else log.warning)(f"alarm {name}: {reason.text}", code=code)
            if reason is not None:
                self.raised[name] = Raised(reason, before.since if before else self._wall())
            elif before is not None:
                del self.raised[name]
                if code:
                    log.info(f"alarm {name} is over", code=code)

    def _tell_missing(self, text: str) -> None:
        self._own.add("damage_found")
        log.error(text, code="G126")

    def _rows(self) -> Rows:
        return {who: counters.read() for who, counters in self._counters.items()}

    def seen_to(self, name: str) -> bool:
        """Acknowledge an alarm on an operator's behalf.  Return False for an alarm that cannot be acknowledged."""
        if name == "standby" and self.standby is not None and not self.standby.is_fed:
            self.standby.forget()
        elif name not in _SEEN_TO:
            return False
        if name not in _SEEN_TO:
            self.look()
            return True
        column, count = _SEEN_TO[name]
        self._own.set(column, count(self._rows()))
        self.look()
        return True

    # -- alarms: each returns its reason while it is raised

    def _disk(self, rows: Rows) -> Reason | None:
        owners = {index: row for (role, index), row in rows.items() if role == "owner"}
        waiting = [index for index, row in owners.items() if row["is_waiting"]]
        refusing = [row for row in owners.values() if row["publishing_refused"]]
        if waiting:
            return Reason("waiting",
                                f"owner {', '.join(map(str, waiting))} cannot read or write its files, and tries again")
        if refusing:
            return Reason("refusing",
                                f"{refusing[0]['disk_free_bytes'] / (1 << 20):.0f} MiB are free: nobody may publish")
        return None

    def _look_at_memory(self) -> None:
        """Read the memory in use, and decide whether publishing is refused until memory is free again."""
        self.memory = host.memory(self._root)
        refuse = self._options.memory_refuse_percent / 100
        is_refused = bool(self._own.read()["memory_refuses"])
        bound = refuse - _MEMORY_REST * is_refused
        self._own.set("memory_refuses", int(bool(refuse) and self.memory.part >= bound))

    def _memory(self, rows: Rows) -> Reason | None:
        is_refused = bool(rows["admin", 0]["memory_refuses"])
        bound = self._options.memory_percent / 100 - _MEMORY_REST * ("memory" in self.raised)
        if self.memory.part < bound and not is_refused:
            return None
        whose = "the host's memory" if self.memory.of == "host" else f"what the control group {self.memory.of} may have"
        text = f"{self.memory.used >> 20} of {self.memory.limit >> 20} MiB of {whose} are used"
        return Reason(is_refused, text + (": nobody may publish" if is_refused else ""))

    def _certificate(self, rows: Rows) -> Reason | None:
        expiries = self.certificates.expiries() if self.certificates else {}
        warnings = [(days, key, text) for key, expires in expiries.items()
                 for days, text in [warning(key, expires, self._wall())] if text]
        if not warnings:
            return None
        return Reason([(days, key) for days, key, _ in warnings], "; ".join(text for *_, text in warnings))

    def _look_at_clock(self) -> None:
        """Compare the wall clock with the monotonic clock, and record a jump in the shared counters."""
        wall, steady, row = self._wall(), self._steady(), self._own.read()
        offset_ms, passed = round((wall - steady) * 1000), steady - row["clock_looked_ms"] / 1000
        jump = (offset_ms - row["clock_offset_ms"]) / 1000
        self._own.set("clock_offset_ms", offset_ms)
        self._own.set("clock_looked_ms", round(steady * 1000))
        if row["clock_looked_ms"] and abs(jump) > _JUMP_SECONDS + _SLEW * passed:
            self._own.add("clock_jumps_forward" if jump > 0 else "clock_jumps_back")
            self._own.set("clock_jumped_ms", round(steady * 1000))
            self._own.set("clock_jump_ms", round(jump * 1000))

    def _clock(self, rows: Rows) -> Reason | None:
        row, jumps = rows["admin", 0], _jumps(rows)
        if jumps <= row["clock_jumps_seen"] or self._steady() - row["clock_jumped_ms"] / 1000 > _JUMPED_SECONDS:
            return None
        jump = row["clock_jump_ms"] / 1000
        when = _moment(self._wall() - self._steady() + row["clock_jumped_ms"] / 1000)
        return Reason(jumps, f"the clock was put {'forward' if jump > 0 else 'back'} by {abs(jump):.1f} s at {when}")

    def _nightly(self, rows: Rows) -> Reason | None:
        report, enabled = self._report(), _changed(_TIMER)
        if report and report["status"] != "success":
            return Reason(report["ended_ms"], f"the last night failed at {_moment(report['ended_ms'] / 1000)}: "
                                              f"{report['error'] or 'some of it could not be done'}")
        if not report and not enabled:
            return None      # nights are not set up
        since = max(report["last_success_ms"] / 1000 if report else 0.0, enabled)
        if self._wall() - since > _LATE_SECONDS:
            return Reason("late", f"no night has succeeded since {_moment(since)}")
        return None

    def _report(self) -> NightReport:
        """Return the report of the last nightly job.  The file is read again only when it has changed."""
        try:
            file = (self._data_dir / REPORT).stat()
            stamp = file.st_mtime_ns, file.st_ino
        except OSError:
            stamp = None
        if stamp != self._night[0]:
            self._night = stamp, last_report(self._data_dir)
        return self._night[1]

    def _damage(self, rows: Rows) -> Reason | None:
        if (count := _damages(rows)) <= rows["admin", 0]["damage_seen"]:
            return None
        return Reason(count, f"damage was found {count} times since the broker began; "
                             "the log says where, geminga verify what it costs")

    def _sync(self, rows: Rows) -> Reason | None:
        if (count := _sync_failures(rows)) <= rows["admin", 0]["syncs_seen"]:
            return None
        return Reason(count, f"{count} syncs failed since the broker began: look at the disk")

    def _processes(self, rows: Rows) -> Reason | None:
        now_ms = self._steady() * 1000
        restarted = [f"{role} {index}" for (role, index), row in rows.items()
                 if row["started_3_ms"] and now_ms - row["started_3_ms"] < _STARTS_SECONDS * 1000]
        if not restarted:
            return None
        return Reason(restarted, f"{', '.join(restarted)} had to be started again and again in the last ten minutes")

    def _transactions(self, rows: Rows) -> Reason | None:
        if not (hanging := self.transactions.sentences):
            return None
        others = f"; and {len(hanging) - _TOLD_MAX:,} others" if len(hanging) > _TOLD_MAX else ""
        return Reason(sorted(hanging), "; ".join(islice(hanging.values(), _TOLD_MAX)) + others)

    def _segments(self, rows: Rows) -> Reason | None:
        if not (stuck := self.retries.stuck()):
            return None
        others = f"; and {len(stuck) - _TOLD_MAX:,} others" if len(stuck) > _TOLD_MAX else ""
        texts = (f"the {one.what} of {topic} has failed for {human.length(self._wall() - one.since)} and is tried "
                 f"again: {one.why}" for topic, one in islice(stuck.items(), _TOLD_MAX))
        return Reason(list(stuck), "; ".join(texts) + others)

    def _exports(self, rows: Rows) -> Reason | None:
        if not (oldest := self.exports.oldest):
            return None
        age, many = human.length(self._wall() - oldest["since_ms"] / 1000), self.exports.count
        count = f"; topics like that: {many:,}" if many > 1 else ""
        return Reason("late", f"a message of {oldest['topic']} is {age} old and not exported yet{count}; geminga "
                              "nightly report tells how the last night went")

    def _replication(self, rows: Rows) -> Reason | None:
        if not (oldest := self.replication.oldest):
            return None
        topic, remote, is_connected = oldest["topic"], oldest["remote"], oldest["is_connected"]
        age, many = human.length(self._wall() - oldest["since_ms"] / 1000), self.replication.count
        count = f"; topics and clusters like that: {many:,}" if many > 1 else ""
        how = "which does not confirm it" if is_connected else "to which nothing is connected"
        return Reason((remote, is_connected), f"a message of {topic} is {age} old and not at cluster {remote} yet, "
                                              f"{how}{count}; geminga why {topic} tells more")

    def _standby(self, rows: Rows) -> Reason | None:
        told = self.standby.told() if self.standby is not None else None
        if told is None or told["lag_ms"] <= 1000 * _BEHIND_SECONDS:
            return None
        behind = human.length(told["lag_ms"] / 1000)
        if told["connected"]:
            how = "is being copied to" if told["copying"] else f"is {behind} behind"
            return Reason("behind", f"standby {told['name']} {how}: what it lacks would be lost with this host")
        return Reason("gone", f"standby {told['name']} has not been connected for {behind}; if it is no more, "
                              "geminga status --seen standby forgets it")

    # -- for status, metrics and /ready

    def told(self) -> list[RaisedAlarm]:
        """Return the raised alarms as JSON objects for `geminga status`."""
        return [
            {
                "alarm": name,
                "since": _moment(alarm.since),
                "since_ms": round(alarm.since * 1000),
                "text": alarm.reason.text,
                "page": page(name),
                "can_be_seen_to": name in _SEEN_TO or (name == "standby" and alarm.reason.key == "gone"),
            }
            for name, alarm in self.raised.items()
        ]

    def clock_jumps(self) -> dict[str, int]:
        """Return the number of clock jumps by direction."""
        row = self._own.read()
        return {direction: row[f"clock_jumps_{direction}"] for direction in ("forward", "back")}

    def obstacles(self) -> Iterator[str]:
        """Yield the texts of raised alarms that make the broker not ready."""
        if "memory" in self.raised and self._own.read()["memory_refuses"]:
            yield self.raised["memory"].reason.text


class LateRow(TypedDict):
    """A row of the questions for late exports and late replication; only the latter has the last two."""

    topic: str
    since_ms: int
    remote: NotRequired[str]
    is_connected: NotRequired[bool]


class Late:
    """Topics, or cursors, whose oldest message has waited too long, as they were at the last look."""

    def __init__(self, question: type[ListUnexported | ListUnreplicated], look_seconds: int) -> None:
        self._question, self._look_seconds = question, look_seconds
        self.bound_s = 0                             # of the age of such a message; 0: none is too old
        self.oldest: LateRow | None = None           # the row with the oldest message
        self.count = 0                               # of topics or cursors with a message that is too old

    def __repr__(self) -> str:
        return f"<Late {self._question.__name__} count={self.count} oldest={self.oldest}>"

    async def watch(self, owners: Owners) -> None:
        """Look for messages that wait too long, for ever."""
        while True:
            await self.look(owners)
            await asyncio.sleep(min(self._look_seconds, self.bound_s or self._look_seconds))

    async def look(self, owners: Owners) -> None:
        """Ask all owners.  If one does not answer, the last look holds until the next one."""
        listings: list[Listing] = []
        if self.bound_s:
            question = self._question(before_ms=time.time_ns() // 1_000_000 - 1_000 * self.bound_s, most=1)
            try:
                for index in range(owners.count):
                    listings.append(await whole_listing(owners, index, question))
            except Refusal:
                return
        self.count = sum(listing.total for listing in listings)
        rows: list[LateRow] = [cast("LateRow", row) for listing in listings for row in listing.rows]
        self.oldest = min(rows, key=lambda row: row["since_ms"], default=None)


def _damages(rows: Rows) -> int:
    return sum(row["damage_found"] + row["acks_of_damaged"] for row in rows.values())


def _sync_failures(rows: Rows) -> int:
    return sum(row["syncs_failed"] for row in rows.values())


def _jumps(rows: Rows) -> int:
    return sum(row["clock_jumps_forward"] + row["clock_jumps_back"] for row in rows.values())


# Alarms that an operator acknowledges -> (counter of acknowledged ones, number so far).
_SEEN_TO = {"damage": ("damage_seen", _damages), "sync": ("syncs_seen", _sync_failures),
            "clock": ("clock_jumps_seen", _jumps)}


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")


def _changed(path: Path) -> float:
    """Return the time of a file's last change, as Unix time; 0 if the file does not exist."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def page(name: str) -> str:
    """Return the path of the alarm's runbook page on this host."""
    paths = [folder / f"{name}.md" for folder in _PAGES]
    return str(next((path for path in paths if path.exists()), paths[-1]))


ALARMS_OF = web.AppKey("alarms", Alarms)
