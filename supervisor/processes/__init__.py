"""A broker's life: its processes start, are watched, reload, drain and stop.

    serve.py            the supervisor: sockets, children, signals, the end
    listening.py        listening sockets, and the folder of sockets between processes
    client_ports.py     when clients are accepted, and when workers run
    children.py         fork, watch, restart
    heartbeat.py        whether a child answers, and when it is given up
    reload.py           a changed configuration in a running broker
    drain.py            consumers acknowledge what they have before a stop
    control_socket.py   requests of commands on the host to a running broker
    stopping.py         the order in which processes end
    notify.py           messages to systemd
    supervision.py      the supervisor, as a reload and a drain see it

Imports: `configuration/`, `host/`, workers, storage; and `is_optimised` of `bootstrap.py`, which tells how this Python
was built.  The function is there because the bootstrap runs before anything of ours can be imported.  Start with
`serve.py`.
"""
