"""The host: memory, control groups, and settings that bound the broker.

    host.py           memory and processors that this host or control group gives
    tune.py           what of the host bounds the broker or slows it down (`geminga tune`)
    stacks.py         stack traces of all processes, on demand
    unix_sockets.py   short paths of Unix sockets

Imports: nothing of ours but `bootstrap.py`.  Start with `host.py`.
"""
