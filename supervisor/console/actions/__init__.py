"""Actions of the console, one file for each subject: what a button changes, how, and what that does.

    action.py    declaration of an action, its parts, and what somebody typed in its fields

A dialog says beforehand what an action does, whether the role may do it, and which command and request over HTTP do
the same. The script then sends that request to REST, so that rights, limits and the audit log are those of REST.

Imports: the files of the console's own folder, and what is below it.  Start with `action.py`.
"""
