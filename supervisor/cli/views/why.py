"""`geminga why`: tells why a subscription's consumers get no more messages, and what can be done."""
from typing import TYPE_CHECKING, Any

import click

from geminga.storage.runtime.similar_names import question
from geminga.supervisor.cli import grammar, output
from geminga.supervisor.cli.completion import complete_subscription, complete_topic
from geminga.supervisor.cli.missing_names import Unknown
from geminga.supervisor.cli.output import Output
from geminga.supervisor.cli.views.scopes import Scope, ask
from geminga.supervisor.configuration import target
from geminga.workers.pulsar_client.rest import Broker, Refused, plain, quoted, topic_path

if TYPE_CHECKING:
    from geminga.supervisor.wording.sentences import Standstill

_SCALABLE = "/topic/"      # the beginning of a scalable topic's path
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
    broker, shown, scope = target.of(who).broker(), Output(form, watch_s), Scope(topic, "/" + path, "")

    def show() -> None:
        if subscription is None:
            asked = [*names(broker, scope), *cursors(broker, scope)][:_MANY]
            answers = [standstills(broker, scope, name) for name in asked]
            shown.value(answers, lambda answers: "\n".join(sentences.lines_of_all(answers, topic)))
        else:
            answer = standstills(broker, scope, subscription)
            shown.value(answer, lambda answer: "\n".join(sentences.tell(answer, topic, subscription)))

    shown.repeat(show)
    return 0


def names(broker: Broker, scope: Scope) -> list[str]:
    """Return the names of a topic's subscriptions.  Raises Unknown, Refused, NotReachable."""
    if scope.path.startswith(_SCALABLE):
        path = f"/admin/v2/scalable/{scope.path.removeprefix(_SCALABLE)}/stats"
        return sorted(ask(broker, "GET", path, scope)["subscriptions"])
    subscriptions: list[str] = ask(broker, "GET", f"/admin/v2{scope.path}/subscriptions", scope)
    return sorted(subscriptions)


def cursors(broker: Broker, scope: Scope) -> list[str]:
    """Return the names of a topic's replication cursors.  Raises Unknown, Refused, NotReachable."""
    if scope.path.startswith(_SCALABLE):
        return []
    count = ask(broker, "GET", f"/admin/v2{scope.path}/partitions", scope)["partitions"]
    what = "partitioned-stats?perPartition=false" if count else "stats"
    stats = ask(broker, "GET", f"/admin/v2{scope.path}/{what}", scope)
    # names.py knows their names, and loads protobuf, which takes longer than the rest of the command.
    return [f"pulsar.repl.{cluster}" for cluster, replicator in sorted(stats["replication"].items())
            if "replicationBacklogSize" in replicator]      # the others only come from there


def standstills(broker: Broker, scope: Scope, subscription: str) -> "list[Standstill]":
    """Return the broker's answer about a subscription: an object for each partition.

    Raises Unknown, Refused, NotReachable.
    """
    try:
        answer: list[Standstill] = ask(broker, "GET", f"/ops/v1/why{scope.path}/{quoted(subscription)}", scope)
    except (Unknown, Refused) as error:
        existing = names(broker, scope)
        if subscription in existing:
            raise
        text = f"{plain(scope.text)} has no subscription {plain(subscription)}.{question(subscription, existing)}"
        raise Unknown(text) from error
    return answer
