"""Threads of which one runs at a time, for as long as the seed says: a checkpoint's, beside the owner's.

Each goes on from one call of the disk to the next.  `Turns` stands where a ThreadPoolExecutor would, `Lock` where a
threading.Lock would.
"""
import random
import threading
from concurrent.futures import Future

from .disk import Disk, Killed


class Task(Future):
    def __init__(self, turns: "Turns", work, arguments):
        super().__init__()
        self._turns, self._work, self._arguments = turns, work, arguments
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def go_on(self) -> None:
        """Run the task to its next call of the disk, or to its end."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        before, self._turns.running = self._turns.running, self
        self._go.release()
        self._back.acquire()
        self._turns.running = before
        if self.done():
            self._thread.join()

    def _run(self) -> None:
        self._go.acquire()
        try:
            self.set_result(self._work(*self._arguments))
        except BaseException as error:
            self.set_exception(error)
        finally:
            self._back.release()

    def wait(self) -> None:
        self._back.release()
        self._go.acquire()

    def exception(self, timeout=None):
        self._end()
        return super().exception()

    def result(self, timeout=None):
        self._end()
        return super().result()

    def _end(self) -> None:
        while not self.done():
            self.go_on()
            if self._turns.is_locked:      # another task has to give a lock back
                self._turns.is_locked = False
                self._turns.some()
            if self._turns.disk.is_dead:
                raise Killed


class Turns:
    """The simulated threads of one process, which take turns."""

    def __init__(self, disk: Disk, chance: random.Random):
        self.disk, self.chance = disk, chance
        self.tasks: list[Task] = []
        self.running: Task | None = None          # None: the owner
        self.is_locked = False                    # a task has met a lock that is taken
        self._owner_yields = chance.choice([0.05, 0.3, 0.9])      # per call of the disk
        self._task_yields = chance.choice([0.05, 0.5, 0.9])
        disk.pause, disk.is_owner = self.pause, lambda: self.running is None

    def submit(self, work, *arguments) -> Task:
        """Start a task; it runs for a while at once, or later."""
        self.tasks.append(task := Task(self, work, arguments))
        if self.running is None and self.chance.random() < 0.3:
            for _ in range(self.chance.randint(1, 30)):
                if not task.done():
                    task.go_on()
        return task

    def pause(self) -> None:
        """Let other tasks run before a call of the disk."""
        if self.running is not None:
            if self.chance.random() < self._task_yields:
                self.running.wait()
        elif self.tasks and self.chance.random() < self._owner_yields:
            self.some()

    def some(self) -> None:
        """Let one unfinished task go on."""
        self.tasks = [task for task in self.tasks if not task.done()]
        if self.tasks:
            self.chance.choice(self.tasks).go_on()

    def shutdown(self, wait: bool = True) -> None:
        while self.tasks and not self.disk.is_dead:
            self.some()

    def end(self) -> None:
        """Drop all tasks: the process is dead."""
        assert self.disk.is_dead
        for task in self.tasks:
            while task._thread is not None and not task.done():
                task.go_on()
        self.tasks, self.running = [], None


class Lock:
    def __init__(self, turns: Turns):
        self._turns, self._is_taken = turns, False

    def __enter__(self):
        while self._is_taken:
            if self._turns.disk.is_dead:
                raise Killed
            if self._turns.running is not None:
                self._turns.is_locked = True
                self._turns.running.wait()
            else:
                self._turns.some()
        self._is_taken = True

    def __exit__(self, *_):
        self._is_taken = False
