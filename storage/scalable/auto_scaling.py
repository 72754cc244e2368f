"""Decisions to split and merge segments of a scalable topic, or to give them more buckets, by what they carry.

Three causes are looked at, in this order, and at most one change is decided at a time:

    consumers    the largest stream subscription has more consumers than there are segments, or buckets, to share
    load         a segment carries more than a rate of the policy allows, or fills its owner while another has time
    quiet        two neighbours have carried little for the whole window of the policy

A rate that splits is above the one below which segments merge, so a segment that was just merged is not split at once,
and halves of one that was split for its owner are not quiet.
The functions have no clock and keep nothing.
"""
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from geminga.proto.layouts import SEGMENTS_MAX, Layout, Segment
from geminga.storage.catalogue.policy_declaration import Policy
from geminga.storage.catalogue.policy_table import TABLE
from geminga.storage.catalogue.policy_values import OutOfRange

PREFIX = "scale_"                  # of the keys of StorageOptions that are the policy's defaults
DECLARATION: Policy = TABLE["scalableTopicAutoScale"]
_JSON = {part.key.removeprefix(PREFIX): part.json for part in DECLARATION.parts}      # field of ScalePolicy -> JSON's
_BUSY = 0.8                       # part of a core: an owner has one thread for all its topics
_RATES = "messages_in", "bytes_in", "messages_out", "bytes_out"


class ScalePolicy(NamedTuple):
    """The policy in force for a topic; each field is a key of StorageOptions without its prefix, in that key's unit."""

    automatically: bool
    segments_max: int
    segments_min: int
    merges_max: int
    split_cooldown_s: int
    merge_cooldown_s: int
    merge_window_s: int
    rebucket_cooldown_s: int
    split_for_consumers_messages: float
    split_messages_in: float
    split_bytes_in: float
    split_messages_out: float
    split_bytes_out: float
    merge_messages_in: float
    merge_bytes_in: float
    merge_messages_out: float
    merge_bytes_out: float
    buckets_max: int


def policy_of(values: Mapping[str, float]) -> ScalePolicy:
    """Return the policy of its values in JSON, all of which are set."""
    return ScalePolicy(**{field: values[json] for field, json in _JSON.items()})  # type: ignore[arg-type]


def refuse_contradiction(policy: ScalePolicy) -> None:
    """Raise OutOfRange, with Pulsar's text, if values of a policy contradict each other or themselves."""
    lowest = {"segments_min": 1, "merges_max": 0, "split_cooldown_s": 0, "merge_cooldown_s": 0, "merge_window_s": 0,
              "rebucket_cooldown_s": 0, "split_for_consumers_messages": 0, "buckets_max": 1,
              **dict.fromkeys((f"merge_{rate}" for rate in _RATES), 0)}
    for field, least in lowest.items():
        _demand(getattr(policy, field) >= least, f"{_JSON[field]} must be >= {least}")
    _demand(policy.segments_max >= policy.segments_min, "maxSegments must be >= minSegments")
    for rate in _RATES:
        split, merge = f"split_{rate}", f"merge_{rate}"
        _demand(getattr(policy, split) > 0, f"{_JSON[split]} must be > 0")
        _demand(getattr(policy, split) > getattr(policy, merge),
                f"{_JSON[split]} must be > {_JSON[merge]} (hysteresis)")


def _demand(holds: bool, text: str) -> None:
    if not holds:
        raise OutOfRange(f"Invalid auto split/merge configuration: {text}")


class Load(NamedTuple):
    """What a segment carries in a second, over all its subscriptions."""

    messages_in: float = 0.0
    bytes_in: float = 0.0
    messages_out: float = 0.0
    bytes_out: float = 0.0
    quiet_ms: int = 0              # for how long it has carried so little that it may be merged
    fills_owner: bool = False      # whether it carries the most of an owner that is busy while another is not


class Changes(NamedTuple):
    """When a topic was changed last, in ms since 1970, by anybody; 0: never."""

    split_ms: int = 0
    merge_ms: int = 0
    rebucket_ms: int = 0


class Split(NamedTuple):
    """The decision to split a segment."""

    segment: int
    reason: str


class Merge(NamedTuple):
    """The decision to merge two neighbours, the lower one first."""

    segment: int
    other: int
    reason: str


class Rebucket(NamedTuple):
    """The decision to give each of some segments a new number of entry buckets."""

    segments: tuple[int, ...]
    buckets: int
    reason: str


Decision = Split | Merge | Rebucket


def decide(layout: Layout, loads: Mapping[int, Load], consumers: int, policy: ScalePolicy, changes: Changes,
           now_ms: int) -> Decision | None:
    """Return the change that a topic needs now, None if it needs none.

    loads: of active segments, by number; a segment without an entry carries nothing, and is not known to be quiet.
    consumers: of the stream subscription that has the most.
    """
    if not policy.automatically:
        return None
    return (for_consumers(layout, loads, consumers, policy, changes, now_ms)
            or _for_load(layout, loads, policy, changes, now_ms)
            or _for_quiet(layout, loads, consumers, policy, changes, now_ms))


def is_quiet(load: Load, policy: ScalePolicy) -> bool:
    """Whether a segment carries so little that it may be merged."""
    return (load.messages_in < policy.merge_messages_in and load.bytes_in < policy.merge_bytes_in
            and load.messages_out < policy.merge_messages_out and load.bytes_out < policy.merge_bytes_out)


def for_consumers(layout: Layout, loads: Mapping[int, Load], consumers: int, policy: ScalePolicy, changes: Changes,
                  now_ms: int) -> Split | Rebucket | None:
    """Return the change that lets every consumer have a segment or a bucket, None if all have.

    The busiest segment is split if it carries enough to be worth a segment.  Otherwise all segments with fewer buckets
    than are wanted get as many at once, so that one change is enough however many consumers have come.
    """
    active = layout.active
    if not policy.automatically or consumers <= len(active):
        return None
    busiest = max(active, key=lambda segment: loads.get(segment.number, Load()).messages_in)
    rate = loads.get(busiest.number, Load()).messages_in
    if rate >= policy.split_for_consumers_messages and _may_split(layout, busiest, policy):
        return None if _is_recent(changes.split_ms, policy.split_cooldown_s, now_ms) else Split(
            busiest.number, "more consumers than segments")
    if consumers <= sum(map(_buckets, active)) or _is_recent(changes.rebucket_ms, policy.rebucket_cooldown_s, now_ms):
        return None
    wanted = min(1 << (-(-consumers // len(active)) - 1).bit_length(), policy.buckets_max)
    few = tuple(sorted(segment.number for segment in active if _buckets(segment) < wanted))
    if not few or len(layout.segments) + len(few) > SEGMENTS_MAX:
        return None
    return Rebucket(few, wanted, "more consumers than buckets")


def _for_load(layout: Layout, loads: Mapping[int, Load], policy: ScalePolicy, changes: Changes,
              now_ms: int) -> Split | None:
    """Return the split of the segment that is the furthest above a rate of the policy."""
    if _is_recent(changes.split_ms, policy.split_cooldown_s, now_ms):
        return None
    decision, highest = None, 1.0
    for segment in layout.active:
        load = loads.get(segment.number, Load())
        share, rate = max((load.messages_in / policy.split_messages_in, "messages in"),
                          (load.bytes_in / policy.split_bytes_in, "bytes in"),
                          (load.messages_out / policy.split_messages_out, "messages out"),
                          (load.bytes_out / policy.split_bytes_out, "bytes out"))
        if share > highest and _may_split(layout, segment, policy):
            decision, highest = Split(segment.number, rate), share
        elif (decision is None and load.fills_owner and _may_split(layout, segment, policy)
              and not is_quiet(_half(load), policy)):
            decision = Split(segment.number, "a busy owner")      # of the halves another owner has one
    return decision


def _half(load: Load) -> Load:
    return Load(load.messages_in / 2, load.bytes_in / 2, load.messages_out / 2, load.bytes_out / 2)


def owner_fillers(carried: Sequence[Mapping[str, float]], cores: Mapping[int, float]) -> set[str]:
    """Return the segment that carries the most of each owner that is busy while another one has time.

    carried: by owner, what each of its segments carries, in any unit, and its busiest other topic, which may be the one
    that is returned.  cores: by owner, the part of a core that it has
    used lately, of those of which it is known.
    """
    if min(cores.values(), default=_BUSY) > _BUSY / 2:
        return set()
    return {max(segments, key=segments.__getitem__) for index, segments in enumerate(carried)
            if segments and cores.get(index, 0.0) >= _BUSY}


def _for_quiet(layout: Layout, loads: Mapping[int, Load], consumers: int, policy: ScalePolicy, changes: Changes,
               now_ms: int) -> Merge | None:
    """Return the merge of the neighbours that together carry least, if both have long been quiet.

    A merge that would leave a consumer without a bucket that it uses now is not made: consumers get buckets back only
    by a further change.
    """
    active = sorted(layout.active, key=lambda segment: segment.first)
    if len(active) <= policy.segments_min or _is_recent(changes.merge_ms, policy.merge_cooldown_s, now_ms):
        return None
    if len(layout.segments) >= SEGMENTS_MAX:
        return None
    total = sum(map(_buckets, active))
    decision, lowest = None, float("inf")
    for low, high in pairwise(active):
        buckets = _buckets(low) + _buckets(high)
        left = total - buckets + min(buckets, policy.buckets_max)
        pair = [loads.get(segment.number) for segment in (low, high)]
        rate = sum(sum(load[:4]) for load in pair if load is not None)
        if (rate < lowest and left >= min(consumers, total)
                and all(load is not None and load.quiet_ms >= policy.merge_window_s * 1000 for load in pair)
                and max(merges(layout, low), merges(layout, high)) < policy.merges_max):
            decision, lowest = Merge(low.number, high.number, "both are quiet"), rate
    return decision


def merges(layout: Layout, segment: Segment) -> int:
    """Return the number of merges among a segment and its forebears that the layout still has."""
    by_number = {each.number: each for each in layout.segments}
    depths: dict[int, int] = {}
    for number in sorted(by_number):                 # parents have lower numbers than their children
        parents = by_number[number].parents
        depths[number] = max((depths.get(parent, 0) for parent in parents), default=0) + (len(parents) > 1)
    return depths[segment.number]


def _may_split(layout: Layout, segment: Segment, policy: ScalePolicy) -> bool:
    return (segment.last > segment.first and len(layout.active) < policy.segments_max
            and len(layout.segments) + 2 <= SEGMENTS_MAX)


def _buckets(segment: Segment) -> int:
    return len(segment.splits) + 1


def _is_recent(changed_ms: int, cooldown_s: int, now_ms: int) -> bool:
    """Whether a change was so short a time ago that another one has to wait; a clock that was set back counts not."""
    return 0 <= now_ms - changed_ms < cooldown_s * 1000
