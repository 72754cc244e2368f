"""`geminga status`, `geminga log`, `geminga tune`: a broker as its operator sees it."""
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
    """What a broker tells in its log."""


@log.command()
@click.argument("level", type=click.Choice(["error", "warning", "info", "debug"]), required=False)
@click.option("--topic", metavar="NAME", default="", help="only what is about this topic and its partitions")
@click.option("--client", metavar="ADDRESS", default="", help="only what is about this client: HOST, or HOST:PORT")
@click.option("--for", "length", metavar="TIME", default="5m", show_default=True, help="after which what was configured holds again")
@click.option("--reset", is_flag=True, help="what was configured holds again, now")
@_url
@credentials.options
def level(level: str | None, topic: str, client: str, length: str, reset: bool, http_url: str, **who: Any) -> None:
    """Show how much is told, or change it for a while: of all, of a topic, of a client."""
    broker = Broker(http_url, credentials=credentials.of(**who))
    if reset:
        found = broker.ask("DELETE", "/ops/v1/log-level").value()
    elif level is None:
        if topic or client:
            raise click.UsageError("--topic and --client need a level")
        found = broker.ask("GET", "/ops/v1/log-level").value()
    else:
        try:
            body = {"level": level, "topic": topic, "client": client, "seconds": millis(length) / 1000}
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--for") from None
        found = broker.ask("PUT", "/ops/v1/log-level", body=body).value()
    print(f"{found['level']} is configured")
    for rule in found["for_now"]:
        print(f"{rule['level']} for another {rule['seconds_left']:.0f} s, {_about(rule)}")


def _about(rule: dict[str, Any]) -> str:
    return "of " + (" and ".join(f"{what} {rule[what]}" for what in ("topic", "client") if rule[what]) or "everything")


@click.command(epilog="Exit status: 0 all is well; 1 there are alarms, or it is not ready; 2 wrong usage, or it refuses to tell; 3 not "
                      "reachable.")
@click.option("--json", "is_json", is_flag=True, help="print the broker's answer as it came")
@click.option("--seen", metavar="ALARM", help="say that you have seen to what this alarm is about, which stays until then")
@_url
@credentials.options
def status(is_json: bool, seen: str | None, http_url: str, **who: Any) -> int:
    """Show how a broker is: processes, load, disk, the last night, alarms."""
    broker = Broker(http_url, credentials=credentials.of(**who))
    try:
        if seen:
            broker.ask("POST", f"/ops/v1/alarms/{quoted(seen)}/seen")
        answer = broker.ask("GET", "/ops/v1/status")
    except Refused as refused:
        print(f"geminga: {refused}", file=sys.stderr)
        return 2
    found = answer.value()
    print(answer.body.decode() if is_json else "\n".join(_shown(found)))
    return int(bool(found["alarms"]) or not found["ready"])


def _shown(found: dict[str, Any]) -> Iterator[str]:
    loaded, rates, topics = found["loaded"], found["rates"], found["topics"]
    yield f"Geminga {found['version']}, up {_length(found['uptime_seconds'])}, {'ready' if found['ready'] else 'not ready'}"
    for obstacle in found["obstacles"]:
        yield f"  {plain(obstacle)}"
    for alarm in found["alarms"]:
        yield f"ALARM {alarm['alarm']} since {alarm['since']}: {plain(alarm['text'])}"
        yield f"  what to do: {alarm['page']}" + (f"; then geminga status --seen {alarm['alarm']}" if alarm["can_be_seen_to"] else "")
    for process in found["processes"]:
        again = f"  started again {process['started_again']} times" if process["started_again"] else ""
        yield f"  {process['process']:<11} pid {process['pid']:<8} {process['state']:<10} " \
              f"{_size(process['memory_bytes']):>9}  up {_length(process['uptime_seconds'])}{again}"
    yield f"  topics      {topics['stored']:,}, of which {topics['loaded']:,} are loaded, with {loaded['subscriptions']:,} subscriptions"
    yield f"  clients     {found['connections']:,} connections, {loaded['producers']:,} producers, {loaded['consumers']:,} consumers"
    yield f"  rates       in {rates['messages_in']:,.0f} messages/s, {_size(rates['bytes_in'])}/s; " \
          f"out {rates['messages_out']:,.0f} messages/s, {_size(rates['bytes_out'])}/s"
    missing = found["topics_not_loaded"]
    unknown = f"unknown, as {missing:,} of {topics['stored']:,} topics are not loaded; of the others " if missing else ""
    yield f"  backlog     {unknown}{loaded['backlog_entries']:,} entries; {_size(loaded['stored_bytes'])} are stored"
    yield f"  disk        {_size(found['disk']['free_bytes'])} of {_size(found['disk']['bytes'])} are free at {found['data_dir']}"
    memory, night = found["memory"], found["night"]
    yield f"  memory      {_size(memory['used_bytes'])} of {_size(memory['limit_bytes'])} are used ({memory['of']})"
    yield "  last night  " + ("there was none" if night is None else f"{night['status']}, ended {instant(night['ended_ms'])} after "
                              f"{night['seconds']:.1f} s: {night['compacted']} topics compacted, {_size(night['given_back'])} given back")
    for rule in found["log"]["for_now"]:
        yield f"  log         {rule['level']} for another {rule['seconds_left']:.0f} s {_about(rule)}"
    for index in found["not_measured"]:
        yield f"  owner {index} did not answer in time: its topics are left out"


def _length(seconds: float) -> str:
    parts = [(int(seconds) // 86_400, "d"), (int(seconds) // 3600 % 24, "h"), (int(seconds) // 60 % 60, "min"), (int(seconds) % 60, "s")]
    first = next((at for at, (count, _) in enumerate(parts) if count), 3)
    return " ".join(f"{count} {unit}" for count, unit in parts[first:first + 2])


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.1f} {unit}"


@click.command(epilog="Exit status: 0 nothing matters, or --check was not asked for; 1 something matters; 2 wrong usage.")
@click.option("--check", is_flag=True, help="print only what makes the broker fail, lose data, or slow by a multiple")
@click.option("--config", metavar="FILE", help="the broker's: TOML, or Pulsar's broker.conf")
@click.option("--data-dir", metavar="DIR", help="the broker's (default: ./data, or the installed broker's)")
@click.option("--pid", type=int, help="look at the limits of this process, as that of systemctl show -P MainPID geminga (default: at those "
              "of this shell)")
@click.option("--json", "is_json", is_flag=True, help="print an object a line")
def tune(check: bool, config: str | None, data_dir: str | None, pid: int | None, is_json: bool) -> int:
    """Look at what of this host bounds a broker, or makes it slow."""
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
    for look in host.looks(loaded, limits=limits):
        is_wrong = look.matters and not look.is_fine
        wrong += is_wrong
        if is_json and (is_wrong or not check):
            print(json.dumps(look._asdict()))
        elif is_wrong or not check:
            print(f"{'fine   ' if look.is_fine else 'MATTERS' if is_wrong else 'better '} {look.name}: {look.found}")
            if not look.is_fine:
                print(f"          wanted   {look.wanted}\n          because  {look.why}\n          command  {look.command}")
    return int(check and wrong > 0)
