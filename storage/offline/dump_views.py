"""Print the files of a compacted view that are not ledgers: manifest, hashes of keys, masks."""
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers import compacted_ledgers, view_files
from geminga.storage.ledgers.compacted_ledgers import Manifest, Part

Line = dict[str, Any]


def view(path: Path) -> Iterator[Line]:
    """Yield lines for the manifest of a compacted view."""
    manifest = compacted_ledgers.decode(path.read_bytes(), path)
    yield {"view": path.parent.name, "partition": manifest.partition_id,
           "up_to": "{}:{}".format(*manifest.horizon), "created_ms": manifest.created_ms,
           "entries": manifest.entries, "messages": manifest.messages, "size": manifest.size, "checksum": "whole"}
    for part in manifest.parts:
        yield {"ledger": part.ledger_id, "entries": part.kept, "of_entries": part.entries, "messages": part.messages,
               "size": part.size, **({"removed_entries": part.gone} if part.mask else {})}


def keys(path: Path) -> Iterator[Line]:
    """Yield lines for the hashes of the keys of one ledger of a compacted view."""
    hashes = view_files.KeyFile(path.parent, int(path.stem), lambda size: None)
    line: Line = {"ledger": hashes.ledger_id, "view": path.parent.name, "entries": hashes.rows,
                  "messages": hashes.slots, "chunks": hashes.chunks, "event_times": hashes.has_times,
                  "keyless_kept": hashes.keeps_keyless}
    try:
        hashes.words()
        hashes.check()
    except CorruptFile as error:
        yield line | {"damaged": str(error)}
    else:
        yield line | {"checksum": "whole"}


def mask(path: Path) -> Iterator[Line]:
    """Yield lines for the mask of one ledger of a compacted view: its figures, and what it removes."""
    _, part = part_of(path.parent, int(path.stem))
    if part is None:
        yield {"ledger": int(path.stem), "damaged": "the view does not name it"}
        return
    removed = view_files.read_mask(path.parent, part.ledger_id, part.kept)
    yield {"ledger": part.ledger_id, "view": path.parent.name, "removed_messages": int(removed.slots.sum()),
           "removed_entries": int(removed.rows.sum()), "checksum": "whole"}
    rows = compacted_ledgers.read_rows(path.with_suffix(".index"), part.kept)
    for entry_id in rows["entry_id"][np.flatnonzero(removed.rows[:len(rows)])].tolist():
        yield {"entry": f"{part.ledger_id}:{entry_id}", "removed": "all"}
    for row, index in removed.cut.tolist():
        if row < len(rows):
            yield {"entry": f"{part.ledger_id}:{rows['entry_id'][row]}", "removed": index}


def part_of(folder: Path, ledger_id: int) -> tuple[Manifest, Part | None]:
    """Return (manifest of the view in a folder, its part of a ledger).  Raises CorruptFile, OSError."""
    path = folder / compacted_ledgers.MANIFEST
    manifest = compacted_ledgers.decode(path.read_bytes(), path)
    return manifest, next((part for part in manifest.parts if part.ledger_id == ledger_id), None)
