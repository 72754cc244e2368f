"""`geminga undelete`: deleted topics and cleared backlogs that a policy keeps, taken back."""
from typing import Any

import click

from geminga.storage.runtime.units import instant
from geminga.supervisor.cli import grammar, output
from geminga.supervisor.cli.output import Column, Failed, Output
from geminga.supervisor.configuration import target
from geminga.supervisor.wording import human
from geminga.supervisor.wording.human import short
from geminga.workers.pulsar_client.rest import WRONG_USAGE, Broker, namespace_path, plain, topic_path

_PATH = "/ops/v1/deleted"
_COLUMNS = (Column("id", "id", str, is_number=True), Column("topic", shown=short),
            Column("subscription", shown=lambda name: name or ""),
            Column("partitions", "parts", human.count, is_number=True), Column("deleted_ms", "deleted", instant),
            Column("until_ms", "kept until", instant), Column("bytes", "size", human.size, is_number=True),
            Column("messages", shown=lambda count: "" if count is None else human.count(count), is_number=True))
_ID = click.option("--id", "number", type=click.IntRange(1), metavar="N", show_default="the last one",
                   help="Which of several deletions or clears, as `geminga undelete list` shows it.")


@click.group(cls=grammar.Group)
def undelete() -> None:
    """Take deleted topics and cleared backlogs back.

    The policy deletedRetention of a namespace or topic says for how long they are kept.
    """


@undelete.command("list", epilog="\b\nExamples:\n  geminga undelete list\n  geminga undelete list public/default\n\n"
                                 + grammar.STATUS)
@click.argument("namespace", required=False)
@target.admin_options
@output.options
def list_(namespace: str | None, form: str, watch_s: float | None, **who: Any) -> None:
    """List deleted topics and cleared backlogs that can be taken back, with their size."""
    try:
        path = _PATH if namespace is None else f"{_PATH}/{namespace_path(namespace)}"
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    broker, shown = target.of(who).broker(), Output(form, watch_s)
    shown.repeat(lambda: shown.rows(broker.ask("GET", path).value(), _COLUMNS))


@undelete.command(epilog="\b\nExample:\n  geminga undelete topic orders\n\n" + grammar.STATUS)
@click.argument("deleted", metavar="TOPIC")
@_ID
@output.FORM
@target.admin_options
def topic(deleted: str, number: int | None, form: str, **who: Any) -> None:
    """Take a deleted topic back, with its messages, subscriptions, policies and schemas."""
    broker = target.of(who).broker()
    one = broker.ask("POST", f"{_place(broker, deleted, None, number)}/undelete").value()
    Output(form).value(one, lambda one: f"{plain(one['topic'])} is there again")


@undelete.command(epilog="\b\nExample:\n  geminga undelete backlog orders billing\n\n" + grammar.STATUS)
@click.argument("cleared", metavar="TOPIC")
@click.argument("subscription")
@_ID
@output.FORM
@target.admin_options
def backlog(cleared: str, subscription: str, number: int | None, form: str, **who: Any) -> None:
    """Take a subscription's cleared backlog back: what it had not acknowledged.

    The subscription's consumers reconnect.  What came since stays as it is.
    """
    broker = target.of(who).broker()
    one = broker.ask("POST", f"{_place(broker, cleared, subscription, number)}/undelete").value()
    are = "message is" if one["messages"] == 1 else "messages are"
    Output(form).value(one, lambda one: f"{human.count(one['messages'])} {are} there again for "
                                        f"{plain(one['subscription'])}")


@undelete.command(epilog="\b\nExamples:\n  geminga undelete discard orders --id 3\n"
                         "  geminga undelete discard orders billing\n\n" + grammar.STATUS)
@click.argument("deleted", metavar="TOPIC")
@click.argument("subscription", required=False)
@_ID
@output.FORM
@target.admin_options
def discard(deleted: str, subscription: str | None, number: int | None, form: str, **who: Any) -> None:
    """Delete a topic, or a cleared backlog, for good that could be taken back."""
    broker = target.of(who).broker()
    broker.ask("DELETE", _place(broker, deleted, subscription, number))
    Output(form).value({"topic": deleted, "subscription": subscription, "state": "given up"}, lambda _: "")


def _place(broker: Broker, topic: str, subscription: str | None, number: int | None) -> str:
    """Return the path of a deletion of a topic, or a clear of a subscription, the last one by default.

    A name without a domain is that of a scalable topic, too.  Raises Failed, UsageError.
    """
    try:
        path = topic_path(topic)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    paths = [path] if "://" in topic else [path, "topic/" + path.partition("/")[2]]
    place, found = "/".join([_PATH, *path.split("/")[1:3]]), []
    for one in broker.ask("GET", place).value():
        if topic_path(one["topic"]) in paths and one["subscription"] == subscription and number in (None, one["id"]):
            found.append(one["id"])
    if not found:
        what = f"deletion of {plain(topic)}" if subscription is None else \
            f"cleared backlog of {plain(subscription)} of {plain(topic)}"
        which = "" if number is None else f" with id {number}"
        raise Failed(WRONG_USAGE, f"no {what}{which} is kept; see geminga undelete list")
    return f"{place}/{found[-1]}"
