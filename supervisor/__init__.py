"""Configuration, processes, administration.

    bootstrap.py    from a checkout to a running broker, or to its tests, with nothing but Python
    main.py         the geminga command
    config.py       one TOML file, the environment, the command line -> options of every layer
    properties.py   Pulsar's own key=value files -> the same
    serve.py        a broker's life: sockets, children, signals, the end
    children.py     fork, watch, restart
    reload.py       the configuration is loaded anew: what changes, and what needs a restart
    drain.py        what goes before a stop: consumers acknowledge what they have
    commands.py     what operators on the host ask of a running broker
    pulse.py        whether a child answers, and when it is given up
    notify.py       what systemd is told
    host.py         memory and control groups: what the host gives
    tune.py         what of the host bounds the broker, or makes it slow
    documents.py    README's tables of policies
    beside.py       where jobs beside the broker meet it
    nights.py       a night: compaction, then what need not be kept; its report
    backups.py      a backup, with a broker or without
    bundle.py       what somebody needs who looks into a problem; no secrets
    stacks.py       where in the program every process is, when it is asked
    client.py       a small client of the binary protocol: the health check's, and the command line's
    moving.py       topics are copied from one cluster to another
    admin/          HTTP: administration, lookup, metrics, health
"""
