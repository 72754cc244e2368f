"""Schemas of topics: their versions, and which versions are compatible.

    registry.py         versions of a topic's schema in the catalogue, and admission of clients
    avro_rules.py       Avro's resolution rules (JSON schemas too)
    plain_values.py     payloads of schemas without fields, and pairs
    protobuf_rules.py   whether messages of one Protobuf descriptor can be read with another

Imports: `catalogue/`.  Start with `registry.py`.
"""
