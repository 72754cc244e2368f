"""`geminga why`: tells why a subscription's consumers get no more messages, and what can be done."""
from typing import Any

import click

from geminga.supervisor.cli import grammar, output
from geminga.supervisor.cli.completion import complete_subscription, complete_topic
from geminga.supervisor.cli.missing_names import Unknown
from geminga.supervisor.cli.output import Output
from geminga.supervisor.cli.views.places import Place, ask
from geminga.supervisor.configuration.similar_names import question
from geminga.supervisor.pulsar_client import target
from geminga.supervisor.pulsar_client.rest import Broker, Refused, plain, quoted, topic_path

_MANY = 100          # subscriptions of a topic that are asked about


@click.command(epilog="\b\nExamples:\n  geminga why orders billing\n  geminga why orders\n\n" + grammar.STATUS)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("subscription", required=False, shell_complete=complete_subscription)
@target.admin_options
@output.options
def why(topic: str, subscription: str | None, form: str, watch_s: float | None, **who: Any) -> int:
    """Tell why consumers get no more messages, and what to do.

    The sentences say what holds a subscription up, and who holds which messages.  Without SUBSCRIPTION, all
    subscriptions of the topic, and clusters to which it is replicated, are told in short.
    """
    from geminga.supervisor.wording import sentences
    if subscription == "":
        raise click.UsageError("SUBSCRIPTION is empty: omit it for all subscriptions of the topic")
    try:
        path = topic_path(topic)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    broker, shown, place = target.of(who).broker(), Output(form, watch_s), Place(topic, "/" + path, "")

    def show() -> None:
        if subscription is None:
            asked = [*names(broker, place), *cursors(broker, place)][:_MANY]
            each = [standstills(broker, place, name) for name in asked]
            shown.value(each, lambda told: "\n".join(sentences.lines_of_all(told, topic)))
        else:
            told = standstills(broker, place, subscription)
            shown.value(told, lambda told: "\n".join(sentences.tell(told, topic, subscription)))

    shown.repeat(show)
    return 0


def names(broker: Broker, place: Place) -> list[str]:
    """Return the names of a topic's subscriptions.  Raises Unknown, Refused, NotReachable."""
    told: list[str] = ask(broker, "GET", f"/admin/v2{place.path}/subscriptions", place)
    return sorted(told)


def cursors(broker: Broker, place: Place) -> list[str]:
    """Return the names of a topic's replication cursors.  Raises Unknown, Refused, NotReachable."""
    count = ask(broker, "GET", f"/admin/v2{place.path}/partitions", place)["partitions"]
    what = "partitioned-stats?perPartition=false" if count else "stats"
    told = ask(broker, "GET", f"/admin/v2{place.path}/{what}", place)
    # names.py knows their names, and loads protobuf, which takes longer than the rest of the command.
    return [f"pulsar.repl.{cluster}" for cluster, one in sorted(told["replication"].items())
            if "replicationBacklogSize" in one]      # the others only come from there


def standstills(broker: Broker, place: Place, subscription: str) -> list[dict[str, Any]]:
    """Return the broker's answer about a subscription: an object for each partition.

    Raises Unknown, Refused, NotReachable.
    """
    try:
        told: list[dict[str, Any]] = ask(broker, "GET", f"/ops/v1/why{place.path}/{quoted(subscription)}", place)
    except (Unknown, Refused) as error:
        known = names(broker, place)
        if subscription in known:
            raise
        text = f"{plain(place.text)} has no subscription {plain(subscription)}.{question(subscription, known)}"
        raise Unknown(text) from error
    return told
