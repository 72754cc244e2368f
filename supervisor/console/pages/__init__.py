"""Pages of the console, one file for each subject: functions that load the values of a page.

Imports: the other files of the console, and what is below it.  Start with `overview.py`.
"""
