"""`geminga schedule`: messages that a topic gets at planned times."""
import base64
import json
from typing import Any

import click

from geminga.storage.runtime import units
from geminga.supervisor.cli import grammar, output
from geminga.supervisor.cli.completion import complete_topic
from geminga.supervisor.cli.output import Column, Converted, Output
from geminga.supervisor.configuration import target
from geminga.supervisor.wording import human
from geminga.supervisor.wording.human import short
from geminga.workers.pulsar_client.rest import plain, quoted, topic_path

_PATH = "/ops/v1/schedules"
_COLUMNS = (Column("topic", shown=short), Column("name"), Column("when"), Column("next"), Column("last"),
            Column("published", "published", human.count, is_number=True),
            Column("dropped", "dropped", human.count, is_number=True), Column("state"))
_TOPIC = click.argument("topic", shell_complete=complete_topic)
_NAME = click.argument("name", metavar="SCHEDULE")
_FILE = click.Path(exists=True, dir_okay=False, readable=True)


@click.group(cls=grammar.Group)
def schedule() -> None:
    """Have a topic get messages at planned times.

    The broker publishes each planned time exactly once, over restarts and kills.
    """


def _path(topic: str, name: str | None = None, verb: str = "") -> str:
    try:
        path = f"{_PATH}/{topic_path(topic)}"
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return path + ("" if name is None else f"/{quoted(name)}") + verb


def _row(one: dict[str, Any]) -> dict[str, Any]:
    """Return a schedule as a row of the table."""
    state = "paused" if one["paused"] else f"waits: {one['waiting']}" if one["waiting"] else "active"
    return one | {"when": human.schedule(one), "next": one["next"][0] if one["next"] else "-",
                  "last": one["last"] or "-", "state": state}


def _as_text(one: dict[str, Any]) -> str:
    row = _row(one | {"waiting": one.get("waiting"), "last": one.get("last")})
    missed = f"{one['missed']} {one['at_most']}" if "at_most" in one else one["missed"]
    lines = [f"{plain(one['topic'])} {plain(one['name'])}: {plain(row['when'])}, {plain(row['state'])}",
             f"  partition  {plain(one['partition'])}", f"  missed     {missed}",
             f"  message    {plain(json.dumps(one['message'], ensure_ascii=False))}"]
    if "published" in one:
        lines.append(f"  last       {row['last']}; since its owner's start {one['published']:,} published, "
                     f"{one['dropped']:,} dropped")
    return "\n".join([*lines, *(f"  next       {time}" for time in one["next"])])


@schedule.command("list", epilog="\b\nExamples:\n  geminga schedule list\n  geminga schedule list orders\n\n"
                                 + grammar.STATUS)
@click.argument("topic", required=False, shell_complete=complete_topic)
@target.admin_options
@output.options
def list_(topic: str | None, form: str, watch_s: float | None, **who: Any) -> None:
    """List the schedules of a topic, or of the broker."""
    broker, shown = target.of(who).broker(), Output(form, watch_s)
    path = _PATH if topic is None else _path(topic)

    def show() -> None:
        rows = broker.ask("GET", path).value()
        shown.rows(map(_row, rows) if form == "table" else rows, _COLUMNS)

    shown.repeat(show)


@schedule.command(epilog="\b\nExample:\n  geminga schedule show orders close-of-day --next 10\n\n" + grammar.STATUS)
@_TOPIC
@_NAME
@click.option("--next", "-n", "count", type=click.IntRange(0, 100), default=5, show_default=True, metavar="N",
              help="Show so many planned times.")
@output.FORM
@target.admin_options
def show(topic: str, name: str, count: int, form: str, **who: Any) -> None:
    """Show a schedule with its next planned times."""
    answer = target.of(who).broker().ask("GET", _path(topic, name), {"next": count}).value()
    Output(form).value(answer, _as_text)


@schedule.command("set", epilog="""\b
Examples:
  geminga schedule set orders close-of-day --cron '0 18 * * MON-FRI' --time-zone Europe/Berlin close
  geminga schedule set jobs clean --every 10m --key clean '{"what": "cache"}' --dry-run
  geminga schedule set meters poll --every 1s --missed none poll

""" + grammar.STATUS)
@_TOPIC
@_NAME
@click.argument("payload", required=False)
@click.option("--cron", metavar="FIELDS", help="Minute, hour, day of the month, month and day of the week, as cron "
                                               "has them.")
@click.option("--time-zone", metavar="ZONE", help="Time zone of --cron, such as Europe/Berlin.", show_default="UTC")
@click.option("--every", type=Converted("time", units.millis), metavar="TIME", help="Publish so often, such as 90s.")
@click.option("--missed", type=click.Choice(["last", "all", "none"]), default="last", show_default=True,
              help="Which of the times are published that pass while the broker is down, or the topic takes nothing.")
@click.option("--at-most", type=click.IntRange(1, 1_000), metavar="N", show_default="100",
              help="With --missed all: only the last N of them.")
@click.option("--paused", is_flag=True, help="Publish nothing until it is resumed.")
@click.option("--key", "-k", metavar="TEXT", help="Key of the message.")
@click.option("--property", "-p", "properties", multiple=True, metavar="NAME=VALUE",
              help="Property of the message; repeatable.")
@click.option("--value", metavar="JSON", help="The message as JSON, which the topic's newest schema encodes.")
@click.option("--payload-file", "file", type=_FILE, metavar="PATH", help="The message's payload is this file.")
@click.option("--dry-run", is_flag=True, help="Only check the schedule, and show its next times.")
@output.FORM
@target.admin_options
def set_(topic: str, name: str, payload: str | None, cron: str | None, time_zone: str | None, every: int | None,
         missed: str, at_most: int | None, *, paused: bool, key: str | None, properties: tuple[str, ...],
         value: str | None, file: str | None, dry_run: bool, form: str, **who: Any) -> None:
    """Make or change a schedule, and show its next times."""
    if (cron is None) == (every is None):
        raise click.UsageError("--cron or --every says when")
    if at_most is not None and missed != "all":
        raise click.UsageError("--at-most goes with --missed all")
    body = {"cron": cron, "time_zone": time_zone, "every": every, "missed": missed, "at_most": at_most,
            "paused": paused, "message": _message(payload, value, file, key, properties)}
    query = {"dry-run": "true"} if dry_run else None
    answer = target.of(who).broker().ask(
        "PUT", _path(topic, name), query, {name: one for name, one in body.items() if one is not None}).value()
    Output(form).value(answer, _as_text)


def _message(payload: str | None, value: str | None, file: str | None, key: str | None,
             properties: tuple[str, ...]) -> dict[str, Any]:
    """Return a message as the broker takes it.  Raises UsageError."""
    if sum(one is not None for one in (payload, value, file)) != 1:
        raise click.UsageError("PAYLOAD, --value or --payload-file says what is published")
    message: dict[str, Any] = {}
    if payload is not None:
        message["payload"] = payload
    elif value is not None:
        try:
            message["value"] = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise click.BadParameter(f"it is no JSON: {error}", param_hint="--value") from None
    elif file is not None:
        with open(file, "rb") as opened:
            message["payloadBase64"] = base64.b64encode(opened.read()).decode()
    if key is not None:
        message["key"] = key
    for pair in properties:
        if "=" not in pair:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--property")
    if properties:
        message["properties"] = {pair.partition("=")[0]: pair.partition("=")[2] for pair in properties}
    return message


def _change(method: str, topic: str, name: str, rest: str, state: str, form: str, who: dict[str, Any]) -> None:
    """Ask the broker to change a schedule, and print the state that it has then."""
    target.of(who).broker().ask(method, _path(topic, name, rest))
    Output(form).value({"topic": topic, "name": name, "state": state}, lambda _: "")


@schedule.command(epilog=grammar.STATUS)
@_TOPIC
@_NAME
@output.FORM
@target.admin_options
def pause(topic: str, name: str, form: str, **who: Any) -> None:
    """Pause a schedule: times that pass meanwhile are not planned."""
    _change("POST", topic, name, "/pause", "paused", form, who)


@schedule.command(epilog=grammar.STATUS)
@_TOPIC
@_NAME
@output.FORM
@target.admin_options
def resume(topic: str, name: str, form: str, **who: Any) -> None:
    """Let a paused schedule go on from now."""
    _change("POST", topic, name, "/resume", "active", form, who)


@schedule.command(epilog=grammar.STATUS)
@_TOPIC
@_NAME
@output.FORM
@target.admin_options
def run(topic: str, name: str, form: str, **who: Any) -> None:
    """Publish a schedule's message now, beside its planned times, and print its id."""
    answer = target.of(who).broker().ask("POST", _path(topic, name, "/run")).value()
    Output(form).value(answer, lambda answer: answer["id"] or "")


@schedule.command(epilog=grammar.STATUS)
@_TOPIC
@_NAME
@output.FORM
@target.admin_options
def delete(topic: str, name: str, form: str, **who: Any) -> None:
    """Delete a schedule; its messages stay."""
    _change("DELETE", topic, name, "", "deleted", form, who)
