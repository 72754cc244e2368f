"""Commands that publish, consume, find and move messages, and that measure how fast a broker does.

Imports: the other rooms of the supervisor.  Each command imports what it needs when it runs.
"""
