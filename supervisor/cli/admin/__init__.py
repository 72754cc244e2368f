"""`geminga admin`: pulsar-admin's groups, verbs and options over a broker's HTTP port.

    verbs.py          the table of verbs: method, path, options, example
    verb.py           the types of its rows: Verb, Option
    runs.py           functions of verbs that ask the broker more than one question
    policies.py       verbs that set, get and remove policies
    commands.py       makes click commands from rows of these tables
    messages.py       messages of an entry in the broker's answer

Imports: `cli/`, `pulsar_client/`, `configuration/`, tables of storage and `supervisor/admin/`.  Start with `verbs.py`.
"""
