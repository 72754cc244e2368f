"""Commands of clients that change a topic, and answers to them.

    commands.py             how a command is carried out, and ends of connections
    requests.py             shared by all commands: the table of functions, answers, commands that wait
    topics.py               topics opened or created by name
    producers.py            PRODUCER, CLOSE_PRODUCER
    holder_probes.py        probes of producers that keep others waiting for exclusive access
    subscriptions.py        subscriptions created, reset and deleted
    consumers.py            SUBSCRIBE, CLOSE_CONSUMER, UNSUBSCRIBE, REDELIVER, CONSUMER_STATS
    transactional_acks.py   ACK in a transaction
    positions.py            SEEK, GET_LAST_MESSAGE_ID
    topic_lookup.py         topics and subscriptions that a question of administration names

Imports: `topics/`, `dispatch/`, `schemas/`, `catalogue/`.  Start with `commands.py`.
"""
