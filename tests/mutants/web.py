"""Bugs in what WebSocket promises: frames, the window, acknowledgements, rights."""
from .bugs import of

BUGS = [
    *of("supervisor/web/frames.py", "web/test_frames.py",
        ("self._size + size > TEXT_MAX", "False", "a text of any size is kept in memory"),
        ("len(self._fragments) >= _FRAGMENTS_MAX", "False", "a text of empty fragments costs what it likes"),
        ("if not second & 0x80:", "if False:", "frames of clients need no mask")),
    *of("supervisor/web/consumer.py", "web/test_consuming.py",
        ("return self._parameters.window - len(self._unacknowledged)", "return self._parameters.window",
         "the window is always open"),
        ("if self._timer.when() <= when:", "if True:", "a far time-out keeps a near redelivery waiting"),
        ("self._permits -= 1", "pass", "a permit brings any number of messages"),
        ("if topic.start is not None and _is_before(one, topic.start):", "if False:",
         "readers get what is before their start")),
    *of("supervisor/web/acknowledging.py", "web/test_consuming.py",
        ("self._left[key] = left & ~(1 << index), size", "self._left[key] = 0, size",
         "one acknowledgement takes a whole batch")),
    *of("supervisor/web/doors.py", "web/test_rights.py web/test_doors.py",
        ("if not decision.is_allowed:", "if False:", "rights are not looked at before parameters"),
        ("if not is_same and not request.app[GUARD].knows(host):", "if False:",
         "any page publishes through a browser beside the broker")),
]
