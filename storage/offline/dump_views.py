"""Print the files of a compacted view that are not ledgers: manifest, hashes of keys, masks."""
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers import compacted_ledgers, view_files

Line = dict[str, Any]


def view(path: Path) -> Iterator[Line]:
    """Yield lines for the manifest of a compacted view."""
    manifest = compacted_ledgers.decode(path.read_bytes(), path)
    yield {
        "view": path.parent.name,
        "partition": manifest.partition_id,
        "up_to": "{}:{}".format(*manifest.horizon),
        "created_ms": manifest.created_ms,
        "entries": manifest.entries,
        "messages": manifest.messages,
        "size": manifest.size,
        "checksum": "whole",
    }
    for part in manifest.parts:
        yield {
            "ledger": part.ledger_id,
            "entries": part.kept,
            "of_entries": part.entries,
            "messages": part.messages,
            "size": part.size,
            **({"removed_entries": part.gone} if part.mask else {}),
        }


def keys(path: Path) -> Iterator[Line]:
    """Yield lines for the hashes of the keys of one ledger of a compacted view."""
    found = view_files.KeyFile(path.parent, int(path.stem), lambda size: None)
    line: Line = {"ledger": found.ledger_id, "view": path.parent.name, "entries": found.rows, "messages": found.slots,
                  "chunks": found.chunks, "event_times": found.has_times, "keyless_kept": found.keeps_keyless}
    try:
        found.words()
        found.check()
    except CorruptFile as error:
        yield line | {"damaged": str(error)}
        return
    yield line | {"checksum": "whole"}


def mask(path: Path) -> Iterator[Line]:
    """Yield lines for the mask of one ledger of a compacted view: its figures, and what it removes."""
    manifest = compacted_ledgers.decode(
        (path.parent / compacted_ledgers.MANIFEST).read_bytes(), path.parent / compacted_ledgers.MANIFEST
    )
    part = next((part for part in manifest.parts if part.ledger_id == int(path.stem)), None)
    if part is None:
        yield {"ledger": int(path.stem), "damaged": "the view does not name it"}
        return
    found = view_files.read_mask(path.parent, part.ledger_id, part.kept)
    yield {"ledger": part.ledger_id, "view": path.parent.name, "removed_messages": int(found.slots.sum()),
           "removed_entries": int(found.rows.sum()), "checksum": "whole"}
    rows = compacted_ledgers.read_rows(path.with_suffix(".index"), part.kept)
    for entry_id in rows["entry_id"][np.flatnonzero(found.rows[:len(rows)])].tolist():
        yield {"entry": f"{part.ledger_id}:{entry_id}", "removed": "all"}
    for at, index in found.cut.tolist():
        if at < len(rows):
            yield {"entry": f"{part.ledger_id}:{rows['entry_id'][at]}", "removed": index}
