"""Routes of the console: pages, dialogs and streams are answered here, with the headers that all answers have.

    console.py      all routes, headers, errors as pages
    dialogs.py      what an action is about to do, before somebody confirms it
    live.py         updates of an open page, as server-sent events
    tail.py         the newest messages of a topic, as server-sent events
    sign_in.py      begin and end of a session
    own_url.py      the address at which browsers reach the console

Imports: the rest of the console, `admin/` and what is below it.  Start with `console.py`.
"""
