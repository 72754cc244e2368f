"""What there is to be read: partitions, their ledgers as far as they are confirmed, and their compacted views."""
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stretch:
    """Entries first .. end - 1 of one ledger: what one task reads."""

    partition_id: int
    ledger_id: int
    first: int
    end: int
    view: int = 0      # of this compacted view, the entries that it has of these; 0: of the ledger itself
