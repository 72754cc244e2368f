"""Answers to SENDs that a plan leaves out, given with the plan's receipts: clients expect answers in their order."""
import numpy as np

from geminga.proto import deliveries, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.deliveries import RECEIPT_ROW
from geminga.proto.rows import Rows
from geminga.storage.cursors.producer_sequences import NOWHERE
from geminga.storage.topics.subscription import Producer

_BEHIND_ALL = (1 << 64) - 1      # a sequence id that no receipt's exceeds

Answer = tuple[int, int, int, bytes]      # connection, producer id, sequence id, frame


class LeftOutSends:
    """The answers to SENDs that the plan in progress leaves out."""

    def __init__(self) -> None:
        self.by_worker: dict[int, list[Answer]] = {}      # publishing takes them out with each plan

    def __repr__(self) -> str:
        return f"<LeftOutSends {sum(map(len, self.by_worker.values()))}>"

    def refuse(self, worker: int, rows: Rows, code: api.ServerError.ValueType, text: str) -> None:
        """Answer rows (n,) SEND_ROW of the plan in progress with an error, in the order in which SENDs arrived."""
        self.by_worker.setdefault(worker, []).extend([
            (connection, producer_id, sequence_id, responses.send_error(producer_id, sequence_id, code, text))
            for connection, producer_id, sequence_id in rows[["connection", "producer_id", "sequence_id"]].tolist()])

    def refuse_behind_all(self, worker: int, producer: Producer, sequence_id: int, text: str) -> None:
        """Answer a replicator's SEND with an error, behind all receipts: those are of what it has sent before."""
        frame = responses.send_error(producer.producer_id, sequence_id, api.PersistenceError, text)
        self.by_worker.setdefault(worker, []).append((producer.connection, producer.producer_id, _BEHIND_ALL, frame))

    def drop(self, worker: int, rows: Rows) -> None:
        """Answer rows (n,) SEND_ROW of the plan in progress with receipts without a position, as duplicates are."""
        answers = np.full(len(rows), NOWHERE, RECEIPT_ROW)
        for name in ("connection", "producer_id", "sequence_id", "highest_sequence_id"):
            answers[name] = rows[name]
        self.by_worker.setdefault(worker, []).extend(
            (int(answer["connection"]), int(answer["producer_id"]), int(answer["sequence_id"]),
             deliveries.receipts(answers[at:at + 1])[0][1]) for at, answer in enumerate(answers))
