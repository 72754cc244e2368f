"""Administration of an owner: questions of the admin process and of jobs, and the owner's answers.

    questions.py          every question and the type of its answer
    figures.py            answers with statistics: topics, ledgers, cursors
    typed_json.py         both of them as JSON, held to their annotations
    queries.py            which function answers which question
    segments.py           make and seal segments of scalable topics
    segment_questions.py  questions about segments
    layout_change_steps.py  the questions that split or merge segments, in their order
    topic_changes.py      terminate, unload, delete, truncate a topic; apply changed policies
    table_questions.py    questions whose answers are tables: topics, subscriptions, clients
    subscriptions.py      create and delete subscriptions
    standstills.py        why a subscription's consumers get nothing more, and what they hold
    priorities.py         how much waits of each priority
    positions.py          move subscriptions; find and show messages by id, by time, by number
    delayed_messages.py   list, cancel and reschedule delayed messages
    schedules.py      what schedules have published, what waits; one is run now
    schedule_questions.py  questions about schedules
    topic_figures.py      statistics of one topic, or of all
    listings.py           tables of topics, subscriptions and clients
    stored_topics.py      ledgers and cursors of one topic
    housekeeping.py       space that a night gives back; compacted views and backups, for jobs beside the broker
    transactions.py       questions about transactions, and their answers

Imports: everything below `owner/`. Start with `questions.py` and `queries.py`.
"""
