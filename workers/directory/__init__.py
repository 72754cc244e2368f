"""Answers that a worker takes from the catalogue, without asking an owner.

    directory.py           the catalogue as this worker remembers it
    requests.py            lookup, partition metadata, schemas by version
    schemas.py             checks of schemas, in a thread of their own
    patterns.py            topics chosen by a pattern, in bounded time
    watchers.py            clients that discover topics, and news of them for owners
    layouts.py             segments of topics, and clients that watch them
    namespace_watches.py   clients that watch the scalable topics of a namespace

May import workers/owners, workers/identity and storage; knows clients only by Protocols.  Start with directory.py.
"""
