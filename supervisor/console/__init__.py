"""The console: pages that show the broker in a browser, and change it.

    page.py         declaration of a page: its path, its template, and the function that loads its values
    asking.py       the questions of a page, which are requests to REST's own routes
    rendering.py    values -> HTML, by Jinja's templates
    ordering.py     the column by which a table is sorted
    document_pages.py    documents and runbook as HTML, and search in them
    bars.py         histograms over time
    policy_rows.py  policies that hold, as rows of a table
    dialogs.py      what an action is about to do, before somebody confirms it
    live.py         updates of an open page, as server-sent events
    history.py      rates of the last 15 minutes
    tail.py         the newest messages of a topic, as server-sent events
    sign_in.py      begin and end of a session
    static_files.py    scripts and styles
    console.py      routes, headers, errors as pages
    pages/          pages, a file for each subject
    actions/        what buttons change, a file for each subject
    templates/, static/, text.toml    HTML, scripts and styles, words

A page has no way of its own to owners, files or rights: what it shows is what REST answers to the same role, and what
it changes, its script asks REST for.

Imports: `admin/` and what is below it.  Start with `page.py`.
"""
