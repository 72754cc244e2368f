"""Progress of long work: a bar on a terminal, nothing elsewhere, so that logs and pipes stay clean."""
import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as Drawn
    from rich.progress import TaskID


class Progress(Protocol):
    """A report of long work about how far it has come."""

    def advance(self, amount: float = 1) -> None:
        """Tell that so much more is done."""

    def total(self, total: float) -> None:
        """Tell how much there is to do, where that is known only later."""

    def begin(self, label: str) -> None:
        """Tell that another stage of the work begins, of which nothing is done yet."""


class _Silent:
    """Progress that nobody watches."""

    def advance(self, amount: float = 1) -> None:
        pass

    def total(self, total: float) -> None:
        pass

    def begin(self, label: str) -> None:
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

    def begin(self, label: str) -> None:
        self._bar.reset(self._task, description=label)


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
    with stages(label, is_bytes=is_bytes) as tell:
        yield partial(tell, label)


@contextlib.contextmanager
def stages(label: str, *, is_bytes: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar as `progress` does for work of several stages, which follow each other.

    label: the first stage.  Yield a function that is told (stage, amount done so far, amount in all).
    """
    with progress(label, is_bytes=is_bytes) as bar:
        stage, before = label, 0

        def tell(now: str, done: int, total: int) -> None:
            nonlocal stage, before
            if now != stage:
                bar.begin(now)
                stage, before = now, 0
            bar.total(total)
            bar.advance(done - before)
            before = done

        yield tell
