"""`geminga admin`: pulsar-admin's groups, verbs and options over a broker's HTTP port.

    verbs.py          the table of verbs: method, path, options, example
    verb.py           what a verb and an option are
    runs.py           verbs that are more than one question to the broker
    policies.py       verbs that set, get and remove policies
    policy_verbs.py   their names and options
    commands.py       rows of these tables -> click commands
    messages.py       entries with their metadata -> messages

Imports: `cli/`, `pulsar_client/`, `configuration/`, tables of storage and `supervisor/admin/`.  Start with `verbs.py`.
"""
