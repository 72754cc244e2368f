"""Commands that work on a data folder: the night, backups, damage, formats.

Imports: the other rooms of the supervisor.
"""
