"""A standby whose disk is full, that has other formats, or whose broker refuses clients: it goes on when it can.

A real feed of a folder without a broker, and a real follower in this process.
"""
import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
import threading

import pytest

from geminga.storage import format
from geminga.storage.catalogue import layout
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.storage.ledgers.journal import Record, open_journal
from geminga.storage.owner.recovery import journal_folder
from geminga.storage.runtime.lease import Lease
from geminga.storage.standby import copy, frames, standing
from geminga.storage.standby.journal_tail import JournalTail, beginning
from geminga.supervisor.configuration.config import Config, StandbyOptions
from geminga.supervisor.standby import following
from geminga.supervisor.standby.feed import SWITCHED
from geminga.supervisor.standby.following import About, Follower

from ..harness import eventually

OP = format.PARTITION_DELETED.to_bytes(8, "little") + bytes(32)


class Pair:
    """A folder with one journal, and a follower that keeps a copy of it."""

    def __init__(self, folder, monkeypatch):
        self.first, self.second = folder / "first", folder / "second"
        self.second.mkdir()
        (self.first / "partitions").mkdir(parents=True)
        open_catalogue(self.first / "catalogue.sqlite").close()
        self.journal = open_journal(journal_folder(self.first, 0), segment_bytes=1 << 20, segments_max=3)
        self.feeds, self.told, self.lease = [], [], Lease()
        monkeypatch.setattr(following, "_AGAIN_LATER_SECONDS", 0.05)
        config = Config(data_dir=self.second, standby=StandbyOptions(of="pulsar://first"))
        self.follower = Follower(config, About("second", "pulsar://:1", "http://:2"))
        self.follower._connected = self._connected

    def _connected(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            ours = socket.create_connection(server.getsockname())
            theirs = server.accept()[0]
        with theirs:
            words = [sys.executable, "-P", "-m", "geminga.supervisor.standby.feed", str(theirs.fileno()),
                     str(self.first), "1", "127.0.0.1", str(self.lease.descriptor)]
            self.feeds.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                               pass_fds=[theirs.fileno(), self.lease.descriptor], text=True))
        threading.Thread(target=self._listen, args=(self.feeds[-1],), daemon=True).start()
        assert ours.recv(len(SWITCHED), socket.MSG_WAITALL) == SWITCHED
        return ours

    def _listen(self, feed):
        for line in feed.stdout:
            if (why := json.loads(line).get("ended")) is not None:
                self.told.append(why)

    def write(self, count):
        for _ in range(count):
            self.journal.append(Record(b"", b"", b"", OP, [], 0))
        self.journal.sync()

    def close(self):
        if self.follower.thread.is_alive():
            self.follower.stop()
        self.journal.close()
        for feed in self.feeds:
            feed.kill()
            feed.communicate()


@pytest.fixture
def pair(tmp_path, monkeypatch):
    made = Pair(tmp_path, monkeypatch)
    yield made
    made.close()


def end_of_journal(data_dir):
    """Return the place behind the last whole record in the journal of a folder."""
    tail = JournalTail(journal_folder(data_dir, 0), beginning(journal_folder(data_dir, 0)))
    with contextlib.closing(tail):
        while tail.read() is not None:
            pass
        return tail.place


@pytest.mark.slow
def test_a_standby_with_a_full_disk_says_so_on_both_sides_and_goes_on_when_there_is_room(pair, monkeypatch, capfd):
    """A record of which a part fits is cut off, and comes again: the copy is not made anew."""
    follower = pair.follower
    pair.write(2)
    follower.thread.start()
    eventually(lambda: follower.is_complete)

    def write_half(fd, data, at):
        os.pwrite(fd, data[:len(data) // 2], at)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(copy, "write_all", write_half)
        pair.write(3)
        eventually(lambda: "No space left" in follower.why and len(pair.feeds) > 2)      # each attempt ends so
        assert not follower.is_following and follower.is_complete
    pair.write(1)
    eventually(lambda: follower.is_following and end_of_journal(pair.second) == end_of_journal(pair.first))
    assert set(pair.told) == {"the standby cannot go on: [Errno 28] No space left on device"}
    told = capfd.readouterr().err
    assert told.count("is not followed: [Errno 28] No space left on device") == 1 and "made anew" not in told


@pytest.mark.slow
def test_a_standby_with_other_formats_is_refused_with_those_of_both(pair, monkeypatch, capfd):
    """It gets no byte of the data folder, and the broker does not take it for its standby."""
    monkeypatch.setattr(following, "FORMATS", [format.FOLDER_VERSION, layout.VERSION + 1])
    pair.follower.thread.start()
    eventually(lambda: len(pair.told) > 1)
    common = f"formats feed {frames.VERSION}, data folder {format.FOLDER_VERSION}, catalogue"
    refused = f"the standby has {common} {layout.VERSION + 1}, and the broker {common} {layout.VERSION}: upgrade the " \
              "older one"
    assert set(pair.told) == {refused}
    assert capfd.readouterr().err.count(f"is not followed: the broker refuses: {refused}") == 1
    assert not list(pair.second.iterdir()) and standing.read(pair.first) == standing.Standing()


@pytest.mark.slow
def test_a_promotion_tries_at_once_to_reach_the_broker(pair, monkeypatch):
    """Otherwise it would go on without a broker that can be reached, and both would serve."""
    monkeypatch.setattr(following, "_AGAIN_LATER_SECONDS", 3_600)
    monkeypatch.setattr(following, "FORMATS", [0, 0])
    pair.follower.thread.start()
    eventually(lambda: pair.told)
    pair.follower.take_over()
    eventually(lambda: len(pair.told) > 1)


def test_a_broker_that_refuses_clients_is_reached_by_the_address_that_it_told_before(pair, monkeypatch):
    """A standby that is promoted then can still have it stopped."""
    del pair.follower._connected
    with socket.create_server(("127.0.0.1", 0)) as http:
        told = [f"http://127.0.0.1:{http.getsockname()[1]}"]

        def http_of(_):
            if not told:
                raise ConnectionRefusedError
            return told.pop()

        monkeypatch.setattr(following.standbys, "http_of", http_of)
        for _ in range(2):
            accepting = threading.Thread(target=lambda: answer(http.accept()[0]))
            accepting.start()
            pair.follower._connected().close()
            accepting.join()
        pair.follower._http = ""
        with pytest.raises(ConnectionRefusedError):
            pair.follower._connected()


def answer(link):
    with link:
        link.recv(1 << 16)
        link.sendall(SWITCHED)
