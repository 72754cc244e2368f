"""Command lines that the runbook, the documents and the units tell operators to type are valid for the command."""
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import click
import pytest

from geminga.supervisor.main import geminga

from .breaches import assert_none
from .harness import HANG_SECONDS, Broker

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "systemd/runbook").glob("*.md"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
UNITS = sorted((ROOT / "systemd").glob("*.service"))
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
# commands that look for the installed broker's folder
FINDS = ("backup", "config check", "config show", "debug bundle", "drain", "nightly", "promote", "reload", "search",
         "tables", "tune")


def lines_of(page):
    """Return the words behind `geminga` of each line that is to be typed, without the shell's own parts."""
    for line in page.read_text().replace(synopsis(), "").replace("\\\n", " ").splitlines():
        if found := re.match(r" {4,7}(?:runuser -u geminga -- )?geminga ((?!\[).*)", line):
            yield shlex.split(re.sub(r"\$\(.*?\)", "1", found[1].partition(" > ")[0]), comments=True)


def synopsis():
    """Return the lines of docs/command.md that list the commands, with brackets around optional words."""
    return re.search(r"(?:^    geminga .*\n){10,}", (ROOT / "docs/command.md").read_text(), re.MULTILINE)[0]


def inline_of(page):
    """Return the words behind `geminga` of each command line that stands within a sentence."""
    for code in re.findall(r"[`;] ?(geminga [^`;]+|runuser [^`;]+)", page.read_text()):
        if found := re.match(r"(?:runuser -u geminga -- )?geminga ([a-z].*)", code, re.DOTALL):
            yield [word for word in found[1].replace("|", " ").split() if word != "..."]


def found(words):
    """Return (the command's context, the words behind its name).  Raises UsageError."""
    context, words = click.Context(geminga, info_name="geminga"), list(words)
    while isinstance(context.command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        if (command := context.command.get_command(context, name)) is None:
            raise click.UsageError(f"there is no {name}", context)
        context = click.Context(command, info_name=name, parent=context)
    return context, words


# programs that every Debian with systemd has
MINIMAL = {"apt-get", "cat", "df", "du", "echo", "geminga", "grep", "head", "install", "journalctl", "ls", "runuser",
           "sort", "sync", "systemctl", "tail", "timedatectl", "uniq"}


def test_the_runbook_names_the_package_of_each_program_that_its_pages_use():
    """A night's trouble is no time to learn that a minimal Debian has no curl."""
    contents = (ROOT / "systemd/runbook/README.md").read_text()
    packages = dict(re.findall(r"^\| `([a-z]+)` \| ([a-z0-9-]+) \|", contents, re.M))
    used = {word for page in PAGES for line in re.findall(r"^ {4,7}([a-z].*)", page.read_text(), re.M)
            for word in re.findall(r"(?:^|[;|] *)([a-z-]+)(?= |$)", line.partition("  #")[0])}
    assert used - MINIMAL == packages.keys()
    install = re.search(r"`apt-get install (.*)`", contents)[1]
    assert install.split() == sorted(packages.values())


def commands():
    """Return the words behind `geminga` of all commands of the runbook; those that lack words get --help."""
    for page in PAGES:
        for words in [*lines_of(page), *inline_of(page)]:
            if "--help" not in words:
                try:
                    parsed(words)
                except click.MissingParameter:
                    words.append("--help")
            yield tuple(words)


def parsed(words):
    """Parse a command line as the command itself would.  Raises UsageError."""
    context, rest = found(words)
    files = {one: one.type for one in context.command.params if isinstance(one.type, click.Path | click.File)}
    for one in files:
        one.type = click.STRING      # the page's FILE does not exist here
    try:
        context.command.make_context(context.info_name, rest, parent=context.parent)
    finally:
        for one, kind in files.items():
            one.type = kind      # other tests of this process call the same command


def test_every_line_of_the_runbook_and_of_documents_is_one_that_the_command_takes():
    assert_none(f"{page.name}: geminga {' '.join(words)}: {why}" for page in [*PAGES, *DOCUMENTS]
                for words in lines_of(page) if (why := why_not(parsed, words)))


def test_every_command_and_option_that_a_page_names_is_there():
    assert_none(f"{page.name}: geminga {' '.join(words)}: {why}" for page in [*PAGES, *DOCUMENTS]
                for words in inline_of(page) if (why := why_not(known, words)))


def why_not(look, words):
    try:
        look(words)
    except click.ClickException as refused:
        return refused.format_message()
    return None


def known(words):
    """Look up the command and the options of a line, which may lack values.  Raises UsageError."""
    context, rest = found(words)
    options = {name for one in context.command.get_params(context) for name in one.opts}
    strange = {word.partition("=")[0] for word in rest if word.startswith("--")} - options
    if strange or (rest and isinstance(context.command, click.Group)):
        raise click.UsageError(f"there is no {' '.join(strange or rest)}", context)


def test_commands_are_found_in_the_pages():
    """Many commands are found in the pages: were none found, the other tests here would check nothing."""
    assert len([words for page in PAGES for words in lines_of(page)]) > 10
    assert len([words for page in DOCUMENTS for words in lines_of(page)]) > 40
    assert len([words for page in PAGES for words in inline_of(page)]) > 10


def test_every_line_of_the_synopsis_names_a_command_and_options_that_are_there():
    lines = re.findall(r"^    geminga (.*)$", synopsis(), re.MULTILINE)
    assert len(lines) > 20
    for line in lines:
        *group, last = re.match(r"[a-z]+(?:[ -][a-z]+)*(\|[a-z|]+)?", line)[0].split()
        options = set()
        for name in last.split("|"):
            context, rest = found([*group, name])
            options |= {name for one in context.command.get_params(context) for name in one.opts}
            assert not rest or not isinstance(context.command, click.Group), line
        assert set(re.findall(r"--[a-z-]+", line)) <= options, line


def test_the_synopsis_has_each_command_that_the_command_lists_and_no_other():
    context = click.Context(geminga, info_name="geminga")
    named = [words.split()[0] for words in re.findall(r"^    geminga (.*)$", synopsis(), re.MULTILINE)]
    assert set(named) == set(geminga.list_commands(context))


def options_of(context):
    """Return every option of a command and of its subcommands."""
    yield from (name for one in context.command.get_params(context) for name in (*one.opts, *one.secondary_opts))
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            yield from options_of(click.Context(command, info_name=name, parent=context))


def test_every_option_that_a_sentence_names_is_one_of_the_command_or_of_a_script():
    known = {*options_of(click.Context(geminga, info_name="geminga")), "--since"}      # an option of journalctl
    scripts = [ROOT / "systemd/install.sh", ROOT / "supervisor/bootstrap.py", ROOT / "tests/interpreters.py",
               *(ROOT / "tests/bench").glob("*.py"), *(ROOT / "tests/lab").glob("*.py")]
    known |= {f"--{word}" for path in scripts
              for word in re.findall(r"""(?:--|["'])([a-z][a-z-]+)""", path.read_text())}
    wrong = [(page.name, option) for page in [*PAGES, *DOCUMENTS]
             for code in re.findall(r"`([^`\n]+)`", page.read_text())
             for option in re.findall(r"(?<![\w-])--[a-z][\w-]*(?<!-)(?![\w-])", code) if option not in known]
    assert wrong == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_every_line_of_a_unit_is_one_that_the_command_takes(unit):
    lines = re.findall(r"^#? *Exec\w+=-?/usr/bin/geminga (.*)$", unit.read_text(), re.MULTILINE)
    assert lines or "Exec" not in unit.read_text()
    for line in lines:
        parsed(shlex.split(line))


# -- on an installed host

@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """installed(words...): runs the packaged command below a folder whose configuration names a data folder."""
    root = tmp_path_factory.mktemp("installed")
    program, site = root / "usr/lib/geminga", root / f"usr/lib/geminga/lib/{PYTHON}/site-packages"
    (program / "bin").mkdir(parents=True)
    (program / "bin/python3").symlink_to(os.path.realpath(sys.executable))
    (program / "pyvenv.cfg").write_text(f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n")
    site.mkdir(parents=True)
    (site / "all.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    (root / "etc/geminga").mkdir(parents=True)
    (root / "etc/geminga/geminga.toml").write_text(f'data_dir = "{root}/var"\ncluster_name = "of-the-package"\n')
    launcher = "import sys; from geminga.supervisor.main import main; sys.exit(main())"

    def run(*words, cwd=root):
        done = subprocess.run([program / "bin/python3", "-I", "-c", launcher, *map(str, words)], cwd=cwd,
                              capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
        return done.returncode, done.stdout, done.stderr
    run.root = root
    return run


def takes_a_folder(context):
    """Yield each command that has --data-dir, except those that only reach a broker by its sockets."""
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            yield from takes_a_folder(click.Context(context.command.get_command(context, name), info_name=name,
                                                    parent=context))
        return
    options = {name for one in context.command.params for name in one.opts}
    if "--data-dir" in options and not ("--context" in options and "--config" not in options):
        yield context.command_path.partition(" ")[2]


@pytest.mark.slow
def test_every_command_that_is_about_a_data_folder_finds_the_installed_one(installed, tmp_path):
    """Every command but `serve` takes the data folder that the installed configuration names."""
    assert set(takes_a_folder(click.Context(geminga, info_name="geminga"))) == {*FINDS, "serve"}
    broker = Broker(installed.root / "var")
    (tmp_path / "data").mkdir()      # a folder `data` where the command is run is not taken
    try:
        broker.start()
        for line in ("config check", "config show", "tune", f"backup {tmp_path}/backups", "nightly --engine here",
                     "nightly report", "nightly plan", "tables", f"debug bundle {tmp_path}/bundle", "status",
                     "produce orders hello", "consume orders", "admin topics list public/default",
                     "drain --seconds 1"):
            status, printed, complaints = installed(*line.split(), cwd=tmp_path)
            assert status == 0, (line, printed, complaints)
        assert broker.ended() == 0
    finally:
        broker.close()
    status, printed, _ = installed("search", "public/default", cwd=tmp_path)      # without the broker
    assert status == 0 and "hello" in printed
    status, _, complaints = installed("reload", cwd=tmp_path)
    assert status == 1 and f"{installed.root}/var" in complaints
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.slow
def test_every_command_of_the_runbook_runs_on_an_installed_host(installed, tmp_path):
    """Each is understood and finds the installed broker: none needs an address or a token, and none fails badly."""
    broker = Broker(installed.root / "var")
    topic = "public/default/runbook"
    try:
        broker.start()
        assert installed("produce", topic, "hello")[0] == 0
        ledger = next((installed.root / "var/partitions").glob("*/*.ledger"))
        places = {"TOPIC": topic, "SUBSCRIPTION": "billing", "NAMESPACE": "public/default", "ROLE": "joe",
                  "ACTION": "produce", "TOKEN": "e30.e30.", "FILE": ledger, "BACKUP": tmp_path / "none",
                  "/var/lib/geminga": installed.root / "var", "/mnt/OTHER/geminga": tmp_path / "backups"}
        for words in sorted(set(commands())):
            if "-s" in words or words[0] == "why":
                installed("admin", "topics", "create-subscription", topic, "-s", "billing")
            status, printed, complaints = installed(*(places.get(word, word) for word in words), cwd=tmp_path)
            assert status != 2 and "Traceback" not in complaints, (words, status, printed, complaints)
            assert "Connection refused" not in complaints, (words, complaints)
    finally:
        broker.close()


@pytest.mark.slow
def test_what_is_named_is_stronger_than_what_is_installed(installed, tmp_path):
    (tmp_path / "geminga.toml").write_text(f'data_dir = "{tmp_path}/named"\n')
    for options, place in ((("--data-dir", tmp_path / "other"), "other"),
                           (("--config", tmp_path / "geminga.toml"), "named")):
        status, printed, _ = installed("config", "show", *options)
        assert status == 0 and f'data_dir = "{tmp_path}/{place}"' in printed and "of-the-package" not in printed
    assert 'cluster_name = "of-the-package"' in installed("config", "show")[1]


@pytest.mark.slow
def test_a_configuration_that_is_installed_and_cannot_be_read_is_one_line(installed, tmp_path):
    place = installed.root / "etc/geminga/geminga.toml"
    kept = place.rename(tmp_path / "kept")
    try:
        for line in ("config check", "tune", "backup x", "nightly", "debug bundle x", "reload", "drain"):
            status, printed, complaints = installed(*line.split(), cwd=tmp_path)
            assert (status, printed) == (2, "") and len(complaints.splitlines()) == 1, complaints
            assert complaints.startswith(f"geminga: {place}: there is no such configuration file: ")
    finally:
        kept.rename(place)
