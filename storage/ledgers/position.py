"""Positions in a partition: a ledger and one of its entries."""

Position = tuple[int, int]     # (ledger id, entry id), compared as tuples; entry -1 stands before the first
NOWHERE: Position = (-1, -1)   # before every entry
