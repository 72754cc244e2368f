"""Progress of long work: a bar on a terminal, nothing elsewhere, so that logs and pipes stay clean."""
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as Drawn
    from rich.progress import TaskID

_BAR_WIDTH = 20              # characters


class Progress(Protocol):
    """A report of long work about how far it has come."""

    def advance(self, amount: float = 1) -> None:
        """Tell that so much more is done."""

    def total(self, total: float) -> None:
        """Tell how much there is to do, where that is known only later."""


class _Silent:
    """Progress that nobody watches."""

    def advance(self, amount: float = 1) -> None:
        pass

    def total(self, total: float) -> None:
        pass


class _Bar:
    """Progress as a bar of Rich."""

    def __init__(self, bar: "Drawn", task: "TaskID"):
        self._bar, self._task = bar, task

    def __repr__(self) -> str:
        return f"<_Bar {self._task}>"

    def advance(self, amount: float = 1) -> None:
        self._bar.advance(self._task, amount)

    def total(self, total: float) -> None:
        self._bar.update(self._task, total=total)


@contextlib.contextmanager
def progress(label: str, total: float | None = None, *, is_bytes: bool = False,
             is_shown: bool = True) -> Iterator[Progress]:
    """Show a bar with rate and time left on standard error while the block runs, if that is a terminal.

    total: what there is to do, None while unknown.  is_bytes: whether amounts are bytes, not pieces.  is_shown: False
    for work that turned out to be short.
    """
    if not is_shown or not sys.stderr.isatty():
        yield _Silent()
        return
    from rich import progress as rich
    from rich.console import Console
    amounts: tuple[rich.ProgressColumn, ...] = (rich.MofNCompleteColumn(),)
    if is_bytes:
        amounts = rich.DownloadColumn(binary_units=True), rich.TransferSpeedColumn()
    with rich.Progress(rich.TextColumn("{task.description}"), rich.BarColumn(), *amounts, rich.TimeRemainingColumn(),
                       console=Console(stderr=True), transient=True,
                       redirect_stdout=sys.stdout.isatty()) as bar:      # else a pipe's text would go to the terminal
        task = bar.add_task(label, total=total)
        yield _Bar(bar, task)


@contextlib.contextmanager
def done_of_total(label: str, *, is_bytes: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show a bar as `progress` does; yield a function that is told (amount done so far, amount in all)."""
    with progress(label, is_bytes=is_bytes) as bar:
        before = 0

        def tell(done: int, total: int) -> None:
            nonlocal before
            bar.total(total)
            bar.advance(done - before)
            before = done

        yield tell


@contextlib.contextmanager
def watched(look: Callable[[], tuple[float, str]]) -> Iterator[None]:
    """Show a bar and a text beside it on standard error while the block runs, if that is a terminal.

    look: returns (share that is done, from 0 to 1, the text), and is called some times a second by another thread.
    """
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    def line() -> Table:
        ratio, text = look()
        drawn = Table.grid(padding=(0, 1))
        drawn.add_row(ProgressBar(total=1, completed=ratio, width=_BAR_WIDTH), Text(text))
        return drawn

    with Live(get_renderable=line, console=Console(stderr=True), transient=True,
              redirect_stdout=sys.stdout.isatty()):      # else a pipe's text would go to the terminal
        yield
