"""Plays the same conversations on two brokers over the binary protocol, and prints where their answers differ.

    python -m tests.workers.sweep.run [--only TEXT] [--show] HTTP_URL SERVICE_URL HTTP_URL SERVICE_URL

The second broker is compared with the first.  conversations.py has the conversations, and reasons.txt the reasons of
known differences, which are only counted.  Answers are compared turn by turn with all their fields, and also whether
the connection ends.  Texts of errors, ledger ids, generated names, addresses, times and rates may differ; only their
presence is compared.  Each conversation has topics of its own in namespaces of its own, which stay.

Exit status: 1 when there is a difference without a reason.
"""
import argparse
import fnmatch
import hashlib
import re
import sys
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from geminga.proto import pulsar_api_pb2 as api

from ...harness import request
from ...proto.client_frames import T, command, field_of
from ..peer import Closed, Peer
from .conversations import Command, Raw, Receipt, Rest, Turn, connect, conversations

HERE = Path(__file__).parent
AT_ONCE = 8                          # conversations played at the same time
FIRST_SECONDS, NEXT_SECONDS = 2.5, 0.4      # seconds that an expected answer may take, and one behind it
UNANSWERED = {T.FLOW, T.ACK, T.PONG, T.REDELIVER_UNACKNOWLEDGED_MESSAGES, T.SEND, T.WATCH_TOPIC_LIST_CLOSE,
              T.AUTH_RESPONSE}
SHAPES = {"server_version", "consumerName", "address", "connectedSince", "msgRateOut", "msgThroughputOut",
          "msgRateRedeliver",
          # of these fields only the presence is compared
          "msgRateExpired", "brokerServiceUrl", "brokerServiceUrlTls", "message", "error_message"}


UNORDERED = {"topic", "topics", "new_topics", "deleted_topics"}
# These values mean the same as no field.  Of one topic Pulsar tells either highest sequence id, by chance.
SAY_NOTHING = {"partition": (-1,), "batch_index": (-1,), "highest_sequence_id": (0, 2**64 - 1),
               "redelivery_count": (0,)}


class Place(NamedTuple):
    http_url: str
    service_url: str


class Talk:
    """One conversation with one broker."""

    def __init__(self, place: Place, namespace: str, topic: str):
        self._place, self._names = place, {"{namespace}": namespace, "{topic}": topic,
                                           "{path}": topic.removeprefix("persistent://")}
        self._peers: dict[str, Peer] = {}
        self._receipts: list[api.MessageIdData] = []
        self._ledgers: dict[int, str] = {}
        self._generated: dict[str, str] = {}

    def play(self, name: str, turns: list[Turn]) -> list[str]:
        """Play the turns; return the outcome of each."""
        try:
            return [f"{number}: {answer}" for number, turn in enumerate(turns, 1)
                    for answer in self._turn(name, number, turn)]
        finally:
            for peer in self._peers.values():
                peer.socket.close()

    def _turn(self, name: str, number: int, turn: Turn) -> list[str]:
        answers = []
        if isinstance(turn.said[0], Rest):
            [asked] = turn.said
            status, _ = request(asked.method, self._place.http_url + self._named(asked.path), asked.body)
            answers.append(f"HTTP {status}")
        else:
            is_first = turn.connection not in self._peers
            has_connect = isinstance(turn.said[0], Command) and turn.said[0].kind == T.CONNECT
            if is_first:
                self._peers[turn.connection] = Peer(self._place.service_url, b"")
                if not (has_connect or name.endswith("before CONNECT")):
                    self._say(turn.connection, connect(), 0)
                    self._hear(turn.connection, FIRST_SECONDS)
            for one in turn.said[:-1]:
                self._say(turn.connection, one, number)
            self._say(turn.connection, turn.said[-1], number)
        for which in list(self._peers):
            asked = which == turn.connection and any((isinstance(one, Command) and one.kind not in UNANSWERED)
                                                     or isinstance(one, Raw) or
                                                     "request_id" in one.fields for one in turn.said
                                                     if not isinstance(one, Rest))
            answers += [f"{which} {answer}"
                        for answer in self._hear(which, FIRST_SECONDS if asked else 2 * NEXT_SECONDS)]
        return answers

    # -- saying

    def _say(self, which: str, one: Command | Raw, number: int) -> None:
        peer = self._peers[which]
        peer.say(one.data if isinstance(one, Raw) else command(one.kind, **{
            name: self._filled(number if name == "request_id" and value is None else value)
            for name, value in one.fields.items()}))

    def _filled(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._named(value)
        if isinstance(value, Receipt):
            if value.number >= len(self._receipts):
                return api.MessageIdData(ledgerId=1, entryId=1)
            found = api.MessageIdData(ledgerId=self._receipts[value.number].ledgerId,
                                      entryId=self._receipts[value.number].entryId)
            found.MergeFrom(api.MessageIdData(**{"ledgerId": found.ledgerId, "entryId": found.entryId} | value.fields))
            return found
        if isinstance(value, list):
            return [self._filled(one) for one in value]
        if isinstance(value, dict):
            return {name: self._filled(one) for name, one in value.items()}
        return value

    def _named(self, text: str) -> str:
        for name, found in self._names.items():
            text = text.replace(name, found)
        return text

    # -- hearing

    def _hear(self, which: str, seconds: float) -> list[str]:
        """Return all that comes until nothing has come for a while."""
        peer, found = self._peers[which], []
        while True:
            peer.socket.settimeout(seconds)
            try:
                heard, entry = peer.hear_frame()
            except TimeoutError:
                break
            except Closed:
                peer.socket.close()
                del self._peers[which]
                found.append("closed")
                break
            found.append(self._told(heard, entry))
            seconds = NEXT_SECONDS
        # answers of different kinds overtake each other
        return sorted(found, key=lambda answer: answer.partition(" ")[0])

    def _told(self, heard: api.BaseCommand, entry: bytes) -> str:
        body = getattr(heard, field_of(heard.type))
        if heard.type == T.SEND_RECEIPT:
            self._receipts.append(body.message_id)
        if heard.type == T.PRODUCER_SUCCESS and body.producer_name not in self._generated:
            self._generated[body.producer_name] = (
                body.producer_name if body.producer_name == "me" else f"name {len(self._generated)}"
            )
        shown = self._shown(body)
        if entry[:2] == b"\x0e\x02":
            entry = entry[6 + int.from_bytes(entry[2:6], "big"):]
        said = f" entry {len(entry)} {hashlib.sha256(entry).hexdigest()[:8]}" if entry else ""
        return f"{T.Name(heard.type)} {shown}{said}"

    def _shown(self, message: Any) -> str:
        parts = []
        for field, value in message.ListFields():
            if field.name in SAY_NOTHING and value in SAY_NOTHING[field.name]:
                continue
            if field.name in SHAPES:
                text = "..."
            elif field.name == "producer_name":
                text = self._generated.get(value, "...")
            elif field.name == "ledgerId":
                text = (
                    str(value)
                    if value in (0, 2**64 - 1, 2**63 - 1)
                    else self._ledgers.setdefault(value, f"L{len(self._ledgers)}")
                )
            elif field.is_repeated:
                told = [self._shown(one) if field.message_type else str(one) for one in value]
                text = f"[{', '.join(sorted(told) if field.name in UNORDERED else told)}]"
            elif field.message_type is not None:
                text = f"({self._shown(value)})"
            elif field.enum_type is not None:
                text = field.enum_type.values_by_number[value].name
            else:
                text = str(value)
            parts.append(f"{field.name}={text}")
        return " ".join(parts)


def reasons() -> list[tuple[str, str]]:
    lines = [line for line in (HERE / "reasons.txt").read_text().splitlines() if line.strip() and line[0] != "#"]
    return [(pattern.strip(), reason.strip()) for pattern, _, reason in (line.partition("|") for line in lines)]


def play(places: list[Place], run: str, number: int, name: str, turns: list[Turn]) -> list[list[str]]:
    """Play one conversation with every broker; return what each of them has answered."""
    namespace = f"public/{run}-{number}"
    topic = f"persistent://{namespace}/t"
    outcomes = []
    for place in places:      # one after the other, as the names are the same
        status, text = request("PUT", f"{place.http_url}/admin/v2/namespaces/{namespace}",
                               b'{"bundles": {"numBundles": 1}}')
        assert status == 204, (place, status, text)
        # a broker serves a topic only after a lookup
        request("GET", f"{place.http_url}/lookup/v2/topic/persistent/{namespace}/first")
        answers = Talk(place, namespace, topic).play(name, turns)
        outcomes.append([re.sub(re.escape(run), "RUN", answer) for answer in answers])
    return outcomes


def compare(
    places: list[Place], chosen: dict[str, list[Turn]], tell: Callable[[str], None], *, is_shown: bool = False
) -> int:
    """Return how many differences have no reason."""
    run, known = f"sweep-{uuid.uuid4().hex[:6]}", reasons()
    same = explained = unknown = 0
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        numbered = [(number, name, turns) for number, (name, turns) in enumerate(chosen.items())]
        outcomes = pool.map(lambda one: play(places, run, *one), numbered)
        for (_, name, _), (theirs, ours) in zip(numbered, outcomes, strict=True):
            if is_shown:
                tell(name + "".join(f"\n      {answer}" for answer in theirs))
            if theirs == ours:
                same += 1
                continue
            reason = next((reason for pattern, reason in known if fnmatch.fnmatchcase(name, pattern)), None)
            explained += reason is not None
            unknown += reason is None
            tell(f"{name}\n    {reason or '?'}"
                 + "".join(f"\n      - {answer}" for answer in theirs if answer not in ours)
                 + "".join(f"\n      + {answer}" for answer in ours if answer not in theirs))
    tell(f"{same} the same, {explained} differ for a known reason, {unknown} differ; {time.monotonic() - began:.0f} s")
    return unknown


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.workers.sweep.run", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="conversations whose name contains this text")
    parser.add_argument("--show", action="store_true", help="what the first one answers, too")
    parser.add_argument("urls", nargs=4, metavar="URL")
    options = parser.parse_args()
    places = [Place(options.urls[at].rstrip("/"), options.urls[at + 1]) for at in (0, 2)]
    chosen = {name: turns for name, turns in conversations().items() if options.only in name}
    return 1 if compare(places, chosen, lambda text: print(text, flush=True), is_shown=options.show) else 0


if __name__ == "__main__":
    sys.exit(main())
