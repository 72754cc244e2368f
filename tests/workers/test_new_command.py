"""The recipe for a command in docs/contributing.md, followed: one row, one function, and clients get their answers.

The new command is one that the broker has.  It is taken away first, then added anew while a real worker and a real
owner run, which hand each other their own envelopes.
"""
import re
from pathlib import Path

import pytest

from geminga.proto import envelope, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import CONSUME, TABLE, Answerer, Command
from geminga.proto.errors import Refusal
from geminga.storage.commands import requests
from geminga.storage.open_topics.decisions import Decisions
from geminga.workers.clients import commands

from ..proto.client_frames import T, command
from ..storage.rig import WORKER, Rig
from .played import PlayedRights, PlayedWorker

NEW = T.SCALABLE_TOPIC_SUBSCRIBE
PAGE = Path(__file__).resolve().parents[2] / "docs" / "contributing.md"


class Broker:
    """A worker with one client, and the owner of its topic."""

    def __init__(self, folder: Path, monkeypatch, rights: PlayedRights):
        self._rig, self._worker = Rig(folder), PlayedWorker(folder, monkeypatch, rights=rights)
        self.client, self.owner = self._worker.client(), self._worker.owners[0]
        self.topic = self._worker.topic(0)

    def close(self) -> None:
        self._worker.close()
        self._rig.close()

    def ask(self, kind: int, **fields) -> list:
        """Say a command, have the owner carry out what the worker sends it, and return what the client hears."""
        self.client.say(command(kind, **fields))
        return self.answers()

    def answers(self) -> list:
        passes = self._rig.owner.passes
        passes.begin(self._rig.now_ms)
        for _, connection, kind, data in self.owner.heard("command"):
            section = self._rig._command_section(connection, kind, data)
            passes.receive(WORKER, envelope.unseal([bytes(part) for part in envelope.seal([section])])[1])
        for _, frames in passes.end():
            self.owner.link.socket.inbox.append([bytes(part) for part in frames])
            self._worker.worker.owners.receive(self.owner.link)
        self._worker.turn()
        return self.client.hear()

    def subscribe(self) -> None:
        [answer] = self.ask(T.SUBSCRIBE, topic=self.topic, subscription="sub", subType=0, consumer_id=1, request_id=1)
        assert answer.type == T.SUCCESS, answer

    def new(self, consumer_id: int = 1) -> dict:
        return {"request_id": 7, "topic": self.topic, "subscription": "sub", "consumer_name": "c",
                "consumer_id": consumer_id, "consumer_type": api.STREAM}


@pytest.fixture
def rights():
    return PlayedRights()


@pytest.fixture(autouse=True)
def _without(monkeypatch):
    """Take the command away."""
    for table in (TABLE, requests.COMMANDS, commands.COMMANDS):
        monkeypatch.delitem(table, NEW)


@pytest.fixture
def broker(tmp_path, monkeypatch, rights):
    found = Broker(tmp_path, monkeypatch, rights)
    yield found
    found.close()


@pytest.fixture
def taken(monkeypatch):
    """Take the new command, as the recipe says: a row, and a function."""
    monkeypatch.setitem(TABLE, NEW, Command(NEW, Answerer.CONSUMER, api.CommandScalableTopicSubscribeResponse,
                                            right=CONSUME, denial="Client is not authorized to take its part"))

    @requests.carries_out(NEW)
    def take_part(decisions: Decisions, session, request: api.CommandScalableTopicSubscribe) -> None:
        if request.consumer_name == "none":
            raise Refusal(api.ConsumerAssignError, "There is no part left")
        assignment = api.ScalableConsumerAssignment(layout_epoch=len(session.consumers))
        answer = api.CommandScalableTopicSubscribeResponse(request_id=request.request_id, assignment=assignment)
        decisions.outbox(session.worker).reply(
            session.connection, responses.frame_of(answer), request_id=request.request_id)

    yield
    del requests.COMMANDS[NEW]


def refusal(heard: list) -> tuple[int, str]:
    [answer] = heard
    assert (answer.type, answer.scalableTopicSubscribeResponse.request_id) == (T.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE, 7)
    return answer.scalableTopicSubscribeResponse.error, answer.scalableTopicSubscribeResponse.message


def test_a_command_without_a_row_breaks_the_protocol(broker):
    broker.subscribe()
    assert broker.ask(NEW, **broker.new()) == [] and broker.client.transport.is_closed


@pytest.mark.usefixtures("taken")
def test_a_row_and_a_function_make_a_command_that_an_owner_answers(broker):
    broker.subscribe()
    [answer] = broker.ask(NEW, **broker.new())
    assert answer.type == T.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE
    found = answer.scalableTopicSubscribeResponse
    assert (found.request_id, found.assignment.layout_epoch, found.HasField("error")) == (7, 1, False)
    assert len(broker.client.client.requests) == 0


@pytest.mark.usefixtures("taken")
def test_each_refusal_of_it_is_its_own_response(broker, rights):
    """The owner, the worker and the rights refuse; so does a worker whose owner has ended."""
    assert refusal(broker.ask(NEW, **broker.new())) == (api.MetadataError, "Consumer not found")
    broker.subscribe()
    assert refusal(broker.ask(NEW, **(broker.new() | {"consumer_name": "none"}))) == (
        api.ConsumerAssignError, "There is no part left")
    broker.client.say(command(NEW, **broker.new()))
    broker.owner.gone()
    assert refusal([heard for heard in broker.client.hear() if heard.type != T.CLOSE_CONSUMER]) == (
        api.ServiceNotReady, "The topic's owner ended before it answered")
    rights.withdraw(broker.topic)
    assert refusal(broker.ask(NEW, **broker.new())) == (
        api.AuthorizationError, "Client is not authorized to take its part")


@pytest.mark.usefixtures("taken")
def test_it_comes_after_the_handshake_and_with_its_fields(broker):
    broker.client.say(command(NEW, **broker.new()).replace(b"public", b"\xff\xff\xff\xff\xff\xff"))
    assert broker.client.transport.is_closed


def test_the_recipe_names_what_these_tests_use():
    [recipe] = re.findall(r"^\*\*A command\*\*.*?(?=^\*\*)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for name in ("proto/commands.py", "TABLE", "storage/commands/", "@carries_out", "tests/workers/test_new_command.py",
                 "responses.frame_of"):
        assert name in recipe
