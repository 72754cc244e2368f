"""The files of key hashes of a whole view: whether a compaction can continue the view, and how much it reads then."""
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers.compacted_ledgers import CompactedLedgers
from geminga.storage.ledgers.view_files import Count, KeyFile, keys_path


def continuable(view: CompactedLedgers, count: Count, *, keeps_keyless: bool,
                by_event_time: bool) -> dict[int, KeyFile] | None:
    """Return the files with the key hashes of a view, by ledger id, if a compaction can continue the view.

    Return None if an older program wrote the view, if it has nothing, or if the compaction has other options than the
    view's.  count: called with the number of bytes of each read.  Raises CorruptFile, OSError.
    """
    parts = view.manifest.parts
    if not parts or not any(keys_path(view.folder, part.ledger_id).exists() for part in parts):
        return None
    files = {part.ledger_id: KeyFile(view.folder, part.ledger_id, count) for part in parts}
    for part, file in zip(parts, files.values(), strict=True):
        if file.rows != part.kept:
            raise CorruptFile(file.path, 0, f"hashes of {part.kept} entries", f"those of {file.rows}")
    if len({file.seed for file in files.values()}) > 1 or any(
            file.keeps_keyless != keeps_keyless or (by_event_time and not file.has_times) for file in files.values()):
        return None
    return files


def size_read(view: CompactedLedgers, *, keeps_keyless: bool, by_event_time: bool, grows: bool) -> int:
    """Return how many bytes of a view a further compaction reads: of its key hashes, or all of its entries.

    grows: whether there are new entries in the ledger of the view's horizon.
    """
    try:
        files = continuable(view, lambda size: None, keeps_keyless=keeps_keyless, by_event_time=by_event_time)
    except (CorruptFile, OSError):      # the compaction reports it
        files = None
    if files is None:
        return view.manifest.size
    return sum(file.words_size for file in files.values()) + sum(
        part.mask + (part.size if grows and part.ledger_id == view.horizon[0] else 0) for part in view.manifest.parts)
