"""`geminga top`: a live screen of what a broker does, drawn by Rich; a plain snapshot where there is no terminal."""
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from geminga.supervisor.cli import grammar
from geminga.supervisor.cli.output import PAUSE
from geminga.supervisor.cli.views.screen import Line, Screen
from geminga.supervisor.cli.views.snapshots import Poller, Reader, Snapshot
from geminga.supervisor.configuration import target

if TYPE_CHECKING:
    from rich.text import Text

_TIMEOUT_S = 5.0                          # of a request
_BATCH_SECONDS = 0.5                      # between the two looks of a plain snapshot, which shows rates
_BATCH_WIDTH, _BATCH_HEIGHT = 150, 60
_WAIT_SECONDS = 60.0                      # for keys; snapshots end the wait


@click.command(epilog="\b\nKeys:\n  t, u, c        topics, subscriptions, clients\n  o              overview\n"
                      "  arrows, Enter  choose a row, open its topic\n"
                      "  w              ask why a subscription stands still\n"
                      "  s, r, /        sort, turn the order, filter\n  h, q           help, quit\n\n" + grammar.STATUS)
@click.option("--interval", "-i", metavar="TIME", default="2s", show_default=True, type=PAUSE,
              help="Time between two looks.")
@click.option("--batch", "-b", is_flag=True, help="Print one plain snapshot, as where there is no terminal.")
@target.admin_options
def top(interval: float, batch: bool, **who: Any) -> int:
    """Watch a broker on a live screen.

    The screen has rates, busiest topics, slowest subscriptions, processes, cores, memory and disk.
    """
    broker = target.of(who)
    reader, screen = Reader(broker.broker(_TIMEOUT_S)), Screen(broker.admin_url)
    first = reader.read(screen.wanted())
    if batch or not (sys.stdin.isatty() and sys.stdout.isatty()):
        time.sleep(_BATCH_SECONDS)
        screen.show(reader.read(screen.wanted()))
        lines = [line.text.rstrip() for line in screen.lines(_BATCH_WIDTH, _BATCH_HEIGHT)[:-1]]
        print("\n".join(lines).rstrip())
        return 0
    return _watch(screen, reader, first, interval)


def _watch(screen: Screen, reader: Reader, first: Snapshot, interval_s: float) -> int:
    """Draw the screen until a key or a signal ends it.  Returns the exit status."""
    from rich.console import Console
    from rich.live import Live

    from geminga.supervisor.cli.views.terminal import Terminal
    screen.show(first)
    console = Console()
    with Terminal(sys.stdin.fileno()) as terminal, Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        poller = Poller(reader, interval_s, terminal.wake)
        poller.start(screen.wanted())
        try:
            while not screen.is_over and terminal.ended_by is None:
                live.update(_drawn(screen.lines(*console.size)), refresh=True)
                for key in terminal.keys(_WAIT_SECONDS):
                    screen.press(key)
                poller.want(screen.wanted())
                while not poller.snapshots.empty():
                    screen.show(poller.snapshots.get())
        finally:
            poller.stop()
    import signal
    return 128 + terminal.ended_by if terminal.ended_by not in (None, signal.SIGINT) else 0


def _drawn(lines: list[Line]) -> "Text":
    from rich.text import Text
    drawn = Text(no_wrap=True, overflow="crop", end="")
    for number, line in enumerate(lines):
        drawn.append(("\n" if number else "") + line.text, line.style or None)
    return drawn
