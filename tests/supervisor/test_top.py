"""`geminga top` in a pseudo terminal: what is drawn, what keys do, and how the terminal is left."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios

import pulsar
import pyte
import pytest

from geminga.supervisor import main

from ..harness import COMMAND, eventually

pytestmark = pytest.mark.slow
OWN_OPTIONS = "--owners", "2", "--workers", "1"
WIDTH, HEIGHT = 132, 40
UP, DOWN, ESCAPE = "\x1b[A", "\x1b[B", "\x1b"


@pytest.fixture(scope="module", autouse=True)
def filled(own, client):
    """A topic whose four messages a consumer holds, and one that has none."""
    consumer = client.subscribe("held", "billing", pulsar.ConsumerType.Shared, consumer_name="till")
    client.subscribe("quiet", "reports").close()
    producer = client.create_producer("held")
    for _ in range(4):
        producer.send(b"x")
    yield
    consumer.close()


class Terminal:
    """A pseudo terminal with a program in it, and a terminal emulator that shows what it draws."""

    def __init__(self, *words):
        self.screen = pyte.Screen(WIDTH, HEIGHT)
        self._stream = pyte.ByteStream(self.screen)
        self._ours, self._theirs = pty.openpty()
        self._readable = select.poll()      # select.select takes no descriptor above 1,023
        self._readable.register(self._ours, select.POLLIN)
        self.resize(WIDTH, HEIGHT)
        self.before = termios.tcgetattr(self._theirs)
        self.bytes = b""
        # In a process of pytest-xdist these two have the size of a terminal that is not there.
        environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [COMMAND[0], *words], stdin=self._theirs, stdout=self._theirs, stderr=self._theirs, close_fds=True,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env=environ | {"TERM": "xterm-256color"})

    def resize(self, width, height):
        self.screen.resize(height, width)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def type(self, text):
        os.write(self._ours, text.encode())

    def text(self):
        """Return what stands on the screen, after everything written by now."""
        while self._readable.poll(20):
            try:
                data = os.read(self._ours, 65_536)
            except OSError:
                break
            self.bytes += data
            self._stream.feed(data)
        return "\n".join(self.screen.display)

    def shows(self, *parts):
        """Wait until all texts stand on the screen; return the screen."""
        return eventually(lambda: text if all(part in (text := self.text()) for part in parts) else None,
                          what=f"{parts} on the screen:\n{self.text()}")

    def ended(self):
        """Wait for the program's end, and return its exit status."""
        eventually(lambda: (self.text(), self.process.poll() is not None)[1], what="the end")
        self.text()
        return self.process.returncode

    def is_restored(self):
        """Whether the terminal has echo and lines again, its cursor, and the first screen."""
        last = {kind: self.bytes.rfind(kind) for kind in (b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25l", b"\x1b[?25h")}
        return (termios.tcgetattr(self._theirs) == self.before and last[b"\x1b[?1049l"] > last[b"\x1b[?1049h"] >= 0
                and last[b"\x1b[?25h"] > last[b"\x1b[?25l"])

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def top(own):
    made = []

    def start(url=own.http_url):
        made.append(Terminal("top", "--interval", "200ms", "--admin-url", url))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_the_screen_shows_rates_topics_subscriptions_processes_and_cores(top):
    screen = top().shows("Busiest topics", "public/default/held", "Slowest subscriptions", "billing", "cores      0:")
    assert re.search(r"Geminga \d\S* at http://127.0.0.1:\d+, up .*, ready", screen)
    assert re.search(r"worker-0 \d+% \S+ MiB", screen) and re.search(r"disk .* free", screen)
    assert "2 subscriptions" in screen and "1 producers" in screen


def test_keys_open_sort_filter_and_ask_why(top):
    terminal = top()
    terminal.shows("Busiest topics", "public/default/held")
    terminal.type("u")
    terminal.shows("Subscriptions by backlog", "billing", "reports")
    terminal.type("s")
    terminal.shows("Subscriptions by oldest")
    terminal.type("w")
    terminal.shows("held, subscription billing (Shared): 4 messages are not acknowledged", "Consumer till (127.0.0.1:")
    terminal.type(ESCAPE)
    terminal.shows("Subscriptions by oldest")
    terminal.type("t")
    terminal.shows("Topics by in/s", "public/default/quiet")
    terminal.type("/qui")
    terminal.shows("filter: qui_")
    terminal.type("\r")
    screen = terminal.shows("Topics by in/s, with qui", "public/default/quiet")
    eventually(lambda: "default/held" not in terminal.text())
    terminal.type("\r")
    screen = terminal.shows("Subscriptions of public/default/quiet", "reports")
    assert "billing" not in screen
    terminal.type("c")
    terminal.shows("Clients by connected", "Pulsar-CPP", "127.0.0.1:")
    terminal.type("h")
    terminal.shows("ask why the subscription of the row stands still")
    terminal.type("hq")
    assert terminal.ended() == 0 and terminal.is_restored()


def test_arrows_choose_the_row_that_enter_opens(top):
    terminal = top()
    terminal.shows("Busiest topics", "public/default/held")
    terminal.type("tsr")
    terminal.shows("Topics by in turned")
    terminal.type("ssssssss")
    terminal.shows("Topics by topic turned", "public/default/quiet")
    terminal.type("r")
    eventually(lambda: (text := terminal.text()).find("default/held") < text.find("default/quiet"))
    terminal.type(DOWN + DOWN + UP + DOWN + "\r")
    terminal.shows("Subscriptions of public/default/quiet")


@pytest.mark.parametrize("end, status", [("q", 0), ("\x03", 0), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_the_terminal_is_restored_at_every_end(top, end, status):
    terminal = top()
    terminal.shows("Busiest topics", "public/default/held")
    assert termios.tcgetattr(terminal._theirs) != terminal.before
    if isinstance(end, str):
        terminal.type(end)
    else:
        terminal.process.send_signal(end)
    assert terminal.ended() == status and terminal.is_restored()


def test_a_resize_draws_anew(top):
    terminal = top()
    terminal.shows("Busiest topics")
    terminal.resize(70, 20)
    terminal.shows("t topics  u subscriptions", "Slowest subscriptions")
    assert max(map(len, terminal.text().splitlines())) <= 70


def test_a_broker_that_goes_away_is_waited_for(top, start_broker):
    other = start_broker()
    port = other.http_url.rpartition(":")[2]
    terminal = top(other.http_url)
    terminal.shows("Busiest topics", "ready")
    other.stop()
    terminal.shows("not reachable, trying again: http://127.0.0.1:" + port, "Busiest topics")
    terminal.type("h")
    terminal.shows("choose a row")
    terminal.type("q")
    assert terminal.ended() == 0 and terminal.is_restored()


def test_without_a_terminal_it_is_one_plain_snapshot(own, capsys):
    assert main.main(["top", "--admin-url", own.http_url]) == 0
    printed = capsys.readouterr().out
    assert "public/default/held" in printed and "Slowest subscriptions" in printed and "\x1b" not in printed
    assert re.search(r"cores      0: *\d+%", printed)


def test_a_broker_that_cannot_be_reached_at_first_is_one_line(capsys):
    assert main.main(["top", "-b", "--admin-url", "http://127.0.0.1:1"]) == 3
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
