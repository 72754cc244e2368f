"""The first hour with Geminga, as a new user spends it: a fresh Debian, and programs on a second host.

    python -m tests.appliance.first_hour                 runs the commands of docs/first-hour.md
    python -m tests.appliance.first_hour --page FILE     writes the page anew, with what the commands print

The second host is a network of its own with one cable to the Debian.  Exit status: 1 when a command does not do what
the page promises, 77 when nothing can be tried on this machine.
"""
import argparse
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import textwrap
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyte

from .box import Box, NoBox
from .installed import REPOSITORY, add_options, begin, bring, not_here

PAGE = REPOSITORY / "docs/first-hour.md"
BROKER, APP = "broker", "app"                   # prompts of the two hosts
NAME = "broker.example.com"                     # of the broker's host, on the second one
_ADDRESS, _PEER = "10.77.0.1", "10.77.0.2"
_ROWS, _COLUMNS = 24, 100
_WAIT_S = 60
_LINES_MAX = 14                                 # lines of an output that the page shows


class Step(NamedTuple):
    """A command of the page, with an expression that its output has to match somewhere."""

    command: str
    expected: str = ""
    host: str = BROKER
    status: int = 0
    lines: int = _LINES_MAX
    screen_keys: str = ""        # keys for a command that draws on a terminal; "": none


class Chapter(NamedTuple):
    """A heading of the page, a text below it, and commands."""

    heading: str
    text: str
    steps: tuple[Step, ...]


class Hosts:
    """The two hosts: a box with the broker, and a network namespace with programs."""

    def __init__(self, box: Box, folder: Path):
        self._box, self._folder = box, folder
        (folder / "home").mkdir()

    def __repr__(self) -> str:
        return f"<Hosts {self._box.root}>"

    def connect(self) -> None:
        """Lay a cable between the hosts; the second one knows the broker's host by its name."""
        for folder in ("/run/netns", "/etc/netns"):      # in this process's own mounts, so nothing is left of it
            Path(folder).mkdir(exist_ok=True)
            subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
        for command in (f"ip netns add {APP}", f"ip link add to-{APP} type veth peer name eth0 netns {APP}",
                        f"ip address add {_ADDRESS}/24 dev to-{APP}", f"ip link set to-{APP} up",
                        f"ip -n {APP} address add {_PEER}/24 dev eth0", f"ip -n {APP} link set eth0 up",
                        f"ip -n {APP} link set lo up"):
            subprocess.run(command.split(), check=True)
        hosts = Path(f"/etc/netns/{APP}/hosts")
        hosts.parent.mkdir(parents=True, exist_ok=True)
        hosts.write_text(f"127.0.0.1 localhost\n{_ADDRESS} {NAME}\n")

    def copy(self, *paths: str) -> None:
        """Copy files from the broker's host into the home folder of the second one."""
        for path in paths:
            (self._folder / "home" / Path(path).name).write_bytes(self._box.path(path).read_bytes())

    def place(self, program: Path, name: str) -> None:
        """Put a program into the home folder of the second host."""
        (self._folder / "home" / name).write_text(program.read_text())

    def words(self, step: Step) -> list[str]:
        """Return the words that run a step's command on its host."""
        if step.host == BROKER:
            return [*self._box.inside(), "sh", "-c", f"cd /root; {step.command}"]
        path = f"PATH={Path(sys.executable).parent}:/usr/bin:/bin"
        return ["ip", "netns", "exec", APP, "env", "-i", path, f"HOME={self._folder / 'home'}", "LANG=C.UTF-8",
                "sh", "-c", f"cd; {step.command}"]

    def run(self, step: Step) -> str:
        """Run a step, and return what it prints.  Raises AssertionError if that is not what the page promises."""
        if step.screen_keys:
            output = screen(self.words(step), step.screen_keys, step.expected)
        else:
            done = subprocess.run(self.words(step), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  timeout=900)
            output = done.stdout
            assert done.returncode == step.status, f"status {done.returncode}: {output}"
        assert re.search(step.expected, output, re.MULTILINE), f"{step.expected!r} is not in:\n{output}"
        return output


def screen(words: list[str], keys: str, expected: str) -> str:
    """Run a command on a terminal until it has drawn what is expected, then type keys; return the screen before them.
    """
    drawn = pyte.Screen(_COLUMNS, _ROWS)
    stream = pyte.ByteStream(drawn)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execvp(words[0], words)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    shown, until = "", time.monotonic() + _WAIT_S
    try:
        while time.monotonic() < until:
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    stream.feed(os.read(terminal, 1 << 16))
                except OSError:
                    break      # it ended
            text = "\n".join(line.rstrip() for line in drawn.display)
            if not shown and re.search(expected, text, re.MULTILINE):
                shown = text
                os.write(terminal, keys.encode())
        assert shown, f"{expected!r} is not on the screen:\n" + "\n".join(drawn.display)
        return shown
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def typed(page: str) -> list[str]:
    """Return the lines of a page that are typed, with their prompts."""
    return re.findall(rf"^(?:{BROKER}|{APP})[#$] .*(?:\\\n.*)*", page, re.MULTILINE)


def block(step: Step, output: str) -> str:
    """Return a command and its output as a block of the page; a long output is cut."""
    prompt = f"{step.host}# " if step.host == BROKER else f"{step.host}$ "
    lines = output.rstrip().splitlines()
    if len(lines) > step.lines:
        lines = [*lines[:step.lines], "..."]
    return "\n".join(["```text", prompt + step.command, *lines, "```"])


def run(hosts: Hosts, chapters: tuple[Chapter, ...], begun: Callable[[], float]) -> tuple[str, bool]:
    """Run all chapters; return (the page's text, whether all was as promised)."""
    parts, is_good = [], True
    for chapter in chapters:
        parts += [f"## {chapter.heading}", textwrap.fill(chapter.text, 118, break_long_words=False)]
        for step in chapter.steps:
            try:
                output, how = hosts.run(step), "ok"
            except Exception:
                output, how, is_good = traceback.format_exc(), "NOT SO", False
                print(output)
            print(f"{how:6} {begun():5.1f} s  {step.host}: {step.command.splitlines()[0]}", flush=True)
            parts.append(block(step, output))
    return "\n\n".join(parts) + "\n", is_good


_HEADER = """# The first hour

This page is a transcript. Every command was run on a fresh Debian, the broker's host, or on a second host;
`python -m tests.appliance.first_hour` runs them again. The prompt `broker#` is that of root on the broker's host, and
`app$` that of a user on the second host. Long outputs are cut.
"""
_URL = f"pulsar+ssl://{NAME}:6651"
_ACCESS = f"PULSAR_URL={_URL} CA=ca.pem TOKEN=admin.token"


def chapters(install: str) -> tuple[Chapter, ...]:
    """Return what the page has.  install: the command that installs the broker."""
    return (
        Chapter("Install", "One command installs the broker on Debian 12 or 13, from a checkout of the source. "
                "`--without-spark` leaves out Spark and a Java runtime, which only large nights use.", (
            Step(install, "ready", lines=6),
            Step("geminga produce my-topic Hello", r"^published \d+:\d+"),
            Step("geminga consume my-topic", "^Hello$"),
            Step("geminga status", ", ready$", lines=_ROWS),
        )),
        Chapter("Let other hosts in, securely", "So far the broker listens on 127.0.0.1, for programs of its "
                "own host. `geminga secure` makes an authority, a certificate, keys and a token, and changes the "
                "configuration so that other hosts can connect with them.", (
            Step(f"geminga secure --host {NAME}", "token", lines=40),
            Step("geminga config check | tail -n 1", "ok, as user geminga$"),
            Step("systemctl restart geminga"),
        )),
        Chapter("Run a program on the second host", "Copy the authority's certificate (`ca.pem`) and the token "
                "(`admin.token`) to the second host, which has Python with `pulsar-client`. The program "
                "[secured.py](examples/python/secured.py) publishes orders and reads them. An order without a number "
                "fails, and becomes a dead letter. A program with another token is not let in.", (
            Step(f"{_ACCESS} python secured.py alice:30 bob:20 carol:none", "alice owes 30", APP),
            Step("echo none > none.token"
                 f" && {_ACCESS.replace('admin', 'none')} python secured.py 2>&1 | tail -n 1", "Error", APP),
        )),
        Chapter("Look at what the broker did", "On the broker's own host, root needs no token.", (
            Step("geminga topics", "orders-failed"),
            Step("geminga subscriptions orders-failed", "inspection"),
            Step("geminga why orders-failed inspection", "consumer"),
            Step("geminga search public/default --key carol", "none"),
            Step("geminga consume orders-failed --show all", "carol"),
            Step("geminga top", r"orders[\s\S]*h help", screen_keys="q", lines=_ROWS),
        )),
        Chapter("Send dead letters back", "Carol's order could not be read, and went to the dead letter topic "
                "`orders-failed`. When the cause is mended, dead letters are published again to the topics that they "
                "came from. Python's client does not note which subscription lost a letter, so every subscription "
                "of the topic gets it.", (
            Step("geminga redrive orders-failed --dry-run", "1"),
            Step("geminga redrive orders-failed", "1"),
            Step("geminga consume orders", "carol:none"),
        )),
        Chapter("Back up, and restore", "A backup can be taken while the broker serves. A restore needs an empty data "
                "folder.", (
            Step("geminga backup /var/lib/geminga-backups", "partitions"),
            Step("systemctl stop geminga && rm -r /var/lib/geminga/*"),
            Step("geminga restore /var/lib/geminga-backups/2* /var/lib/geminga", "files"),
            Step("systemctl start geminga && geminga consume my-topic", "^Hello$"),
        )),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--page", type=Path, help="write the page to this file")
    options = parser.parse_args()
    debian, start = begin(options), time.monotonic()
    with tempfile.TemporaryDirectory(dir=options.cache, prefix="hour-") as name:
        folder = Path(name)
        try:
            box = Box(folder / "broker", [debian])
        except NoBox as why:
            raise not_here(why) from None
        with box:
            box.boot()
            install = " ".join(bring(box, options.package))
            hosts = Hosts(box, folder)
            hosts.connect()
            text, is_good = "", True
            for chapter in chapters(install):
                if "second host" in chapter.heading:
                    hosts.copy("/etc/geminga/secure/ca.pem", "/etc/geminga/secure/admin.token")
                    hosts.place(REPOSITORY / "docs/examples/python/secured.py", "secured.py")
                part, was_good = run(hosts, (chapter,), lambda: time.monotonic() - start)
                text, is_good = f"{text}\n{part}", is_good and was_good
    text = _HEADER + text.replace(install, "sh systemd/install.sh")
    if options.page is not None:
        options.page.write_text(text)
    elif typed(text) != typed(PAGE.read_text()):
        print(f"{PAGE.name} has other commands: write it anew with --page")
        is_good = False
    return not is_good


if __name__ == "__main__":
    raise SystemExit(main())
