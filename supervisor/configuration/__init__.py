"""Configuration files, environment and command line -> the options of every layer.

    config.py         geminga.toml: keys, defaults, sources
    value_ranges.py   which values each key takes
    properties.py     Pulsar's broker.conf and standalone.conf -> the same options
    pulsar_keys.txt   keys of Pulsar that have no effect here
    units.py          times, sizes and moments as people write them

Imports: options of the layers below.  Start with `config.py`.
"""
