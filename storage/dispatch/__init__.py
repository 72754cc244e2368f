"""Who gets the next entries: one file per way of choosing, and the table that names them.

A dispatcher is a pure function: subscription, ledgers and times in, runs of entries out.  No socket, no clock, no file.
"""
from geminga.storage.dispatch import exclusive
from geminga.storage.subscription import SubType

DISPATCHERS = {SubType.Exclusive: exclusive.next_runs}
