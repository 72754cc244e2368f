"""Tables in Parquet files as messages: what `geminga import --from-table` publishes.

    files.py        a file or folder -> its files, their common schema, their identity, batches of rows
    roles.py        columns -> key, event time, properties, payload, value
    avro_types.py   types of Arrow -> a definition of Avro, or the reason why there is none
    plain_values.py columns -> JSON values for a schema of a topic
    payloads.py     rows -> payloads: JSON column by column, by a topic's schema, as they are
    rows.py         batches of rows -> messages to publish

`tasks/table_import.py` publishes them.  Imports: `messages/`, storage's schemas, pyarrow.  Start with `rows.py`.
"""
