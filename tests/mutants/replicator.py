"""Bugs in what replication promises: nothing lost, nothing changed, an order, and an end of tries that cost."""
from .bugs import of

BUGS = [
    *of("supervisor/replication/entries.py", "replication/test_entries.py",
        ("(meta.replicate_to and self._remote not in meta.replicate_to)", "False",
         "a message goes to clusters that its producer left out"),
        ('self.is_skipped = columns.has("replicated_from")', "self.is_skipped = np.zeros(len(self.at), bool)",
         "messages go round between clusters"),
        ("kinds += 2 * is_special + (entries.counts[:count] == ABSENT)", "kinds += 2 * is_special",
         "messages in a run of batches are told as batches"),
        ("damage = crc32c(entry[CHECKSUM_END:]) ^ SIZE.unpack_from(entry, 2)[0]", "damage = 0",
         "a damaged message gets a right checksum"),
        ("if chosen[0] < count:", "if False:", "messages go before their schema")),
    *of("supervisor/replication/receipts.py", "replication/test_receipts.py",
        ("if stretch.answered[place]:", "if False:", "a second receipt for a message counts for another"),
        ("self._reached = head.ledger_id, head.last\n", "self._reached = head.ledger_id, head.last + 1\n",
         "a message that was not sent is acknowledged"),
        ("if count > self.count:", "if False:", "more receipts than messages are taken")),
    *of("supervisor/replication/lane.py", "replication/test_sending.py",
        ("if worker is not None:\n            worker.close_consumer(self._consumer_id)", "if False:\n            pass",
         "what came before a refusal is read on"),
        ("self._permits = UNANSWERED_MAX * self._batch", "self._permits = 1_000_000",
         "a lane has no bound of entries")),
    *of("supervisor/replication/backoff.py", "replication/test_sending.py",
        ("delay = min(MAX_S, FIRST_S * 2.0 ** min(self.failures, 20))", "delay = 0.001",
         "a remote that refuses is asked a thousand times a second")),
]
