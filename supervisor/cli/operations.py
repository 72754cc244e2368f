"""`geminga status`, `geminga log` and `geminga tune`: a broker's state, its log levels, and settings of its host."""
import sys
from collections.abc import Iterator
from typing import Any

import click

from geminga.supervisor.cli import installed
from geminga.supervisor.configuration.units import instant, millis
from geminga.supervisor.pulsar_client import credentials
from geminga.supervisor.pulsar_client.rest import Broker, Refused, plain, quoted

_URL = "--http-url", "--admin-url"
_url = click.option(*_URL, default="http://127.0.0.1:8080", show_default=True)


@click.group()
def log() -> None:
    """Show or change the level of a broker's log."""


@log.command()
@click.argument("level", type=click.Choice(["error", "warning", "info", "debug"]), required=False)
@click.option("--topic", metavar="NAME", default="", help="only lines about this topic and its partitions")
@click.option("--client", metavar="ADDRESS", default="", help="only lines about this client: HOST, or HOST:PORT")
@click.option("--for", "length", metavar="TIME", default="5m", show_default=True,
              help="how long, until the configured level is in force again")
@click.option("--reset", is_flag=True, help="go back to the configured level now")
@_url
@credentials.options
def level(level: str | None, topic: str, client: str, length: str, reset: bool, http_url: str, **who: Any) -> None:
    """Show the log's level, or change it for a while: for all lines, for a topic, for a client."""
    broker = Broker(http_url, credentials=credentials.of(**who))
    if reset:
        levels = broker.ask("DELETE", "/ops/v1/log-level").value()
    elif level is None:
        if topic or client:
            raise click.UsageError("--topic and --client need a level")
        levels = broker.ask("GET", "/ops/v1/log-level").value()
    else:
        try:
            body = {"level": level, "topic": topic, "client": client, "seconds": millis(length) / 1000}
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--for") from None
        levels = broker.ask("PUT", "/ops/v1/log-level", body=body).value()
    print(f"{levels['level']} is configured")
    for rule in levels["for_now"]:
        print(f"{rule['level']} for another {rule['seconds_left']:.0f} s, {_about(rule)}")


def _about(rule: dict[str, Any]) -> str:
    return "of " + (" and ".join(f"{what} {rule[what]}" for what in ("topic", "client") if rule[what]) or "everything")


@click.command(epilog="Exit status: 0 all is well; 1 there are alarms, or the broker is not ready; 2 wrong usage, "
                      "or the broker refuses; 3 not reachable.")
@click.option("--json", "is_json", is_flag=True, help="print the broker's answer as it came")
@click.option("--seen", metavar="ALARM", help="end this alarm, because its cause is removed")
@_url
@credentials.options
def status(is_json: bool, seen: str | None, http_url: str, **who: Any) -> int:
    """Show the state of a broker: processes, load, disk, the last night, alarms."""
    broker = Broker(http_url, credentials=credentials.of(**who))
    try:
        if seen:
            broker.ask("POST", f"/ops/v1/alarms/{quoted(seen)}/seen")
        answer = broker.ask("GET", "/ops/v1/status")
    except Refused as refused:
        print(f"geminga: {refused}", file=sys.stderr)
        return 2
    state = answer.value()
    print(answer.body.decode() if is_json else "\n".join(_lines(state)))
    return int(bool(state["alarms"]) or not state["ready"])


def _lines(state: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that show a broker's state, from the answer of /ops/v1/status."""
    loaded, rates, topics = state["loaded"], state["rates"], state["topics"]
    readiness = "ready" if state["ready"] else "not ready"
    yield f"Geminga {state['version']}, up {_length(state['uptime_seconds'])}, {readiness}"
    for obstacle in state["obstacles"]:
        yield f"  {plain(obstacle)}"
    for alarm in state["alarms"]:
        yield f"ALARM {alarm['alarm']} since {alarm['since']}: {plain(alarm['text'])}"
        then = f"; then geminga status --seen {alarm['alarm']}" if alarm["can_be_seen_to"] else ""
        yield f"  what to do: {alarm['page']}{then}"
    for process in state["processes"]:
        again = f"  started again {process['started_again']} times" if process["started_again"] else ""
        yield f"  {process['process']:<11} pid {process['pid']:<8} {process['state']:<10} " \
              f"{_size(process['memory_bytes']):>9}  up {_length(process['uptime_seconds'])}{again}"
    yield f"  topics      {topics['stored']:,}, of which {topics['loaded']:,} are loaded, " \
          f"with {loaded['subscriptions']:,} subscriptions"
    yield f"  clients     {state['connections']:,} connections, {loaded['producers']:,} producers, " \
          f"{loaded['consumers']:,} consumers"
    yield f"  rates       in {rates['messages_in']:,.0f} messages/s, {_size(rates['bytes_in'])}/s; " \
          f"out {rates['messages_out']:,.0f} messages/s, {_size(rates['bytes_out'])}/s"
    missing = state["topics_not_loaded"]
    unknown = ""
    if missing:
        unknown = f"unknown, as {missing:,} of {topics['stored']:,} topics are not loaded; of the others "
    yield f"  backlog     {unknown}{loaded['backlog_entries']:,} entries; {_size(loaded['stored_bytes'])} are stored"
    disk = state["disk"]
    yield f"  disk        {_size(disk['free_bytes'])} of {_size(disk['bytes'])} are free at {state['data_dir']}"
    memory, night = state["memory"], state["night"]
    yield f"  memory      {_size(memory['used_bytes'])} of {_size(memory['limit_bytes'])} are used ({memory['of']})"
    yield "  last night  " + ("there was none" if night is None else
                              f"{night['status']}, ended {instant(night['ended_ms'])} after {night['seconds']:.1f} s: "
                              f"{night['compacted']} topics compacted, {_size(night['given_back'])} given back")
    for rule in state["log"]["for_now"]:
        yield f"  log         {rule['level']} for another {rule['seconds_left']:.0f} s {_about(rule)}"
    for index in state["not_measured"]:
        yield f"  owner {index} did not answer in time: its topics are left out"


def _length(seconds: float) -> str:
    parts = [(int(seconds) // 86_400, "d"), (int(seconds) // 3600 % 24, "h"), (int(seconds) // 60 % 60, "min"),
             (int(seconds) % 60, "s")]
    first = next((at for at, (count, _) in enumerate(parts) if count), 3)
    return " ".join(f"{count} {unit}" for count, unit in parts[first:first + 2])


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.1f} {unit}"


@click.command(epilog="Exit status: 0 nothing matters, or no --check; 1 something matters; 2 wrong usage.")
@click.option("--check", is_flag=True,
              help="print only settings that make the broker fail, lose data, or slow by a multiple")
@click.option("--config", metavar="FILE", help="the broker's: TOML, or Pulsar's broker.conf")
@click.option("--data-dir", metavar="DIR", help="the broker's (default: ./data, or the installed broker's)")
@click.option("--pid", type=int, help="check the limits of this process, such as that of systemctl show -P MainPID "
              "geminga (default: those of this shell)")
@click.option("--json", "is_json", is_flag=True, help="print an object a line")
def tune(check: bool, config: str | None, data_dir: str | None, pid: int | None, is_json: bool) -> int:
    """Check the settings of this host that bound a broker or make it slow."""
    import json
    import os

    from geminga.supervisor.configuration import config as configuration
    from geminga.supervisor.host import tune as host
    try:
        loaded, _ = configuration.load(installed.configuration(config, data_dir), os.environ, {"data_dir": data_dir})
        limits = None if pid is None else host.limits_of(pid)
    except (configuration.ConfigError, OSError) as error:
        print(f"geminga: {error}", file=sys.stderr)
        return 2
    wrong = 0
    for result in host.checks(loaded, limits=limits):
        is_wrong = result.matters and not result.is_fine
        wrong += is_wrong
        if is_json and (is_wrong or not check):
            print(json.dumps(result._asdict()))
        elif is_wrong or not check:
            verdict = "fine   " if result.is_fine else "MATTERS" if is_wrong else "better "
            print(f"{verdict} {result.name}: {result.found}")
            if not result.is_fine:
                print(f"          wanted   {result.wanted}\n          because  {result.why}\n"
                      f"          command  {result.command}")
    return int(check and wrong > 0)
