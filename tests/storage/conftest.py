"""Owners to drive and journals to write, closed when their test ends."""
import pytest

from geminga.storage.upkeep import delayed_scheduler

from .delays import Life
from .journals import Journals
from .lives import AtOnce
from .rig import Rig
from .transactional import TransactionalRig


class Rigs:
    """Starts owners on the test's folders; a crashed one is kept on files that no other owner uses."""

    def __init__(self, folder, kind=Rig):
        """kind: the class of each rig."""
        self._folder, self._kind = folder, kind
        self._made = []

    def __call__(self, **options) -> Rig:
        return self._keep(self._kind(self._folder / f"data-{len(self._made)}", **options))

    def on(self, data_dir, **options) -> Rig:
        """Start an owner on this folder."""
        return self._keep(self._kind(data_dir, **options))

    def crash(self, rig, **options) -> Rig:
        """Kill the owner, and return the next one after its recovery."""
        return self._keep(rig.crashed(self._folder / f"data-{len(self._made)}", **options))

    def restart(self, rig, **options) -> Rig:
        """Stop the owner, and start the next one on the same folder."""
        self._made.remove(rig)
        rig.close()
        return self._keep(self._kind(rig.data_dir, now_ms=rig.now_ms, **rig.settings | options))

    def _keep(self, rig):
        self._made.append(rig)
        return rig

    def close(self):
        for rig in self._made:
            rig.close()


@pytest.fixture
def rigs(tmp_path):
    made = Rigs(tmp_path)
    yield made
    made.close()


@pytest.fixture
def uncoordinated(tmp_path):
    """Rigs without coordinators: the test says when a transaction is added and ended."""
    made = Rigs(tmp_path, TransactionalRig)
    yield made
    made.close()


@pytest.fixture
def rig(rigs):
    return rigs()


@pytest.fixture
def opened(tmp_path):
    """A function opened() that opens the journal in the test's folder for writing."""
    made = Journals(tmp_path)
    yield made
    made.close_all()


@pytest.fixture
def saves_at_once(monkeypatch):
    """Save delayed indexes in the pass instead of a thread, when the test's clock says so."""
    monkeypatch.setattr(delayed_scheduler, "ThreadPoolExecutor", AtOnce)


@pytest.fixture
def life(rigs):
    """An owner with consumers that take delayed messages."""
    return Life(rigs())
