"""Who may serve a data folder, as far as its file `standby` and its known standby say."""
import socket

import pytest

from geminga.storage.disk import data_folder
from geminga.storage.standby import standing
from geminga.storage.standby.standing import Peer, Standing
from geminga.supervisor.configuration.config import Config, StandbyOptions
from geminga.supervisor.processes.listening import CannotServe
from geminga.supervisor.standby.serve import may_follow
from geminga.supervisor.tasks import standbys


@pytest.fixture
def closed_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))      # and does not listen
        yield one.getsockname()[1]


def test_a_standing_is_read_as_it_was_written(tmp_path):
    known = Standing("a", ("b", "c"), "pulsar://x", Peer("n", "u", "h", 7), Peer("m", "v", "i", 8), {"0": {"at": 64}})
    standing.write(tmp_path, known)
    assert standing.read(tmp_path) == known


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"identity": 7}'])
def test_a_file_that_cannot_be_understood_counts_as_none(tmp_path, content):
    (tmp_path / "standby").write_bytes(content)
    assert standing.read(tmp_path) == Standing()


def test_a_promoted_copy_is_another_history_that_continues_the_copied_one():
    promoted = Standing("one").promoted({})
    assert promoted.identity not in ("", "one") and promoted.took_over == ("one",)
    assert promoted.promoted({}).took_over == ("one", promoted.identity)


def test_a_broker_serves_without_the_answer_of_its_standby_unless_that_is_required(tmp_path, closed_port):
    standing.write(tmp_path, Standing("one", attached=Peer("other", "", f"http://127.0.0.1:{closed_port}", 1)))
    assert "both serve" in standbys.look(tmp_path, StandbyOptions())
    with pytest.raises(standbys.Superseded, match="standby.required"):
        standbys.look(tmp_path, StandbyOptions(required=True))


def test_a_superseded_folder_is_marked_for_programs_that_do_not_know_standbys(tmp_path):
    standing.write(tmp_path, Standing("one", attached=Peer("other", "pulsar://other:6650", "http://other:1", 1)))
    standbys.supersede(tmp_path, standing.read(tmp_path).attached)
    with pytest.raises(data_folder.CannotUse):
        data_folder.check(tmp_path)
    with pytest.raises(standbys.Superseded, match="--standby-of pulsar://other:6650"):
        standbys.look(tmp_path, StandbyOptions())
    assert may_follow(Config(data_dir=tmp_path))


def test_a_standby_begins_in_an_empty_folder_or_in_a_copy_only(tmp_path):
    config = Config(data_dir=tmp_path)
    (tmp_path / "lock").touch()
    assert may_follow(config)
    (tmp_path / "catalogue.sqlite").touch()
    with pytest.raises(CannotServe, match="no standby's copy"):
        may_follow(config)
    standing.write(tmp_path, Standing(following="pulsar://x"))      # a base that was not completed
    assert may_follow(config)
    standing.write(tmp_path, Standing("two", ("one",)))
    assert not may_follow(config)      # it was promoted
