"""Topics as tables: the night appends what is new to Parquet files or to Apache Iceberg.

    exports.py            which tables are due, in which rounds; their commits; small files merged
    writing.py            a task: stretches of ledgers -> Parquet files by day, and files merged into one; it runs apart
    columns.py            rows: a message's own columns and those of its payload; rejected messages
    values.py             payloads -> columns, by the versions of their schema; forms.py: together, or one by one
    protobuf_values.py    messages of Protobuf
    commits.py            a table in Parquet files: commits that have files and positions together
    iceberg.py            a table of Iceberg, by its Java library; iceberg_types.py: its types, and ids of columns
    table_folders.py      folders of this host, and URLs of Hadoop's file systems

Nothing here writes into a ledger, and the broker's processes import nothing from here.
"""
