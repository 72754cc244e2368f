"""Frames between a broker and its standby: a header, JSON, and bytes.

    frame      MAGIC u4 | kind u4 | bytes of JSON u4 | bytes of data u4 | CRC32-C of all but MAGIC and itself u4 | JSON
               | data

    standby -> broker
        HELLO      {version, formats, stamp, name, http, url, identity, places, views, amended}: what the standby has
        ACK        {mark, stamp}: everything before the mark is on the standby's disk.  stamp: the standby's clock
        TAKE_OVER  {}: the standby is promoted, and this broker has to stop
    in both directions
        REFUSED    {reason}: the last frame: why the feed does not begin, or ends
    broker -> standby
        WELCOME    {identity, owners, resumes, why, took_over, places}: resumes: the feed continues at the standby's
                   places, else a base follows, and why.  took_over, places: the history that this broker was promoted
                   to continue, and up to where
        FILE       {path, at, size, whole} and bytes: a part of a file; whole: the last part, after which the file has
                   `size` bytes
        VIEW       {partition, number}: the files of a compacted view are complete
        CATALOGUE  {size, pages} and bytes: the catalogue's pages that changed, `size` bytes in all.  Records behind it
                   name nothing that it lacks
        RECORDS    {owner, place} and bytes: records of an owner's journal, behind `place`
        MARK       {mark, heard, base, done, total}: everything was sent that was there when the standby sent the stamp
                   `heard`; base: "copying", or "complete" from then on
        END        {}: the broker has stopped, and everything was sent

Numbers are little-endian.
"""
import json
import struct
from typing import Any, NamedTuple, TypedDict

from crc32c import crc32c

from geminga.storage.standby.journal_tail import JournalPlaceFields

VERSION = 2      # since 2, both programs place partitions by version 2 of routing.PLACEMENT
HELLO, ACK, TAKE_OVER, REFUSED, WELCOME, FILE, VIEW, CATALOGUE, RECORDS, MARK, END = range(1, 12)
PAGE = 4096                      # bytes of the catalogue that are sent together
_MAGIC = 0x44454547              # "GEED"
_HEADER = struct.Struct("<5I")
_CHECKED = struct.Struct("<3I")
_JSON_MAX, _DATA_MAX = 64 << 20, 1 << 30


class Held(TypedDict):
    """Fields of HELLO: what the copy of a standby has.  Keys are owners, or ids of partitions."""

    identity: str                        # of the history that is copied, "" for none
    places: dict[str, JournalPlaceFields]       # ends of journals
    views: dict[str, int]                # numbers of compacted views
    amended: dict[str, int]              # bytes of files with amendments


class Malformed(Exception):
    """Exception for bytes that are no frames, or were damaged on their way."""


class Frame(NamedTuple):
    """A frame as it was received."""

    kind: int
    fields: dict[str, Any]
    data: memoryview


def encode(kind: int, data: bytes | memoryview = b"", /, **fields: Any) -> list[bytes | memoryview]:
    """Return the pieces of a frame's bytes."""
    text = json.dumps(fields, separators=(",", ":")).encode()
    checksum = crc32c(data, crc32c(text, crc32c(_CHECKED.pack(kind, len(text), len(data)))))
    return [_HEADER.pack(_MAGIC, kind, len(text), len(data), checksum) + text, data]


class Decoder:
    """Turns the bytes of a connection into frames."""

    def __init__(self) -> None:
        self._rest, self._needed = bytearray(), _HEADER.size      # bytes of the first frame that is not complete

    def __repr__(self) -> str:
        return f"<Decoder rest={len(self._rest)}>"

    def receive(self, data: bytes | memoryview) -> list[Frame]:
        """Return the frames that are complete with these bytes.  Raises Malformed."""
        frames: list[Frame] = []
        self._rest += data
        if len(self._rest) < self._needed:
            return frames
        whole, at = bytes(self._rest), 0
        self._needed = _HEADER.size
        while len(whole) - at >= _HEADER.size:
            magic, kind, texts, size, checksum = _HEADER.unpack_from(whole, at)
            if magic != _MAGIC or texts > _JSON_MAX or size > _DATA_MAX:
                raise Malformed("what came is no frame of a feed")
            begin, end = at + _HEADER.size, at + _HEADER.size + texts + size
            if end > len(whole):
                self._needed = end - at
                break
            view = memoryview(whole)[begin:end]
            if crc32c(view, crc32c(_CHECKED.pack(kind, texts, size))) != checksum:
                raise Malformed("a frame of the feed was damaged on its way")
            try:
                fields = json.loads(bytes(view[:texts]))
            except (ValueError, RecursionError):
                fields = None
            if not isinstance(fields, dict):
                raise Malformed("a frame of the feed has no fields")
            frames.append(Frame(kind, fields, view[texts:]))
            at = end
        self._rest = bytearray(whole[at:])
        return frames
