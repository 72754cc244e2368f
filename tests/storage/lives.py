"""Successive processes of an owner on one data folder, for tests of crashes."""
import shutil
import tempfile
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis.stateful import RuleBasedStateMachine

from .disk import Disk
from .rig import Rig


class AtOnce:
    """A stand-in for an executor with a thread: `submit` runs the work before it returns."""

    def __init__(self, *_):
        pass

    def submit(self, work, *arguments):
        done = Future()
        try:
            done.set_result(work(*arguments))
        except OSError as error:
            done.set_exception(error)
        return done

    def shutdown(self):
        pass


class Lives:
    """Runs an owner's processes one after the other on one data folder, and ends each by a stop, a kill or a power
    cut.
    """

    def __init__(self, **options):
        self.options = options
        self.folder = Path(tempfile.mkdtemp())
        self.patch = pytest.MonkeyPatch()
        self.disk = Disk(self.folder / "0", self.patch)
        self.rig = Rig(self.folder / "0", **self.options)

    def close(self):
        self.rig.close()
        self.patch.undo()
        shutil.rmtree(self.folder)

    def next(self, how):
        """End the current process and start the next one. how: "stop", "kill", "power cut", or "power cut, lengths
        lost".
        """
        old = self.rig
        old.settle()
        target = self.folder / str(int(old.data_dir.name) + 1)
        if how == "stop":
            old.close()
            self.rig = Rig(old.data_dir, now_ms=old.now_ms, **self.options)
            return
        if how == "kill":
            shutil.copytree(old.data_dir, target)
        else:
            self.disk.after_power_cut(target, with_sizes=how == "power cut")
        self.disk.data_dir = target
        old.close()
        self.rig = Rig(target, now_ms=old.now_ms, **self.options)
        shutil.rmtree(old.data_dir)


class LivesMachine(RuleBasedStateMachine):
    """A state machine of Hypothesis over the processes of an owner."""

    def __init__(self, **options):
        super().__init__()
        self.lives = Lives(**options)

    @property
    def rig(self):
        return self.lives.rig

    def teardown(self):
        self.lives.close()
