"""`geminga topics`, `subscriptions`, `clients` and `transactions`: tables of what a broker does now."""
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

from geminga.storage.runtime.similar_names import question
from geminga.supervisor.cli import grammar, output
from geminga.supervisor.cli.completion import complete_address, complete_topic, complete_transaction
from geminga.supervisor.cli.missing_names import Unknown
from geminga.supervisor.cli.output import Column, Converted, Output, remark
from geminga.supervisor.cli.views.scopes import ask, scope_of
from geminga.supervisor.configuration import target
from geminga.supervisor.wording import human
from geminga.supervisor.wording.human import short
from geminga.workers.pulsar_client.rest import Refused, plain, quoted

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
# Columns that are shown where a scalable topic is, and by which no table is sorted.
SEGMENTS = _number("segments", "segments"), _number("sealed_segments", "sealed")
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


def _listing(table: str, help: str, name: str | None = None, **attributes: Any) -> click.Command:
    """Return a command that shows a table."""
    keys = [column.key.replace("_", "-") for column in COLUMNS[table]]

    @click.command(name or table, help=help, **attributes)
    @click.argument("place", required=False, metavar="[NAMESPACE|TOPIC|PATTERN]", shell_complete=complete_topic)
    @click.option("--sort", type=click.Choice(keys), default=SORT[table].replace("_", "-"), show_default=True,
                  help="Column: the largest number first, or names from a to z.")
    @click.option("--reverse", "-r", "is_reverse", is_flag=True, help="Turn the order.")
    @click.option("--count", "-n", "most", type=click.IntRange(1, ROWS_MAX), metavar="N", default=100,
                  show_default=True, help="Show so many rows at most.")
    @target.admin_options
    @output.options
    def listing(place: str | None, sort: str, is_reverse: bool, most: int, form: str, watch_s: float | None,
                **who: Any) -> None:
        order = {"sort": sort.replace("-", "_"), "reverse": is_reverse, "limit": most}
        _show(table, place, order, Output(form, watch_s), who)

    made: click.Command = listing
    return made


class _Shown(click.Command):
    """A command with a table, which tells users of pulsar-admin where verbs of the same name are."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if len(args) > 1 and not any(arg.startswith("-") for arg in args[:2]) and (verb := _verb(self.name, args[0])):
            ctx.fail(f"geminga {self.name} takes one NAMESPACE, TOPIC or PATTERN.  Did you mean {verb}?")
        return super().parse_args(ctx, args)


def _verb(group: str | None, name: str | None) -> str:
    """Return the command that is the verb of pulsar-admin of this name, "" if there is none."""
    from geminga.supervisor.cli.admin.verbs import GROUPS
    verbs = GROUPS[group or ""][1] if group in GROUPS else ()
    return next((f"geminga admin {group} {verb.name}" for verb in verbs if verb.name == name), "")


def _show(table: str, place: str | None, order: dict[str, Any], shown: Output, who: dict[str, Any]) -> None:
    """Show a table, once or again and again."""
    try:
        where = scope_of(place)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    broker = target.of(who).broker(_TIMEOUT_S)

    def show() -> None:
        try:
            answer = ask(broker, "GET", f"/ops/v1/{table}{where.path}", where, where.query | order)
        except Unknown as error:
            if not (verb := _verb(table, place)):
                raise
            raise Unknown(f"{error}  Did you mean {verb}?") from None
        has_segments = any(row.get("segments") for row in answer["rows"])
        shown.rows(answer["rows"], [*COLUMNS[table], *(SEGMENTS if has_segments else ())])
        if shown.is_for_people:
            for line in notes(table, answer):
                print(line, file=sys.stderr)

    shown.repeat(show)


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


_RATES = ("\n\nRates are those of the last seconds.  The table is about a NAMESPACE, a TOPIC, or a PATTERN such as "
          "'orders-*' or 'acme/*/*-dead', else about everything.")
topics = _listing("topics", "Show topics: rates, backlog, clients, storage." + _RATES, cls=_Shown,
                  epilog="\b\nExamples:\n  geminga topics\n  geminga topics acme/eu --sort backlog -n 10\n"
                         "  geminga topics 'orders-*' -o json\n\n" + grammar.STATUS)
subscriptions = _listing("subscriptions", "Show subscriptions: backlog, its age, consumers, rates." + _RATES,
                         epilog="\b\nExamples:\n  geminga subscriptions --sort oldest-seconds\n"
                                "  geminga subscriptions orders --watch\n\n" + grammar.STATUS)


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


clients.add_command(_listing(
    "clients", "Show connected clients: address, role, library, what is open.\n\nThe table is about clients of a "
    "NAMESPACE, a TOPIC, or a PATTERN such as 'orders-*', else about all connections.", "list",
    epilog=grammar.STATUS))


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


def _transaction_id(text: str) -> str:
    """Return a transaction's id as 0,17 from 0,17 or (0,17), as tables and logs have it.  Raises ValueError."""
    if (ids := re.fullmatch(r"\(?(\d+),(\d+)\)?", text)) is None:
        raise ValueError(f"{plain(text)!r} is no id of a transaction: geminga transactions shows those that are "
                         "open, such as 0,17")
    return f"{ids[1]},{ids[2]}"


@click.group(cls=_Table, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False,
             epilog="\b\nExamples:\n  geminga transactions\n  geminga transactions orders --sort waiting\n"
                    "  geminga transactions abort 0,17\n\n" + grammar.STATUS)
def transactions() -> None:
    """Show open transactions, or abort some.

    `geminga transactions [NAMESPACE|TOPIC|PATTERN]` is short for `geminga transactions list`.
    """


transactions.add_command(_listing(
    "transactions", "Show open transactions: age, time left, role, what is in them, who waits.\n\nThe transaction that "
    "has been open longest comes first.  The table is about transactions that use a topic of a NAMESPACE, a TOPIC, or "
    "a PATTERN such as 'orders-*', else about all.", "list", epilog=grammar.STATUS))


@transactions.command(epilog="\b\nExample:\n  geminga transactions abort 0,17 1,4\n\n" + grammar.STATUS)
@click.argument("ids", metavar="ID...", type=Converted("id", _transaction_id), nargs=-1, required=True,
                shell_complete=complete_transaction)
@output.FORM
@target.admin_options
def abort(ids: tuple[str, ...], form: str, **who: Any) -> int:
    """Abort open transactions by their IDs, such as 0,17.

    Nothing that a transaction published is delivered, and what it acknowledged comes again.  Its client is told at its
    next use of the transaction.
    """
    broker, refused = target.of(who).broker(_TIMEOUT_S), []

    def each() -> Iterator[str]:
        for id in dict.fromkeys(ids):
            try:
                broker.ask("POST", "/admin/v3/transactions/abortTransaction/" + id.replace(",", "/"))
                yield id
            except Refused as error:
                refused.append(id)
                remark(f"{id}: {error}")

    Output(form).stream(each(), lambda id: {"aborted": f"({id})"}, lambda id: f"aborted {id}")
    return 1 if refused else 0
