"""The `geminga` command."""
import contextlib
import gc
import importlib
import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from geminga.supervisor.cli.grammar import Group

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")     # before numpy is imported: no thread per core and process
# New objects before a look for garbage.  Imports make many objects, and little garbage.  If a broker looked as seldom
# as a short command does, garbage of its imports would leave holes in the memory that its processes share.
_GARBAGE_OF_SHORT, _GARBAGE_OF_LONG = 50_000, 2_000
# Heading in the list of commands: each command, with its module in geminga.supervisor.cli ("": this file) and the first
# sentence of its help.  The list needs no module of a command, and a command only its own.
_SECTIONS = {
    "Messages": {
        "produce": ("messages.produce", "Publish messages to a topic."),
        "consume": ("messages.consume", "Print the messages of topics, or of a subscription."),
        "search": ("messages.search", "Find messages by key, property, text, time or sequence id."),
        "schedule": ("messages.schedule", "Have a topic get messages at planned times."),
        "redrive": ("messages.redrive", "Give subscriptions their dead letters back, once each."),
        "bench": ("messages.bench", "Put a load on a broker, and print rates and latencies."),
        "import": ("moving", "Copy topics of a Pulsar, or a table, to a broker."),
        "export": ("moving", "Copy topics from this broker to a running Pulsar."),
    },
    "Look": {
        "status": ("operations", "Show the state of a broker: load, disk, alarms."),
        "top": ("views.top", "Watch a broker on a live screen."),
        "topics": ("views.tables", "Show topics: rates, backlog, clients, storage."),
        "subscriptions": ("views.tables", "Show subscriptions: backlog, its age, consumers, rates."),
        "clients": ("views.tables", "Show connected clients, or close a connection."),
        "transactions": ("views.tables", "Show open transactions, or abort some."),
        "why": ("views.why", "Tell why consumers get no more messages, and what to do."),
        "log": ("operations", "Show or change the level of a broker's log."),
        "debug": ("debug", "Collect facts about a broker, to find a fault."),
    },
    "Operate": {
        "serve": ("", "Run the broker in the foreground."),
        "promote": ("configuration", "Have a standby stop its broker, and serve."),
        "reload": ("configuration", "Have a broker take over its changed configuration."),
        "drain": ("configuration", "Have a broker stop once its consumers are done."),
        "config": ("configuration", "Check or show a configuration."),
        "tune": ("operations", "Check settings of this host that bound a broker."),
        "admin": ("admin.commands", "Administer a broker, with the verbs of pulsar-admin."),
        "undelete": ("undelete", "Take deleted topics and cleared backlogs back."),
        "definitions": ("definitions", "Export and import all definitions as JSON."),
    },
    "Access": {
        "why-denied": ("views.why_denied", "Tell which grants a role lacks on a topic."),
        "context": ("access.contexts", "Name brokers, and choose the one that commands talk to."),
        "login": ("access.login", "Sign in at an issuer, for a context."),
        "secure": ("access.secure", "Set up TLS, tokens and authorization in one step."),
        "completion": ("", "Print a script with which a shell completes this command."),
        "help": ("", "Show the help of a command, as --help behind it does."),
    },
    "Data folder": {
        "backup": ("folder.backup", "Copy a broker's data folder as it is at one moment."),
        "restore": ("folder.backup", "Copy a backup into a new or empty data folder."),
        "verify": ("folder.verify", "Look for damage in a data folder."),
        "ledger": ("folder.ledger", "Look into the files of a data folder."),
        "nightly": ("folder.nightly", "Compact topics, export tables, and give back disk space."),
        "tables": ("folder.tables", "List topics that are tables."),
        "upgrade": ("folder.upgrade", "Tell how an upgrade would change a data folder."),
    },
}
_MODULES = {name: module for section in _SECTIONS.values() for name, (module, _) in section.items()}
# Names in the module, where they differ from the command's.
_NAMES = {"admin": "command", "import": "bring", "why-denied": "why_denied"}
_SHOWN_MAX = 100      # characters of a wrong name
_VERSION = ("--version", "-V")
# Words of nats, rpk, redis-cli, rabbitmqctl and kafka's tools: the command that does the same.
_ELSEWHERE = {
    **dict.fromkeys(("send", "put", "add"), "produce"),
    **dict.fromkeys(("sub", "subscribe", "tail", "view", "get", "cat", "peek", "receive"), "consume"),
    **dict.fromkeys(("ls", "list", "streams", "stream", "queues", "queue"), "topics"),
    **dict.fromkeys(("groups", "group", "consumers", "consumer"), "subscriptions"),
    **dict.fromkeys(("connections", "connection"), "clients"),
    **dict.fromkeys(("start", "run", "server", "broker"), "serve"), **dict.fromkeys(("stop", "shutdown"), "drain"),
    **dict.fromkeys(("info", "ping", "health", "report"), "status"), **dict.fromkeys(("perf", "benchmark"), "bench"),
    "profile": "context", "version": "--version"}
_SHELLS = ("bash", "zsh", "fish")


class _Command(Group):
    """The click group of all commands.  Each command is imported when it runs, and returns its exit status."""

    aliases: Mapping[str, str] = {"publish": "produce", "read": "consume"}
    elsewhere: Mapping[str, str] = _ELSEWHERE

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        name = self.aliases.get(name, name)
        if not _MODULES.get(name):
            return super().get_command(context, name)
        module = importlib.import_module(f"geminga.supervisor.cli.{_MODULES[name]}")
        command = getattr(module, _NAMES.get(name, name))
        return command if isinstance(command, click.Command) else command()

    def list_commands(self, context: click.Context) -> list[str]:
        return list(_MODULES)

    def hint(self, context: click.Context, name: str) -> str:
        """Return a question as every group does, also for groups of `geminga admin` that were typed without it."""
        from geminga.supervisor.cli.admin.verbs import GROUPS
        return f"  Did you mean admin {name}?" if name in GROUPS else super().hint(context, name)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a list of commands for each section, with their other names."""
        names = {name: ", ".join([name, *(other for other, means in self.aliases.items() if means == name)])
                 for name in _MODULES}
        width = max(map(len, names.values()))
        for section, commands in _SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(names[name].ljust(width), summary) for name, (_, summary) in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem
        commands = [CompletionItem(name, help=summary) for section in _SECTIONS.values()
                    for name, (_, summary) in section.items() if name.startswith(incomplete)]
        return commands + click.Command.shell_complete(self, ctx, incomplete)      # of options, as of every command

    def invoke(self, context: click.Context) -> None:
        try:
            status = super().invoke(context) or 0
            if sys.stdout is not None:      # a command that saw its reader end has closed it
                sys.stdout.flush()
        except BrokenPipeError:      # the reader of the output, such as head(1), has enough
            _close_output()
            status = 0
        context.exit(status)


def run() -> None:
    """Run the command as a process of its own, and end that.

    Looking for garbage would take a fifth of the time of imports.  So would taking all modules apart at the end of a
    short command; the broker and the night run long, and have children and threads to wait for.
    """
    is_short = sys.argv[1:2] not in (["serve"], ["nightly"])
    gc.set_threshold(_GARBAGE_OF_SHORT if is_short else _GARBAGE_OF_LONG)
    status = main()
    if not is_short or isinstance(status, str):
        sys.exit(status)
    with contextlib.suppress(BrokenPipeError):
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    os._exit(status or 0)


def main(arguments: list[str] | None = None) -> int | str | None:
    """Run the `geminga` command; return a value for sys.exit (2: bad configuration or arguments)."""
    umask = os.umask(0o077)      # files that a command makes are its user's alone, with any umask
    try:
        status: int | None = geminga.main(arguments, prog_name="geminga", standalone_mode=False)
        return status
    except SystemExit as end:
        return end.code
    except click.NoSuchOption as error:
        if error.option_name in _VERSION:      # behind a command, unless the command has such an option of its own
            _print_version()
            return 0
        return _complain(error)
    except click.ClickException as error:
        return _complain(error)
    except click.Abort:
        print("geminga: interrupted", file=sys.stderr)
        return 1
    except BrokenPipeError:      # of a help text
        _close_output()
        return 0
    except Exception as error:
        status = getattr(error, "exit_status", None)      # of errors at a broker's HTTP port
        if status is None and isinstance(error, OSError) and error.errno:      # of a file or the disk: no bug
            from geminga.storage.errors import text_of
            print(f"geminga: {text_of(error)}", file=sys.stderr)
            return 1
        if isinstance(error, UnicodeEncodeError) and (wrong := _not_text(arguments or sys.argv[1:])):
            print(f"geminga: {wrong[:_SHOWN_MAX]!r} is not UTF-8", file=sys.stderr)
            return 2
        if status is None:
            raise
        print(f"geminga: {error}", file=sys.stderr)
        return int(status)
    finally:
        os.umask(umask)


def _complain(error: click.ClickException) -> int:
    """Print in one line what is wrong, and where more is told unless the nearest name is; return the exit status."""
    text = re.sub(r"\s*\n\s*", " ", error.format_message())
    text = re.sub(r"a valid integer( range)?", "a whole number", text)
    context = error.ctx if isinstance(error, click.UsageError) else None
    more = "" if context is None or text.endswith("?") else f"  More: {context.command_path} -h"
    print(f"geminga: {text.removesuffix('.') + '.' if more else text}{more}", file=sys.stderr)
    return error.exit_code


def _close_output() -> None:
    """Send further output nowhere; else the exit would flush what is left, and fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _not_text(words: list[str]) -> str | None:
    """Return the first argument whose bytes are not UTF-8."""
    return next((word for word in words if any("\ud800" <= sign <= "\udfff" for sign in word)), None)


def _show_version(context: click.Context, _parameter: click.Parameter, is_given: bool) -> None:
    if is_given:
        _print_version()
        context.exit()


def _print_version() -> None:
    from geminga.supervisor.host.build import build
    print(f"geminga {build().text}")


def _keep_context(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        from geminga.supervisor.configuration import target
        target.keep_context(context, parameter, value)


def _complete_context(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    from geminga.supervisor.configuration import target
    return target.complete_context(context, parameter, typed)


@click.group(cls=_Command, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(*_VERSION, is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
              help="Show the version and exit.")
@click.option("--context", metavar="NAME", expose_value=False, callback=_keep_context, shell_complete=_complete_context,
              help="The broker of this name: see geminga context.")
def geminga() -> None:
    """A message broker for one host that Apache Pulsar clients talk to."""


@geminga.command("help", epilog="\b\nExamples:\n  geminga help produce\n  geminga help admin topics peek\n\n"
                                "Exit status: 0 printed; 2 there is no such command.")
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def show_help(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command, as --help behind it does."""
    assert context.parent is not None
    context.parent.command.main([*words, "--help"], prog_name="geminga", standalone_mode=False)


@geminga.command(epilog="Exit status: 0 stopped as asked; 1 the broker failed; 2 wrong usage, or a configuration or "
                        "data folder that cannot be used.")
@click.option("--config", metavar="FILE",
              help="The broker's configuration: TOML, or Pulsar's broker.conf or standalone.conf.")
@click.option("--data-dir", metavar="DIR", show_default="./data", help="The broker's data folder.")
@click.option("--bind", metavar="ADDRESS", show_default="127.0.0.1", help="Address to listen on.")
@click.option("--port", metavar="PORT", show_default="6650", help="Port of the binary protocol; 0 takes a free one.")
@click.option("--http-port", metavar="PORT", show_default="8080", help="Port of HTTP; 0 takes a free one.")
@click.option("--workers", metavar="N", show_default="one per core", help="Network processes.")
@click.option("--owners", metavar="N", show_default="one per core", help="Storage processes.")
@click.option("--standby-of", metavar="URL", help="Follow the broker at pulsar://HOST or pulsar+ssl://HOST, and serve "
                                                  "nobody until geminga promote.")
def serve(config: str | None, **options: str | None) -> int:
    """Run the broker in the foreground."""
    from geminga.supervisor.configuration import config as configuration
    from geminga.supervisor.processes import serve as broker
    given = {"network.bind": options.pop("bind"), "network.port": options.pop("port"),
             "standby.of": options.pop("standby_of"), **options}

    def load() -> tuple[configuration.Config, list[str]]:
        return configuration.load(config, os.environ, given)

    loaded, notes = load()
    if loaded.standby.of:
        from geminga.supervisor.standby import serve as standby
        if (status := standby.serve(loaded, notes)) is not None:
            return status
    return broker.serve(loaded, notes, load)


@geminga.command(epilog="\b\nExample:\n  geminga completion bash > /etc/bash_completion.d/geminga\n\n"
                        "Exit status: 0 done; 2 wrong usage.")
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print a script with which a shell completes this command."""
    from click.shell_completion import get_completion_class
    shell_completion = get_completion_class(shell)
    assert shell_completion is not None
    print(shell_completion(geminga, {}, "geminga", "_GEMINGA_COMPLETE").source())


if __name__ == "__main__":
    sys.exit(main())
