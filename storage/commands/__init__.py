"""Commands of clients that change a topic, and answers to them.

    commands.py             how a command is carried out, and ends of connections
    requests.py             shared by all commands: the table of functions, commands that wait
    producers.py            PRODUCER, CLOSE_PRODUCER
    schema_admission.py     whether a producer's or a consumer's schema is admitted
    holder_probes.py        probes of producers that keep others waiting for exclusive access
    subscriptions.py        subscriptions created, reset and deleted
    consumers.py            SUBSCRIBE, CLOSE_CONSUMER, UNSUBSCRIBE, REDELIVER, CONSUMER_STATS
    transactional_acks.py   ACK in a transaction
    stream_consumers.py     SCALABLE_TOPIC_SUBSCRIBE, SCALABLE_TOPIC_UNSUBSCRIBE
    positions.py            SEEK, GET_LAST_MESSAGE_ID
    topic_lookup.py         topics and subscriptions that a question of administration names

Imports: `topics/`, `open_topics/`, `scalable/`, `dispatch/`, `schemas/`, `catalogue/`.  Start with `commands.py`.
"""
