"""All commands have one grammar: options of one name, help texts of one form, starts that import little."""
import re
import subprocess
import sys
from collections import defaultdict

import click
import pytest

from geminga.supervisor.cli.output import FORMS
from geminga.supervisor.main import geminga, main

from ..harness import HANG_SECONDS

HEAVY = {"numpy", "google.protobuf", "aiohttp", "asyncio", "cryptography", "rich", "yaml", "jmespath", "jwt", "pyarrow",
         "http.client", "ssl", "sqlite3", "zmq"}
# Options that mean another thing in another command, with other values.
OTHERS = {"--batch", "--check", "--client", "--from", "--host", "--keep", "--output", "--property", "--sequence-id",
          "--sort", "--to", "--type", "--undo"}
# Options that mean the same, told by what the command makes of them.
OWN_HELP = {"--admin-url", "--compression", "--config", "--count", "--data-dir", "--dry-run", "--key", "--producer",
            "--rate", "--subscription", "--topic", "--url"}
# Commands without --output, and the reason.
NOTHING_TO_PRINT = {
    "geminga serve": "runs until it is stopped",
    "geminga top": "a screen; topics, subscriptions, clients and status have its figures",
    "geminga help": "a text of help",
    "geminga login": "tells a person what to do in a browser, and waits for that",
    "geminga secure": "tells a person each step, and the next ones",
    "geminga completion": "a script for a shell",
    "geminga admin tokens create": "a token, as a file has it",
    "geminga admin tokens create-key-pair": "writes two files",
    "geminga admin tokens create-secret-key": "a key, as a file has it; its --output is that file, as pulsar's",
}


def walk(context=None):
    """Yield the context of each command, groups first."""
    context = context or click.Context(geminga, info_name="geminga")
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            yield from walk(click.Context(command, info_name=name, parent=context))


def ours():
    """Return contexts of all commands but `geminga admin`, whose options are those of pulsar-admin."""
    return [context for context in walk() if not context.command_path.startswith("geminga admin")]


def options(context):
    return [one for one in context.command.params if isinstance(one, click.Option) and not one.hidden]


def test_without_arguments_groups_print_their_help(capsys):
    """Help that is asked for so is no complaint: it goes to standard output, and the exit status is 0."""
    groups = [context.command_path.split()[1:] for context in walk() if getattr(context.command, "no_args_is_help", 0)]
    assert [] in groups and ["config"] in groups and ["admin", "topics"] in groups
    for words in groups:
        assert main(words) == 0
        printed, said = capsys.readouterr()
        assert printed.startswith(" ".join(["Usage: geminga", *words])) and said == "", words


def test_help_is_a_command_too(capsys):
    for words in ((), ("produce",), ("admin",), ("admin", "topics", "peek")):
        assert main([*words, "--help"]) in (0, None)
        wanted = capsys.readouterr()
        assert main(["help", *words]) in (0, None) and capsys.readouterr() == wanted and wanted.out


@pytest.mark.slow
def test_the_version_is_printed_at_every_level(capsys):
    """Some verbs of pulsar-admin have an option of the name."""
    others = {("geminga admin schemas get", "--version")}
    asked = [(context.command_path, option) for context in walk() for option in ("-V", "--version")]
    wrong = [one for one in asked if one not in others and not (
        main([*one[0].split()[1:], one[1]]) == 0
        and re.fullmatch(r"geminga \d+\.\d+\.\S+( \(.+\))?\n", capsys.readouterr().out))]
    assert len(asked) > 100 and wrong == []


def test_commands_are_listed_by_purpose_with_their_other_names(capsys):
    """Each command stands once below a heading, with the whole first sentence of its help in one line."""
    main(["--help"])
    shown = capsys.readouterr().out
    headings = re.findall(r"^(\w[\w ]+):$", shown, re.MULTILINE)
    assert headings == ["Options", "Messages", "Look", "Operate", "Access", "Data folder"]
    lines = re.findall(r"^  ([a-z-]+)(?:, ([a-z]+))? +(.+)$", shown.partition("Messages:")[2], re.MULTILINE)
    context = click.Context(geminga, info_name="geminga")
    assert [name for name, _, _ in lines] == geminga.list_commands(context)
    assert {other: name for name, other, _ in lines if other} == geminga.aliases
    for name, _, text in lines:
        assert geminga.get_command(context, name).get_short_help_str(200) == text and text.endswith("."), name


def test_texts_of_help_have_one_form():
    """A help text is of sentences, and a command outside of `geminga admin` tells its exit statuses."""
    wrong = []
    for context in ours():
        for option in options(context):
            if not re.fullmatch(r"(token:|[A-Z]).*\.", option.help or "", re.DOTALL) or "default:" in option.help:
                wrong.append((context.command_path, option.opts[-1], option.help))
        if not isinstance(context.command, click.Group) and "Exit status: 0 " not in (context.command.epilog or ""):
            wrong.append((context.command_path, "epilog"))
        if context.command.epilog and "Exit status" in context.command.epilog:
            assert "Example" not in context.command.epilog.partition("Exit status")[2], context.command_path
        text = context.command.help or ""
        if not re.match(r"[A-Z].*\.($|\n)", text) or (context.parent and re.match(r"\w+s\b", text)):
            wrong.append((context.command_path, text))
    assert wrong == []


def test_an_option_has_one_short_form_one_unit_and_one_meaning_in_all_commands():
    short, metavars, helps = defaultdict(set), defaultdict(set), defaultdict(set)
    for context in ours():
        for option in options(context):
            name = next(one for one in option.opts if one.startswith("--"))
            short[name].add(next((one for one in option.opts if len(one) == 2), ""))
            metavars[name].add(option.make_metavar(context) if not option.is_flag else "")
            helps[name].add(option.help)
    assert {name: forms for name, forms in short.items() if len(forms) > 1 and name not in OTHERS} == {}
    assert {name: forms for name, forms in metavars.items() if len(forms) > 1 and name not in OTHERS} == {}
    assert {name: forms for name, forms in helps.items() if len(forms) > 1 and name not in OTHERS | OWN_HELP} == {}


def test_topics_and_subscriptions_complete_in_all_commands_that_take_them():
    """The other cluster of an import is no broker that could be asked for names."""
    wrong = []
    for context in ours():
        takes = [one for one in context.command.params if one.name in ("topic", "topics", "place")
                 or (one.name == "to" and one.metavar == "TOPIC")]
        if any(isinstance(one, click.Argument) for one in takes):
            takes += [one for one in context.command.params if one.name == "subscription"]
        wrong += [(context.command_path, one.name) for one in takes if one.metavar != "N"
                  and one._custom_shell_complete is None and context.info_name not in ("import", "redrive")]
    assert wrong == []


def test_every_command_that_prints_a_result_has_all_forms():
    without = []
    for context in walk():
        kinds = [one.type for one in context.command.params if "-o" in one.opts and "--output" in one.opts]
        has_forms = any(isinstance(kind, click.Choice) and set(FORMS) <= set(kind.choices) for kind in kinds)
        if not isinstance(context.command, click.Group) and not has_forms:
            without.append(context.command_path)
    assert sorted(without) == sorted(NOTHING_TO_PRINT)


@pytest.mark.slow
def test_every_command_prints_its_help_and_imports_nothing_heavy():
    """-h and --help work at every level, and exit with status 0.  Imports are most of a command's start.

    A process of its own prints all help texts: click keeps a command's help option as its first context has it, which
    other tests make without -h.
    """
    paths = [context.command_path for context in walk()]
    code = (f"import sys; from geminga.supervisor.main import main\nfor path in {paths}:\n"
            "    for option in '-h', '--help': print('status', main([*path.split()[1:], option]))\n"
            "print(*sys.modules, file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=HANG_SECONDS, check=True)
    assert re.findall(r"^Usage: (geminga(?: [a-z][\w-]*)*)", done.stdout, re.MULTILINE) == [
        path for path in paths for _ in range(2)]
    assert re.findall(r"^status (.*)$", done.stdout, re.MULTILINE) == ["0"] * 2 * len(paths)
    assert set(done.stderr.split()) & HEAVY == set()
