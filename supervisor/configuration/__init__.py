"""Configuration files, environment and command line -> the options of every layer.

    config.py         geminga.toml: keys, defaults, sources
    value_ranges.py   which values each key takes
    properties.py     Pulsar's broker.conf and standalone.conf -> the same options
    pulsar_texts.py   the options -> Pulsar's settings, as its tools read them
    pulsar_keys.txt   keys of Pulsar that have no effect here
    quantities.py     times and sizes as values of keys: 10s, 1d, 10M
    restarts.py       keys that a reload leaves as they are
    exposure.py       whether everybody on the network may use the broker
    usable_paths.py   what is wrong with a file or folder that a key names, and what to do
    editing.py        changes of single keys in a TOML file
    target.py         the broker that a command means: options, and where their defaults come from
    contexts.py       named brokers of a user
    sign_in.py        sign-in of a person at an issuer of tokens, for a context

Imports: `host/`, options of the layers below, `pulsar_client/`.  Start with `config.py`.
"""
