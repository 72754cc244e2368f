"""Messages as applications see them: unpacked, decompressed, decoded by their schema, filtered, printed.

Entries of the binary protocol and of ledgers go in, messages come out, and the reverse for publishing.

    message.py    a message: its fields, as JSON, as text
    decoding.py   entries -> messages
    filters.py    options that choose messages
    values.py     payloads -> values of their topic's schema; avro_values.py reads Avro's encoding
    topics.py     names and patterns of topics -> the topics that exist
    stored.py     messages of a data folder's ledgers that match; delivered.py, those that a broker delivers
    report.py     lines about messages that could not be searched
    shown.py      messages -> rows of a page, of bounded size

    outgoing.py           JSON lines, texts -> messages to publish
    schema_encoding.py    values -> payloads by a schema: avro_encoding.py for Avro, schema_files.py for definitions
    entries.py            messages to publish -> entries, in batches
    publishing.py         messages to publish -> partitions of a topic, at a rate
    blocks.py             lines of files and pipes, as they come

Imports: `pulsar_client`; proto, and storage's reading of single entries and schemas.
"""
