"""Parts of every process: log, counters, messages to the supervisor, envelopes, routing, and words for people.

    log.py          lines with fields and levels, and where they go
    log_lines.py    the newest lines of all processes, in shared memory
    log_codes.py    the code of each warning and error, with its page of the runbook
    counters.py     numbers in shared memory that the supervisor reads
    control.py      messages between the supervisor and its children
    zmq_frames.py   envelopes over ZeroMQ
    unix_sockets.py Unix sockets in a data folder: bound, served, connected to
    routing.py      which owner has a partition, and where owners listen
    threads.py      a thread that works beside a block
    similar_names.py   names that are like a mistyped one
    units.py        times, sizes and moments as people write them

Imports: `errors.py` and `format.py` of storage, and proto.  Start with `log.py`.
"""
