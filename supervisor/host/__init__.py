"""The host: memory, control groups, and settings that bound the broker.

    host.py   memory and processors that this host or control group gives
    tune.py   what of the host bounds the broker or slows it down (`geminga tune`)

Imports: nothing of ours but `bootstrap.py`.
"""
