"""Commands that show a running broker: tables of topics, subscriptions, clients, transactions; a live screen; causes.

    tables.py      `geminga topics`, `subscriptions`, `clients` and `transactions`
    why.py         `geminga why`
    top.py         `geminga top`: screen.py has what is shown and what keys do, snapshots.py asks the broker,
                   terminal.py reads keys
    scopes.py      namespaces, topics and patterns that a command is about

Imports: the other rooms of the supervisor.
"""
