"""The `geminga` command."""
import importlib
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import click

from geminga.supervisor.pulsar_client import credentials

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")     # before numpy is imported: no thread per core and process
# Command: its module in geminga.supervisor.cli.  Only the module of the command that runs is imported.
_MODULES = {
    "admin": "admin.commands",
    "backup": "backup",
    "config": "configuration",
    "debug": "debug",
    "definitions": "definitions",
    "drain": "configuration",
    "export": "moving",
    "import": "moving",
    "ledger": "ledger",
    "log": "operations",
    "nightly": "nightly",
    "reload": "configuration",
    "restore": "backup",
    "status": "operations",
    "tune": "operations",
    "upgrade": "upgrade",
    "verify": "verify",
}
_NAMES = {"admin": "command", "import": "bring"}      # names in the module, where they differ from the command's
_SHELLS = ("bash", "zsh", "fish")


class _Command(click.Group):
    """The click group of all commands.  Each command is imported when it runs, and returns its exit status."""

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _MODULES:
            return super().get_command(context, name)
        module = importlib.import_module(f"geminga.supervisor.cli.{_MODULES[name]}")
        command = getattr(module, _NAMES.get(name, name))
        return command if isinstance(command, click.Command) else command()

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted([*super().list_commands(context), *_MODULES])

    def invoke(self, context: click.Context) -> None:
        context.exit(super().invoke(context) or 0)


def main(arguments: list[str] | None = None) -> int | str | None:
    """Run the `geminga` command; return a value for sys.exit (2: bad configuration or arguments)."""
    umask = os.umask(0o077)      # files that a command makes are its user's alone, with any umask
    try:
        file = os.environ.get("PULSAR_CLIENT_CONF")
        geminga.main(arguments, prog_name="geminga", default_map=credentials.defaults(file) if file else None)
    except SystemExit as end:
        return end.code
    except Exception as error:
        status = getattr(error, "exit_status", None)      # of errors at a broker's HTTP port
        if status is None and isinstance(error, OSError) and error.errno:      # of a file or the disk: no bug
            from geminga.storage.errors import text_of
            print(f"geminga: {text_of(error)}", file=sys.stderr)
            return 1
        if status is None:
            raise
        print(f"geminga: {error}", file=sys.stderr)
        return int(status)
    finally:
        os.umask(umask)


@click.group(cls=_Command)
def geminga() -> None:
    """A message broker for one host that Apache Pulsar clients talk to."""


@geminga.command()
@click.option("--config", metavar="FILE", help="TOML, or Pulsar's broker.conf or standalone.conf")
@click.option("--data-dir", metavar="DIR", help="where everything is kept (default: ./data)")
@click.option("--bind", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)")
@click.option("--port", help="of the binary protocol (default: 6650; 0 takes a free one)")
@click.option("--http-port", help="of HTTP (default: 8080; 0 takes a free one)")
@click.option("--workers", help="network processes (default: one per core)")
@click.option("--owners", help="storage processes (default: one per core)")
def serve(config: str | None, **options: str | None) -> int:
    """Run the broker in the foreground."""
    from geminga.supervisor.configuration import config as configuration
    from geminga.supervisor.processes import serve as broker
    given = {"network.bind": options.pop("bind"), "network.port": options.pop("port"), **options}

    def load() -> tuple[configuration.Config, list[str]]:
        return configuration.load(config, os.environ, given)

    try:
        loaded, notes = load()
    except configuration.ConfigError as error:
        print(f"geminga: {error}", file=sys.stderr)
        return 2
    return broker.serve(loaded, notes, load)


@geminga.command()
@click.argument("topic")
@click.argument("messages", nargs=-1, required=True)
@click.option("--url", default="pulsar://127.0.0.1:6650", show_default=True)
@credentials.options
def publish(topic: str, messages: tuple[str, ...], url: str, **who: Any) -> int:
    """Publish messages to a topic."""
    from geminga.supervisor.pulsar_client import client

    async def published() -> int:
        given = credentials.of(**who)
        payloads = [os.fsencode(text) for text in messages]      # the bytes that the shell gave, UTF-8 or not
        for message_id in await client.publish(url, topic, payloads, given.method, given.data, given.context_for(url)):
            print("published {}:{}".format(*message_id))
        return 0

    return _run(url, published)


def _run(url: str, command: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run a command that talks to a broker, and return its exit status.

    An error of the connection is printed as one line.
    """
    import asyncio

    from geminga.proto.errors import Refusal
    from geminga.supervisor.pulsar_client import client, reasons
    try:
        return asyncio.run(command())
    except client.NoAddress as error:
        print(f"geminga: {error}", file=sys.stderr)
        return 2
    except (OSError, client.ClientError, Refusal) as error:
        print(f"geminga: {url}: {reasons.of(error, is_secure=url.startswith('pulsar+ssl:'))}", file=sys.stderr)
        return 1


@geminga.command(epilog="Exit status: 0 all messages were printed; 1 not all, with a line for each entry that was "
                        "not, or no such topic; 2 wrong usage.")
@click.argument("topic")
@click.option("--url", default="pulsar://127.0.0.1:6650", show_default=True)
@credentials.options
def read(topic: str, url: str, **who: Any) -> int:
    """Print the messages that a topic holds, a line each, without acknowledging them.

    A partitioned topic is read one partition after the other.
    """
    from geminga.supervisor.cli.reading import Reading
    from geminga.supervisor.pulsar_client import client

    async def printed() -> int:
        given = credentials.of(**who)
        reading = Reading()
        connection = await client.connect(url, given.method, given.data, given.context_for(url))
        try:
            async for payload in reading.messages(connection, topic):
                print(payload.decode(errors="backslashreplace"))
        finally:
            connection.close()
        for line in reading.left_out:
            print(f"geminga: {line}", file=sys.stderr)
        return int(bool(reading.left_out))

    return _run(url, printed)


@geminga.command()
@click.argument("topic")
@click.argument("subscription")
@click.option("--http-url", "--admin-url", default="http://127.0.0.1:8080", show_default=True)
@credentials.options
def why(topic: str, subscription: str, http_url: str, **who: Any) -> None:
    """Tell why a subscription's consumers get no more messages."""
    from geminga.supervisor.pulsar_client.rest import Broker, quoted, topic_path
    try:
        place = f"{topic_path(topic)}/{quoted(subscription)}"
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    partitions = Broker(http_url, credentials=credentials.of(**who)).ask("GET", f"/ops/v1/why/{place}").value()
    for partition in partitions:
        print("{topic} {subscription} ({type}): backlog {backlog}".format(**partition))
        if partition["messages"]:
            print("  messages: " + ", ".join(f"{count} {what}" for what, count in partition["messages"].items()))
        for cause in partition["causes"]:
            details = [_detail(name, value, cause) for name, value in cause.items() if name != "cause"]
            print("  " + ", ".join([cause["cause"], *details]))


def _detail(name: str, value: Any, cause: dict[str, Any]) -> str:
    """Return one field of a cause as text for people; times as ISO 8601."""
    from geminga.supervisor.configuration.units import instant
    if not name.endswith("_ms"):
        return f"{name.replace('_', ' ')} {value}"
    return f"{'next due at' if cause['cause'] == 'delayed messages' else name.removesuffix('_ms')} {instant(value)}"


@geminga.command(epilog="\b\nExample:\n  geminga completion bash > /etc/bash_completion.d/geminga")
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print a script that makes a shell complete commands, options and topics."""
    from click.shell_completion import get_completion_class
    shell_completion = get_completion_class(shell)
    assert shell_completion is not None
    print(shell_completion(geminga, {}, "geminga", "_GEMINGA_COMPLETE").source())


if __name__ == "__main__":
    sys.exit(main())
