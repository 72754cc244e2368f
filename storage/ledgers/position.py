"""Positions in a partition: a ledger and one of its entries."""

Position = tuple[int, int]     # (ledger id, entry id), compared as tuples; entry -1 stands before the first
NOWHERE: Position = (-1, -1)   # before every entry


def entries_up_to(position: Position, ledger_id: int, entries: int) -> int:
    """Return how many of a ledger's first `entries` entries lie up to a position, inclusive; 0 of a later ledger."""
    if ledger_id == position[0]:
        return min(entries, position[1] + 1)
    return entries if ledger_id < position[0] else 0
