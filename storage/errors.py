"""How the world can fail, as far as callers treat it differently."""


class StorageFull(Exception):
    """There is no room for what was to be written; nothing of it was."""


class CorruptFile(Exception):
    """A file does not hold what it should."""

    def __init__(self, path, offset: int, expected, found):
        super().__init__(f"{path}: at byte {offset}: expected {expected}, found {found}")
