"""Manual pages and shell completion, made from the command's own help so that they cannot be out of date.

    python manual.py SHARE      # with geminga importable

writes SHARE/man/man1/geminga.1.gz, SHARE/man/man1/geminga-admin.1.gz and a completion file for each shell.
"""
import gzip
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from geminga.supervisor.main import geminga

COMPLETIONS = {"bash": "bash-completion/completions/geminga", "zsh": "zsh/vendor-completions/_geminga",
               "fish": "fish/vendor_completions.d/geminga.fish"}
FILES = {
    "/etc/geminga/geminga.toml": "The configuration. The file shows every key with its default.",
    "/var/lib/geminga": "The data folder of the system's broker.",
    "/usr/share/doc/geminga": "README.md, pages for users and operators (docs, runbook), alert rules and dashboards "
                              "for Prometheus.",
}
UNITS = ("geminga.service runs the broker, and geminga-nightly.timer starts the nightly job. systemctl status geminga "
         "shows the broker's state, journalctl -u geminga its log.")


def main(share: Path) -> None:
    top = click.Context(geminga, info_name="geminga")
    for name, context in {"geminga": top, "geminga-admin": member(top, "admin")}.items():
        write(share / f"man/man1/{name}.1.gz", gzip.compress(page(context).encode(), mtime=0))
    for shell, place in COMPLETIONS.items():
        write(share / place, get_completion_class(shell)(geminga, {}, "geminga", "_GEMINGA_COMPLETE").source().encode())


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


# -- commands, each in a context with its full name

def member(context: click.Context, name: str) -> click.Context:
    command = context.command.get_command(context, name)
    return click.Context(command, info_name=name, parent=context)


def members(context: click.Context) -> list[click.Context]:
    """Return contexts of a group's commands, except hidden ones."""
    everything = [member(context, name) for name in context.command.list_commands(context)]
    return [one for one in everything if not one.command.hidden]


# -- pages

def page(context: click.Context) -> str:
    """Return the roff source of a group's manual page: name, synopsis, description, options, commands."""
    name = context.command_path.replace(" ", "-")
    lines = [f'.TH "{plain(name.upper())}" 1', ".nh", ".ad l",
             ".SH NAME", f"{plain(name)} \\- {plain(context.command.get_short_help_str(200).rstrip('.'))}",
             ".SH SYNOPSIS", *usage(context), ".SH DESCRIPTION", *prose(context.command.help), *options(context)]
    return "\n".join([*lines, *(commands(context) if context.parent is None else groups(context))]) + "\n"


def commands(context: click.Context) -> Iterator[str]:
    """Yield roff sections of all commands but `admin`, which has a page of its own."""
    yield ".SH COMMANDS"
    for one in members(context):
        if one.info_name == "admin":
            yield from [f'.SS "{plain(one.command_path)}"', *prose(one.command.help), "Its verbs are in",
                        ".BR geminga\\-admin (1)."]
        else:
            yield from (line for command in flat(one) for line in section(command))
    yield ".SH FILES"
    for path, text in FILES.items():
        yield from (".TP", f".I {plain(path)}", plain(text))
    yield from (".PP", plain(UNITS), ".SH SEE ALSO", ".BR geminga\\-admin (1),", ".BR systemctl (1),",
                ".BR journalctl (1)")


def groups(context: click.Context) -> Iterator[str]:
    """Yield a roff section for each group of `geminga admin`."""
    for one in members(context):
        yield from [f'.SH "{plain(one.info_name.upper())}"', *prose(one.command.help)]
        commands_below = (command for command in flat(one) if not isinstance(command.command, click.Group))
        yield from (line for command in commands_below for line in section(command))
    yield from (".SH SEE ALSO", ".BR geminga (1)")


def flat(context: click.Context) -> Iterator[click.Context]:
    """Yield the context of a command and, for a group, of every command below it."""
    yield context
    if isinstance(context.command, click.Group):
        for one in members(context):
            yield from flat(one)


def section(context: click.Context) -> list[str]:
    """Return the roff subsection of one command: usage, help, options."""
    return [f'.SS "{plain(context.command_path)}"', *usage(context), ".PP", *prose(context.command.help),
            *options(context), *prose(context.command.epilog)]


def usage(context: click.Context) -> list[str]:
    return [f".B {plain(context.command_path)}", plain(" ".join(context.command.collect_usage_pieces(context)))]


def options(context: click.Context) -> list[str]:
    lines = []
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record and isinstance(parameter, click.Option) and "--help" not in parameter.opts:   # usage shows arguments
            lines += [".TP", f".B {plain(record[0])}", plain(record[1]) or "\\&"]
    return [*lines, ".PP"] if lines else []


def prose(text: str | None) -> list[str]:
    """Return a text's paragraphs as roff. A paragraph that begins with \\b keeps its lines, as in click."""
    lines = []
    stripped = "\n".join(line.strip(" ") for line in (text or "").strip(" \n").splitlines())
    for paragraph in re.split(r"\n\s*\n", stripped):
        if paragraph.startswith("\b"):
            lines += [".nf", *map(plain, paragraph.lstrip("\b\n").splitlines()), ".fi", ".PP"]
        elif paragraph:
            lines += [plain(" ".join(paragraph.split())), ".PP"]
    return lines


def plain(text: str) -> str:
    """Return a text escaped for roff: no escapes or requests, and hyphens that can be copied.

    Lines may break after `|`.
    """
    text = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq").replace("|", "|\\:")
    return "\\&" + text if text.startswith((".", "'")) else text


if __name__ == "__main__":
    main(Path(sys.argv[1]))
