"""Policies: what operators set for a namespace or a topic, and what holds for a partition because of it.

A topic's policy is stronger than its namespace's, and that than the broker's own (StorageOptions).  What was set lies in the
catalogue under its name, as clients send it (`Known.read`); `Policies` is what an owner works with.  A policy more is a line of KNOWN.
"""
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from geminga.proto.names import TopicName
from geminga.storage.catalogue import Catalogue
from geminga.storage.options import StorageOptions

HOLD, EXCEPTION, EVICTION = QUOTA_ACTIONS = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")
NO_LIMIT = -1
_INT_MAX, _LONG_MAX = (1 << 31) - 1, (1 << 63) - 1
_MIB = 1 << 20
_ONE_IS_ZERO = ("Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the limits has a non-zero "
                "value. Use the value of -1 instead of 0 to ignore a specific limit. To disable retention both limits must be set to 0.")


@dataclass(frozen=True, slots=True)
class Policies:
    """What holds for one partition."""

    retention_s: int = 0               # acknowledged ledgers are kept so long; NO_LIMIT: no bound of this kind
    retention_bytes: int = 0           # ... and while the partition is not larger than this; 0 in either: they are not kept
    message_ttl_s: int = 0             # messages that nobody acknowledges are kept so long; 0: for ever
    quota_bytes: int = NO_LIMIT        # of the backlog of the slowest durable subscription
    quota_bytes_action: str = HOLD     # what happens when it is that large
    quota_age_s: int = NO_LIMIT        # of the oldest message of the backlog
    quota_age_action: str = HOLD       # what happens when it is that old
    deduplication: bool = False

    @property
    def retains(self) -> bool:
        """Whether anything that is acknowledged is kept."""
        return self.retention_s != 0 and self.retention_bytes != 0

    @property
    def work_alone(self) -> bool:
        """Whether something happens because of them although nobody uses the partition."""
        return bool(self.message_ttl_s or self.retains or (self.quota_age_s > 0 and self.quota_age_action == EVICTION))

    @property
    def has_quota(self) -> bool:
        return self.quota_bytes >= 0 or self.quota_age_s > 0


class Known(NamedTuple):
    """A policy."""

    read: Callable[[Any], Any]                    # what a client sent -> what is kept; raises ValueError with its text
    fields: Callable[[Any], dict[str, Any]]       # what is kept -> fields of Policies
    shown: Callable[[Policies], Any]              # Policies -> what is kept, had somebody set just that


def broker_policies(options: StorageOptions) -> Policies:
    """What holds where nobody set anything."""
    return Policies(retention_s=options.retention_s, retention_bytes=options.retention_bytes, message_ttl_s=options.message_ttl_s,
                    quota_bytes=options.backlog_quota_bytes, quota_bytes_action=options.backlog_quota_policy,
                    quota_age_s=options.backlog_quota_age_s, quota_age_action=options.backlog_quota_policy,
                    deduplication=options.deduplication)


def policies_of(catalogue: Catalogue, topic: TopicName, options: StorageOptions) -> Policies:
    """What holds for that topic or partition now."""
    found = broker_policies(options)
    for scope in (topic.namespace, str(topic.base)):
        for name, value in catalogue.policies(scope).items():
            if name in KNOWN:
                found = replace(found, **KNOWN[name].fields(value))
    return found


def clash(kept: dict[str, Any]) -> bool:
    """Whether what is set in one scope does not go together: what is retained is to be more than what the quota lets be there."""
    retention = kept.get("retention", {"retentionSizeInMB": 0, "retentionTimeInMinutes": 0})
    bounds = ((BYTES_QUOTA, "limitSize", retention["retentionSizeInMB"] * _MIB),
              (AGE_QUOTA, "limitTime", retention["retentionTimeInMinutes"] * 60))
    return any(quota in kept and kept[quota][limit] >= bound > 0 for quota, limit, bound in bounds)


# -- reading

def _integer(value: Any, last: int = _INT_MAX) -> int:
    """A number; in quotes, as some clients send it."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("expected a whole number")
    try:
        value = int(value)
    except ValueError:
        raise ValueError("expected a whole number") from None
    if abs(value) > last:
        raise ValueError("the number is too large")
    return value


def _boolean(value: Any) -> bool:
    if value in (True, "true"):
        return True
    if value in (False, "false"):
        return False
    raise ValueError("expected true or false")


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("expected an object")
    return value


def _retention(value: Any) -> dict[str, int]:
    minutes = _integer(_object(value).get("retentionTimeInMinutes", 0))
    mib = _integer(value.get("retentionSizeInMB", 0), _LONG_MAX // _MIB)
    if minutes < NO_LIMIT:
        raise ValueError("Invalid retention policy: time limit must be >= -1")
    if mib < NO_LIMIT:
        raise ValueError("Invalid retention policy: size limit must be >= -1")
    if (minutes == 0) != (mib == 0):
        raise ValueError(_ONE_IS_ZERO)
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": mib}


def _ttl(value: Any) -> int:
    seconds = _integer(value)
    if seconds < 0:
        raise ValueError("Invalid value for message TTL, message TTL must >= 0")
    return seconds


def _quota(value: Any) -> dict[str, Any]:
    action = _object(value).get("policy")
    if action not in QUOTA_ACTIONS:
        raise ValueError(f"The backlog quota's policy is one of {', '.join(QUOTA_ACTIONS)}")
    size = value["limitSize"] if value.get("limitSize") is not None else value.get("limit")
    size, seconds = (0 if number is None else _integer(number, _LONG_MAX) for number in (size, value.get("limitTime")))
    return {"limit": size, "limitSize": size, "limitTime": seconds, "policy": action}


def _retention_fields(kept: dict[str, int]) -> dict[str, Any]:
    minutes, mib = kept["retentionTimeInMinutes"], kept["retentionSizeInMB"]
    return {"retention_s": minutes * 60 if minutes > 0 else minutes, "retention_bytes": mib * _MIB if mib > 0 else mib}


def _retention_shown(found: Policies) -> dict[str, int]:
    return {"retentionTimeInMinutes": -(-found.retention_s // 60) if found.retention_s > 0 else found.retention_s,
            "retentionSizeInMB": -(-found.retention_bytes // _MIB) if found.retention_bytes > 0 else found.retention_bytes}


def _quota_shown(size: int, seconds: int, action: str) -> dict[str, Any]:
    return {"limit": size, "limitSize": size, "limitTime": seconds, "policy": action}


QUOTAS = {"destination_storage": "backlogQuota/destination_storage", "message_age": "backlogQuota/message_age"}
BYTES_QUOTA, AGE_QUOTA = QUOTAS.values()
KNOWN = {
    "retention": Known(_retention, _retention_fields, _retention_shown),
    "messageTTL": Known(_ttl, lambda kept: {"message_ttl_s": kept}, lambda found: found.message_ttl_s),
    BYTES_QUOTA: Known(_quota, lambda kept: {"quota_bytes": kept["limitSize"], "quota_bytes_action": kept["policy"]},
                       lambda found: _quota_shown(found.quota_bytes, NO_LIMIT, found.quota_bytes_action)),
    AGE_QUOTA: Known(_quota, lambda kept: {"quota_age_s": kept["limitTime"], "quota_age_action": kept["policy"]},
                     lambda found: _quota_shown(NO_LIMIT, found.quota_age_s, found.quota_age_action)),
    "deduplication": Known(_boolean, lambda kept: {"deduplication": kept}, lambda found: found.deduplication),
}
