"""The simulated disk of power-cut tests, while one thread syncs files and others create, rename and delete them."""
import os
import sys
import threading

import pytest

from .disk import Disk


@pytest.fixture
def switching():
    """Make threads take turns as often as possible during a test."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_syncs_of_several_threads_are_all_noticed(tmp_path, monkeypatch, switching):
    disk, folder, errors = Disk(tmp_path / "data", monkeypatch), tmp_path / "data" / "p", []
    folder.mkdir(parents=True)

    def sync(path):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def work(name):
        try:
            for number in range(40):
                fresh, path = folder / f"{name}-{number}.new", folder / f"{name}-{number}"
                fresh.write_bytes(path.name.encode())
                fd = os.open(fresh, os.O_RDONLY)
                sync(fresh)
                fresh.replace(path)
                sync(folder)
                if number % 2:
                    path.unlink()
                    os.fdatasync(fd)
                os.close(fd)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    sync(folder)
    disk.after_power_cut(tmp_path / "left", with_sizes=False)
    assert {path.name: path.read_bytes() for path in (tmp_path / "left" / "p").iterdir()} == {
        f"{name}-{number}": b"%s-%d" % (name.encode(), number) for name in "abc" for number in range(0, 40, 2)}
