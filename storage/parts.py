"""Batches of which only some messages are acknowledged: a number with a bit per message."""
Parts = dict[int, dict[int, int]]      # ledger id -> {entry id: a bit per message, 1 = not acknowledged}
WORD = (1 << 64) - 1


def words(bits: int, messages: int) -> list[int]:
    """The bits as words of 64, the lowest first, for a batch of so many messages."""
    return [bits >> at & WORD for at in range(0, messages, 64)]
