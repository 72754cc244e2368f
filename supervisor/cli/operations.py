"""`geminga status`, `geminga log` and `geminga tune`: a broker's state, its log levels, and settings of its host."""
from collections.abc import Iterator
from typing import Any

import click

from geminga.storage.runtime.units import instant, millis
from geminga.supervisor.cli import grammar, options, output
from geminga.supervisor.cli.completion import complete_topic
from geminga.supervisor.configuration import target
from geminga.supervisor.wording.human import length, night_progress, size
from geminga.workers.pulsar_client.rest import Broker, Refused, plain, quoted

_LEVEL_MAX_MS = 7 * 86_400_000      # the broker takes no longer time of another level


def _level_time_ms(text: str) -> int:
    if not 0 < (time_ms := millis(text)) <= _LEVEL_MAX_MS:
        raise ValueError(f"{text!r} is not a time of up to 7d")
    return time_ms


@click.group(cls=grammar.Group)
def log() -> None:
    """Show or change the level of a broker's log."""


@log.command(epilog="\b\nExamples:\n  geminga log level\n  geminga log level debug --topic orders --for 10m\n\n"
                    + grammar.STATUS)
@click.argument("level", type=click.Choice(["error", "warning", "info", "debug"]), required=False)
@click.option("--topic", metavar="NAME", default="", shell_complete=complete_topic,
              help="Only lines about this topic and its partitions.")
@click.option("--client", metavar="ADDRESS", default="", 
              help="Only lines about this client: HOST, or HOST:PORT.")
@click.option("--for", "duration_ms", type=output.Converted("time", _level_time_ms), metavar="TIME", default="5m",
              show_default=True,
              help="How long, until the configured level is in force again.")
@click.option("--reset", is_flag=True, help="Go back to the configured level now.")
@target.admin_options
@output.FORM
def level(level: str | None, topic: str, client: str, duration_ms: int, reset: bool, form: str, **who: Any) -> None:
    """Show the log's level, or change it for a while: for all lines, a topic, or a client."""
    broker = target.of(who).broker()
    if reset:
        levels = broker.ask("DELETE", "/ops/v1/log-level").value()
    elif level is None:
        if topic or client:
            raise click.UsageError("--topic and --client need a level")
        levels = broker.ask("GET", "/ops/v1/log-level").value()
    else:
        body = {"level": level, "topic": topic, "client": client, "seconds": duration_ms / 1_000}
        levels = broker.ask("PUT", "/ops/v1/log-level", body=body).value()
    output.Output(form).value(levels, lambda levels: "\n".join([f"{levels['level']} is configured", *(
        f"{rule['level']} for another {length(rule['seconds_left'])}, {_about(rule)}" for rule in levels["for_now"])]))


def _about(rule: dict[str, Any]) -> str:
    return "of " + (" and ".join(f"{what} {rule[what]}" for what in ("topic", "client") if rule[what]) or "everything")


@click.command(epilog="Exit status: 0 all is well; 1 there are alarms, or the broker is not ready; 2 wrong usage, "
                      "or the broker refuses; 3 not reachable.")
@click.option("--ready", "is_asked_ready", is_flag=True,
              help="Only tell whether the broker serves everything, for health checks; takes no credentials.")
@click.option("--seen", metavar="ALARM", help="End this alarm, because its cause is removed.")
@target.admin_options
@output.options
@output.json_flag("json")
def status(is_asked_ready: bool, seen: str | None, form: str, watch_s: float | None, **who: Any) -> int:
    """Show the state of a broker: load, disk, alarms."""
    broker, shown, state = target.of(who).broker(), output.Output(form, watch_s), {}
    if is_asked_ready:
        return _show_ready(broker)

    def show() -> None:
        state.update(broker.ask("GET", "/ops/v1/status").value())
        shown.value(state, lambda state: "\n".join(_lines(state)))

    try:
        if seen:
            broker.ask("POST", f"/ops/v1/alarms/{quoted(seen)}/seen")
        shown.repeat(show)
    except Refused as refused:
        raise output.Failed(2, refused) from None
    return int(bool(state["alarms"]) or not state["ready"])


def _show_ready(broker: Broker) -> int:
    """Print whether the broker is ready, and return the exit status: 0 if it is."""
    try:
        print(plain(broker.ask("GET", "/ready").body.decode()))
    except Refused as refused:
        raise output.Failed(1, f"not ready: {refused}") from None
    return 0


def _commit(state: dict[str, Any]) -> Iterator[str]:
    """Yield the line about the commit of which the broker was made, if it knows."""
    if state.get("commit"):      # brokers of older versions do not tell
        yield f"  {'commit':10}  {plain(state['commit'])} of {plain(state['committed'])}"


def _lines(state: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that show a broker's state, from the answer of /ops/v1/status."""
    if told := state.get("follows"):
        yield f"Geminga {state['version']}, up {length(state['uptime_seconds'])}, {plain(told['text'])}"
        yield from _commit(state)
        return
    loaded, rates, topics = state["loaded"], state["rates"], state["topics"]
    readiness = "ready" if state["ready"] else "loading" if state.get("loading") else "not ready"
    yield f"Geminga {state['version']}, up {length(state['uptime_seconds'])}, {readiness}"
    yield from _commit(state)
    for obstacle in state["obstacles"]:
        yield f"  {plain(obstacle)}"
    for warning in state.get("warnings", []):
        yield f"WARNING {plain(warning)}"
    for alarm in state["alarms"]:
        yield f"ALARM {alarm['alarm']} since {alarm['since']}: {plain(alarm['text'])}"
        then = f"; then geminga status --seen {alarm['alarm']}" if alarm["can_be_seen_to"] else ""
        yield f"  what to do: {alarm['page']}{then}"
    width = max([11, *(len(process["process"]) for process in state["processes"])])
    for process in state["processes"]:
        again = f"  started again {process['started_again']} times" if process["started_again"] else ""
        yield f"  {process['process']:<{width}} pid {process['pid']:<8} {process['state']:<10} " \
              f"{size(process['memory_bytes']):>9}  up {length(process['uptime_seconds'])}{again}"
    yield f"  topics      {topics['total']:,}, of which {topics['loaded']:,} are loaded, " \
          f"with {loaded['subscriptions']:,} subscriptions"
    yield f"  clients     {state['connections']:,} connections, {loaded['producers']:,} producers, " \
          f"{loaded['consumers']:,} consumers"
    yield f"  rates       in {rates['messages_in']:,.0f} messages/s, {size(rates['bytes_in'])}/s; " \
          f"out {rates['messages_out']:,.0f} messages/s, {size(rates['bytes_out'])}/s"
    missing = state["stored_not_loaded"]
    unknown = ""
    if missing:
        unknown = f"unknown, as {missing:,} of {topics['total']:,} topics are not loaded; of the others "
    yield f"  backlog     {unknown}{loaded['backlog_entries']:,} entries; {size(loaded['stored_bytes'])} are stored"
    if (told := state.get("kept")) and (told["topics"] or told["backlogs"]):
        yield f"  deleted     {told['topics']:,} topics and {told['backlogs']:,} cleared backlogs can be taken back, " \
              f"which take {size(told['bytes'])}"
    if (told := state.get("schedules")) and told["total"]:
        waiting = f", of which {told['waiting']:,} cannot publish now" if told["waiting"] else ""
        yield f"  schedules   {told['total']:,}{waiting}"
    disk = state["disk"]
    yield f"  disk        {size(disk['free_bytes'])} of {size(disk['bytes'])} are free at {state['data_dir']}"
    if told := state.get("standby"):
        how = "not connected" if not told["connected"] else "being copied to" if told["copying"] else "following"
        yield f"  standby     {plain(told['name'])}: {how}, {length(told['lag_ms'] / 1000)} behind"
    memory, night = state["memory"], state["night"]
    yield f"  memory      {size(memory['used_bytes'])} of {size(memory['limit_bytes'])} are used ({memory['of']})"
    if state.get("running_night"):
        yield f"  night       {night_progress(state['running_night'])}"
    yield "  last night  " + ("there was none" if night is None else
                              f"{night['status']}, ended {instant(night['ended_ms'])} "
                              f"after {length(night['seconds'])}: "
                              f"{night['compacted']} topics compacted, {size(night['given_back'])} given back")
    for rule in state["log"]["for_now"]:
        yield f"  log         {rule['level']} for another {length(rule['seconds_left'])} {_about(rule)}"
    for index in state["not_measured"]:
        yield f"  owner {index} did not answer in time: its topics are left out"


@click.command(epilog="Exit status: 0 nothing matters, or no --check; 1 something matters; 2 wrong usage.")
@click.option("--check", is_flag=True,
              help="Print only settings that make the broker fail, lose data, or slow by a multiple.")
@options.CONFIG
@options.DATA_DIR
@click.option("--pid", type=int, metavar="PID", show_default="this shell's",
              help="Check the limits of this process, such as that of systemctl show -P MainPID geminga.")
@output.FORM
@output.json_flag("jsonl")
def tune(check: bool, config: str | None, data_dir: str | None, pid: int | None, form: str) -> int:
    """Check settings of this host that bound a broker."""
    from geminga.supervisor.host import tune as host
    loaded = options.configured(config, data_dir)
    try:
        limits = None if pid is None else host.limits_of(pid)
    except OSError as error:
        why = "there is no such process" if isinstance(error, FileNotFoundError) else error.strerror
        raise output.Failed(2, f"--pid {pid}: {why}") from None
    results = list(host.checks(loaded, limits=limits))
    wrong = [result for result in results if result.matters and not result.is_fine]
    if form != "table":
        output.Output(form).rows([result._asdict() for result in (wrong if check else results)], ())
        return int(check and bool(wrong))
    for result in results:
        is_wrong = result in wrong
        if is_wrong or not check:
            verdict = "fine   " if result.is_fine else "MATTERS" if is_wrong else "better "
            print(f"{verdict} {result.name}: {result.found}")
            if not result.is_fine:
                print(f"          wanted   {result.wanted}\n          because  {result.why}\n"
                      f"          command  {result.command}")
    return int(check and bool(wrong))
