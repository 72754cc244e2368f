"""Owners one after the other: what tests of crashes share."""
import shutil
import tempfile
from concurrent.futures import Future
from pathlib import Path

import pytest

from .disk import Disk
from .rig import Rig


class AtOnce:
    """In place of an executor's thread: what it is to do is done before anything else is."""

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
    """Processes one after the other on one folder, and what ended each."""

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
        """how: stop, kill, power cut, or power cut, lengths lost."""
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
