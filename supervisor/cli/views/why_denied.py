"""`geminga why-denied`: tells which grants a role lacks on a topic, and who could make them."""
import shlex
from typing import Any
from urllib.parse import urlencode

import click

from geminga.proto.json_object import JsonObject
from geminga.supervisor.cli import grammar, output
from geminga.supervisor.cli.completion import complete_subscription, complete_topic
from geminga.supervisor.cli.output import Output
from geminga.supervisor.cli.views.scopes import Scope, ask
from geminga.supervisor.configuration import target
from geminga.workers.pulsar_client.rest import plain, topic_path

_ACTIONS = ("produce", "consume")


@click.command("why-denied", epilog="\b\nExamples:\n  geminga why-denied billing-service orders\n"
               "  geminga why-denied joe orders --group writers -s billing\n\n" + grammar.STATUS)
@click.argument("role")
@click.argument("topic", shell_complete=complete_topic)
@click.option("--group", "-g", "groups", multiple=True, metavar="NAME",
              help="Group that the role's token lists; may be repeated.")
@click.option("--subscription", "-s", default="", metavar="NAME", shell_complete=complete_subscription,
              help="Subscription that it would consume from.")
@target.admin_options
@output.options
def why_denied(role: str, topic: str, groups: tuple[str, ...], subscription: str, form: str, watch_s: float | None,
               **who: Any) -> int:
    """Tell which grants a role lacks on a topic.

    For producing and consuming: whether ROLE may, by which grant, or else which grant is missing, who could make it,
    and the command for that.
    """
    if not role:
        raise click.UsageError("ROLE is empty")
    try:
        path = topic_path(topic)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    broker, shown, scope = target.of(who).broker(), Output(form, watch_s), Scope(topic, "/" + path, "")
    query = [("role", role), ("subscription", subscription), *(("group", group) for group in groups)]

    def answer(action: str) -> JsonObject:
        path = f"/ops/v1/can-i{scope.path}?{urlencode([*query, ('action', action)])}"
        told: JsonObject = ask(broker, "GET", path, scope)
        return {"action": action, "missing_grant": None, "could_grant": []} | told

    def show() -> None:
        shown.value([answer(action) for action in _ACTIONS],
                    lambda answers: "\n".join(line for one in answers for line in _told(one, role, topic)))

    shown.repeat(show)
    return 0


def _told(answer: JsonObject, role: str, topic: str) -> list[str]:
    """Return the lines about one action."""
    may = "may" if answer["allowed"] else "may not"
    lines = [f"{plain(role)} {may} {answer['action']} on {plain(topic)}: {plain(answer['why'])}."]
    if answer["missing_grant"]:
        kind = "scalable-topics" if topic.startswith("topic://") else "topics"
        command = shlex.join(["geminga", "admin", kind, "grant-permission", topic, "--role", role,
                              "--actions", answer["missing_grant"]])
        helpers = plain(" or ".join(answer["could_grant"])) or "only a user of the broker's host"
        lines.append(f"  {helpers} could grant it: {plain(command)}")
    return lines
