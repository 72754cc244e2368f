"""Checks of values of a policy that belong together; each also completes the value that is to be stored.

They raise Invalid, or OutOfRange.
"""
import re
from typing import Any

from geminga.storage.catalogue.policy_values import (
    DELETE_MODES,
    LONG_MAX,
    MIB,
    PARTITIONS_MAX,
    QUOTA_ACTIONS,
    Invalid,
    OutOfRange,
)

_LOCAL_NAME_MAX = 4_096             # characters of a topic's name; arbitrary
_DRIVERS = ("S3", "aws-s3", "google-cloud-storage", "filesystem", "azureblob", "aliyun-oss")


def retention(kept: dict[str, int]) -> None:
    minutes, mib = kept["retentionTimeInMinutes"], kept["retentionSizeInMB"]
    if minutes < -1:
        raise Invalid("Invalid retention policy: time limit must be >= -1")
    if mib < -1:
        raise Invalid("Invalid retention policy: size limit must be >= -1")
    if (minutes == 0) != (mib == 0):
        raise Invalid("Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the"
                      " limits has a non-zero value. Use the value of -1 instead of 0 to ignore a specific limit. To"
                      " disable retention both limits must be set to 0.")
    if mib > LONG_MAX // MIB:
        raise Invalid("Invalid retention policy: the size limit is too large")


def dead_letters(kept: dict[str, Any]) -> None:
    """Require dead letters to have a cause, and their topic a local name: letters stay within the namespace."""
    from geminga.proto import names  # the command imports this file at its start, and seldom needs the protocol

    name, keeper = kept.get("deadLetterTopic"), kept.get("initialSubscriptionName", "-")
    if not keeper.strip() or names.is_reserved_subscription(keeper):
        raise Invalid("initialSubscriptionName is blank, or a name that the broker keeps for itself")
    if not (kept["maxRedeliverCount"] or kept["expired"]):
        raise Invalid("Dead letters need a maxRedeliverCount of 1 or more, or expired")
    if name is not None and names.is_reserved(name):
        raise Invalid(f"deadLetterTopic: {name[:80]} is a topic of the broker's own")
    if name is not None and (not name.strip() or "/" in name or len(name) > _LOCAL_NAME_MAX or not name.isprintable()
                             or re.search(r"-partition-[0-9]+$", name)):
        raise Invalid("deadLetterTopic is the name of a topic in the same namespace, without the namespace and without"
                      " a partition")


def quota(kept: dict[str, Any]) -> None:
    """Require a backlog quota to have an action, and store its size under both names, `limit` and `limitSize`."""
    if "policy" not in kept:
        raise Invalid(f"The backlog quota's policy is one of {', '.join(QUOTA_ACTIONS)}")
    kept["limit"] = kept["limitSize"] = kept.get("limitSize", kept.get("limit", 0))


def size_quota(kept: dict[str, Any]) -> None:
    """Require a size that something fits into; -1, which a quota without a size has too, is no bound."""
    if "limit" not in kept:
        kept.setdefault("limitSize", -1)
    quota(kept)
    if kept["limitSize"] == 0:
        raise Invalid("The backlog quota's limitSize is 0, which nothing fits into; -1 is no bound")


def inactive(kept: dict[str, Any]) -> None:
    if "inactiveTopicDeleteMode" not in kept:
        raise Invalid(f"inactiveTopicDeleteMode: expected one of {', '.join(DELETE_MODES)}")


def auto_creation(kept: dict[str, Any]) -> None:
    """Check the topic type and the number of partitions, if topics are created automatically."""
    if not kept["allowAutoTopicCreation"]:
        return
    kind: str = str(kept.get("topicType", "null")).lower()
    partitions: Any = kept.get("defaultNumPartitions")
    text = ""
    if kind not in ("partitioned", "non-partitioned"):
        text = f"Unknown topic type [{kept.get('topicType', 'null')}]"
    elif kind == "partitioned" and partitions is None:
        text = "[defaultNumPartitions] cannot be null when the type is partitioned."
    elif kind == "partitioned" and partitions <= 0:
        text = "[defaultNumPartitions] cannot be less than 1 for partition type."
    elif kind == "partitioned" and partitions > PARTITIONS_MAX:
        text = f"[defaultNumPartitions] cannot be more than {PARTITIONS_MAX}."
    elif kind == "non-partitioned" and partitions is not None:
        text = "[defaultNumPartitions] is not allowed to be set when the type is non-partition."
    if text:
        raise OutOfRange(f"Invalid configuration for autoTopicCreationOverride. the detail is {text}")


def delays(kept: dict[str, Any]) -> None:
    """Switch delayed delivery on when a fixed delay is set and `active` is not given."""
    kept.setdefault("active", bool(kept.get("fixedDeliveryDelayInMillis")))


def persistence(kept: dict[str, Any]) -> None:
    ensemble, write, ack = (
        kept[name] for name in ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum"))
    for name, value in (("Bookkeeper-Ensemble", ensemble), ("WriteQuorum", write), ("AckQuorum", ack)):
        if not 0 < value <= 5:
            raise Invalid(f"{name} must be <= 5 and > 0.")
    if not ensemble >= write >= ack:
        raise Invalid(f"Bookkeeper Ensemble ({ensemble}) >= WriteQuorum ({write}) >= AckQuorum ({ack})")


def entry_filters(kept: dict[str, Any]) -> None:
    name = kept.get("entryFilterNames", "").split(",")[0]
    raise Invalid(f"Entry filter '{name}' not found" if name else
                  "entryFilterNames can't be empty. To remove entry filters use the remove method.")


LABELLED = "allowedTopicPropertyKeysForMetrics"
LABEL = "[a-zA-Z_][a-zA-Z0-9_]*"       # the name of a label, as Prometheus reads it
# Labels that series have already; a second one of the name would make the whole scrape unreadable.
_OWN_LABELS = {"cluster", "namespace", "topic", "subscription", "consumer_name", "consumer_id", "producer_name",
               "producer_id", "remote_cluster", "quota_type", "reason", "state", "status", "type", "pulsar_cluster",
               "pulsar_namespace", "pulsar_topic", "instance", "job"}


def is_label(name: str) -> bool:
    """Whether a property of this name can be a label."""
    return re.fullmatch(LABEL, name) is not None and not name.startswith("__") and name not in _OWN_LABELS


def property_keys(kept: list[str]) -> None:
    for name in kept:
        if not re.fullmatch(LABEL, name):
            raise Invalid(f"Label name '{name}' is invalid: must match the regex {LABEL}")
        if not is_label(name):
            raise Invalid(f"Label name '{name}' is one that metrics have already, or that Prometheus keeps for itself")


def offload(kept: dict[str, Any]) -> None:
    if kept.get("managedLedgerOffloadDriver") not in _DRIVERS:
        raise OutOfRange(f"The driver is not supported, support value: {','.join(_DRIVERS)}")
