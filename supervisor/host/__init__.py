"""The host: memory, control groups, and settings that bound the broker.

    host.py           memory and processors that this host or control group gives
    tune.py           settings of the host that bound the broker or slow it down (`geminga tune`)
    stacks.py         stack traces of all processes, on demand
    build.py          version and commit of which this program was made
    installed.py      folder, configuration and user of the package's broker

Imports: nothing of ours but `is_optimised` of `bootstrap.py`, which tells how this Python was built.  The function is
there because the bootstrap needs it too, and runs before anything of ours can be imported.  Start with `host.py`.
"""
