"""`geminga topics`, `subscriptions`, `clients` and `transactions`: tables of what a broker does now."""
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

from geminga.supervisor.cli import grammar, output
from geminga.supervisor.cli.completion import complete_address, complete_topic, complete_transaction
from geminga.supervisor.cli.missing_names import Unknown
from geminga.supervisor.cli.output import Column, Output
from geminga.supervisor.cli.views.places import ask, place_of
from geminga.supervisor.configuration.similar_names import question
from geminga.supervisor.pulsar_client import target
from geminga.supervisor.pulsar_client.rest import Refused, plain, quoted
from geminga.supervisor.wording import human
from geminga.supervisor.wording.human import short

ROWS_MAX = 1_000             # as many as the broker answers with
_TIMEOUT_S = 30.0


def _number(key: str, heading: str, shown: Callable[[Any], str] = human.count) -> Column:
    return Column(key, heading, shown, is_number=True)


def _size_rate(value: float) -> str:
    return f"{human.size(value)}/s"


def id_of(transaction: str) -> str:
    """Return a transaction's id as a shell takes it without quotes: 0,17 for (0,17)."""
    return transaction.strip("()")


def _held_up(waiting: list[dict[str, str]]) -> str:
    """Return the first subscription that waits for a transaction, and how many others do."""
    if not waiting:
        return "-"
    more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    return f"{short(waiting[0]['topic'])} {waiting[0]['subscription']}{more}"


TOPICS = (
    Column("topic", shown=short), _number("rate_in", "in/s", human.rate), _number("throughput_in", "in", _size_rate),
    _number("rate_out", "out/s", human.rate), _number("throughput_out", "out", _size_rate),
    _number("backlog", "backlog"), _number("backlog_bytes", "bytes", human.size),
    _number("oldest_seconds", "oldest", human.length), _number("producers", "prod"), _number("consumers", "cons"),
    _number("subscriptions", "subs"), _number("storage_bytes", "stored", human.size))
SUBSCRIPTIONS = (
    Column("topic", shown=short), Column("subscription"), Column("type"), _number("consumers", "cons"),
    _number("backlog", "backlog"), _number("backlog_bytes", "bytes", human.size),
    _number("oldest_seconds", "oldest", human.length), _number("unacknowledged", "unacked"),
    _number("delayed", "delayed"), _number("rate_out", "out/s", human.rate),
    _number("redelivery_rate", "again/s", human.rate), _number("acknowledge_rate", "acks/s", human.rate),
    _number("acknowledged_ms", "last ack", human.ago), _number("consumed_ms", "last out", human.ago))
CLIENTS = (
    Column("address"), Column("role"), Column("library"), _number("protocol", "protocol", str), Column("listener"),
    _number("connected_ms", "connected", human.ago), _number("producers", "prod"), _number("consumers", "cons"),
    _number("topics", "topics"))
TRANSACTIONS = (
    Column("transaction", "id", id_of), Column("state"), _number("open_seconds", "open", human.length),
    _number("left_seconds", "left", human.length), Column("role"), _number("partitions", "parts"),
    _number("subscriptions", "subs"), _number("messages", "messages"), _number("acknowledgements", "acks"),
    Column("waiting", "holds up", _held_up))
COLUMNS: Mapping[str, Sequence[Column]] = {
    "topics": TOPICS, "subscriptions": SUBSCRIPTIONS, "clients": CLIENTS, "transactions": TRANSACTIONS}
# unless another is asked for
SORT = {"topics": "rate_in", "subscriptions": "backlog", "clients": "connected_ms", "transactions": "open_seconds"}


def _options(table: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the place, the order and the number of rows to a command's function."""
    keys = [column.key.replace("_", "-") for column in COLUMNS[table]]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in (
            click.option("--count", "-n", "most", type=click.IntRange(1, ROWS_MAX), metavar="N", default=100,
                         show_default=True, help="Show so many rows at most."),
            click.option("--reverse", "-r", "is_reverse", is_flag=True, help="Turn the order."),
            click.option("--sort", type=click.Choice(keys), default=SORT[table].replace("_", "-"),
                         show_default=True, help="Column: the largest number first, or names from a to z."),
            click.argument("place", required=False, metavar="[NAMESPACE|TOPIC|PATTERN]", shell_complete=complete_topic),
        ):
            function = option(function)
        return function
    return decorate


class _Shown(click.Command):
    """A command with a table, which tells users of pulsar-admin where verbs of the same name are."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if len(args) > 1 and not any(one.startswith("-") for one in args[:2]) and (verb := _verb(self.name, args[0])):
            ctx.fail(f"geminga {self.name} takes one NAMESPACE, TOPIC or PATTERN.  Did you mean {verb}?")
        return super().parse_args(ctx, args)


def _verb(group: str | None, name: str | None) -> str:
    """Return the command that is the verb of pulsar-admin of this name, "" if there is none."""
    from geminga.supervisor.cli.admin.verbs import GROUPS
    verbs = GROUPS[group or ""][1] if group in GROUPS else ()
    return next((f"geminga admin {group} {verb.name}" for verb in verbs if verb.name == name), "")


def _show(table: str, place: str | None, sort: str, is_reverse: bool, most: int, form: str, watch_s: float | None,
          who: dict[str, Any]) -> int:
    """Show a table, once or again and again."""
    try:
        where = place_of(place)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    broker, shown = target.of(who).broker(_TIMEOUT_S), Output(form, watch_s)
    query = where.query | {"sort": sort.replace("-", "_"), "reverse": is_reverse, "limit": most}

    def show() -> None:
        try:
            answer = ask(broker, "GET", f"/ops/v1/{table}{where.path}", where, query)
        except Unknown as error:
            if not (verb := _verb(table, place)):
                raise
            raise Unknown(f"{error}  Did you mean {verb}?") from None
        shown.rows(answer["rows"], COLUMNS[table])
        if shown.is_for_people:
            for line in notes(table, answer):
                print(line, file=sys.stderr)

    shown.repeat(show)
    return 0


def notes(table: str, answer: dict[str, Any]) -> list[str]:
    """Return what people should know about an answer: rows and owners that are left out."""
    lines = []
    if answer["more"]:
        lines.append(f"{len(answer['rows']):,} of {answer['total']:,} {table}; -n shows more")
    if number := answer.get("not_loaded"):
        topics = f"{number:,} {table[:-1] if number == 1 else table}{' of topics that' * (table == 'subscriptions')}"
        be = "is" if number == 1 and table == "topics" else "are"
        lines.append(f"{topics} {be} not loaded, as nothing was used there since the start")
    if answer["owners_missing"]:
        lines.append(f"owners {answer['owners_missing']} do not answer: their {table} are left out")
    return lines


@click.command(cls=_Shown, epilog="\b\nExamples:\n  geminga topics\n  geminga topics acme/eu --sort backlog -n 10\n"
                      "  geminga topics 'orders-*' -o json\n\n" + grammar.STATUS)
@_options("topics")
@target.admin_options
@output.options
def topics(place: str | None, sort: str, is_reverse: bool, most: int, form: str, watch_s: float | None,
           **who: Any) -> int:
    """Show topics: rates, backlog, clients, storage.

    Rates are those of the last seconds.  The table is about a NAMESPACE, a TOPIC, or a PATTERN such as 'orders-*' or
    'acme/*/*-dead', else about everything.
    """
    return _show("topics", place, sort, is_reverse, most, form, watch_s, who)


@click.command(epilog="\b\nExamples:\n  geminga subscriptions --sort oldest-seconds\n"
                      "  geminga subscriptions orders --watch\n\n" + grammar.STATUS)
@_options("subscriptions")
@target.admin_options
@output.options
def subscriptions(place: str | None, sort: str, is_reverse: bool, most: int, form: str, watch_s: float | None,
                  **who: Any) -> int:
    """Show subscriptions: backlog, its age, consumers, rates.

    Rates are those of the last seconds.  The table is about a NAMESPACE, a TOPIC, or a PATTERN such as 'orders-*' or
    'acme/*/*-dead', else about everything.
    """
    return _show("subscriptions", place, sort, is_reverse, most, form, watch_s, who)


class _Table(grammar.Group):
    """A group such as `geminga clients`, whose command `list` runs unless another one is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and (not args or args[0] not in (*self.commands, *ctx.help_option_names)):
            if len(args) > 1 and not args[1].startswith("-") and (hint := question(args[0], self.commands)):
                ctx.fail(f"There is no command {args[0]!r}.{hint}")
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Table, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False,
             epilog="\b\nExamples:\n  geminga clients\n  geminga clients orders\n"
                    "  geminga clients close 10.0.0.7:51450\n\n" + grammar.STATUS)
def clients() -> None:
    """Show connected clients, or close a connection.

    `geminga clients [NAMESPACE|TOPIC|PATTERN]` is short for `geminga clients list`.
    """


@clients.command("list", epilog=grammar.STATUS)
@_options("clients")
@target.admin_options
@output.options
def list_clients(place: str | None, sort: str, is_reverse: bool, most: int, form: str, watch_s: float | None,
                 **who: Any) -> int:
    """Show connected clients: address, role, library, what is open.

    The table is about clients of a NAMESPACE, a TOPIC, or a PATTERN such as 'orders-*', else about all connections.
    """
    return _show("clients", place, sort, is_reverse, most, form, watch_s, who)


@clients.command(epilog=grammar.STATUS)
@click.argument("address", shell_complete=complete_address)
@output.FORM
@target.admin_options
def close(address: str, form: str, **who: Any) -> int:
    """Close the connection from ADDRESS, such as 10.0.0.7:51450.

    Its client connects again by itself.  Messages that its consumers hold go to other consumers meanwhile.
    """
    if not address:
        raise click.UsageError("ADDRESS is empty: geminga clients shows those of all connections")
    target.of(who).broker(_TIMEOUT_S).ask("DELETE", f"/ops/v1/clients/{quoted(address)}")
    Output(form).value({"closed": address}, lambda _: f"closed {address}")
    return 0


class _Id(click.ParamType):
    """An argument with a transaction's id: 0,17 or (0,17), as tables and logs have it."""

    name = "id"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        found = re.fullmatch(r"\(?(\d+),(\d+)\)?", value) if isinstance(value, str) else None
        if found is None:
            self.fail(f"{plain(str(value))!r} is no id of a transaction: geminga transactions shows those that are "
                      "open, such as 0,17", parameter, context)
        return f"{found[1]},{found[2]}"


@click.group(cls=_Table, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False,
             epilog="\b\nExamples:\n  geminga transactions\n  geminga transactions orders --sort waiting\n"
                    "  geminga transactions abort 0,17\n\n" + grammar.STATUS)
def transactions() -> None:
    """Show open transactions, or abort some.

    `geminga transactions [NAMESPACE|TOPIC|PATTERN]` is short for `geminga transactions list`.
    """


@transactions.command("list", epilog=grammar.STATUS)
@_options("transactions")
@target.admin_options
@output.options
def list_transactions(place: str | None, sort: str, is_reverse: bool, most: int, form: str, watch_s: float | None,
                      **who: Any) -> int:
    """Show open transactions: age, time left, role, what is in them, who waits.

    The transaction that has been open longest comes first.  The table is about transactions that use a topic of a
    NAMESPACE, a TOPIC, or a PATTERN such as 'orders-*', else about all.
    """
    return _show("transactions", place, sort, is_reverse, most, form, watch_s, who)


@transactions.command(epilog="\b\nExample:\n  geminga transactions abort 0,17 1,4\n\n" + grammar.STATUS)
@click.argument("ids", metavar="ID...", type=_Id(), nargs=-1, required=True, shell_complete=complete_transaction)
@output.FORM
@target.admin_options
def abort(ids: tuple[str, ...], form: str, **who: Any) -> int:
    """Abort open transactions by their IDs, such as 0,17.

    Nothing that a transaction published is delivered, and what it acknowledged comes again.  Its client is told at its
    next use of the transaction.
    """
    broker, refused = target.of(who).broker(_TIMEOUT_S), []

    def each() -> Iterator[str]:
        for one in dict.fromkeys(ids):
            try:
                broker.ask("POST", "/admin/v3/transactions/abortTransaction/" + one.replace(",", "/"))
                yield one
            except Refused as error:
                refused.append(one)
                print(f"geminga: {one}: {error}", file=sys.stderr)

    Output(form).stream(each(), lambda one: {"aborted": f"({one})"}, lambda one: f"aborted {one}")
    return 1 if refused else 0
