"""Pages of the console, one file for each subject: functions that load the values of a page.

`policy_rows.py` has the rows of the tables of policies, which several pages show.

Imports: `actions/`, the files of the console's own folder, and what is below it.  Start with `overview.py`.
"""
