"""The console: pages that show the broker in a browser, and change it.

    page.py         declaration of a page: its path, its template, and the function that loads its values
    asking.py       the questions of a page, which are requests to REST's own routes
    rendering.py    values -> HTML, by Jinja's templates
    ordering.py     the column by which a table is sorted
    document_pages.py    documents and runbook as HTML, and search in them
    bars.py         histograms over time
    payloads.py     values of messages, as they are shown
    history.py      rates of the last 15 minutes
    static_files.py    scripts and styles
    actions/        what buttons change, a file for each subject
    pages/          pages, a file for each subject
    routes/         the routes that answer with pages, dialogs and streams
    templates/, static/, text.toml    HTML, scripts and styles, words

A page has no way of its own to owners, files or rights: what it shows is what REST answers to the same role, and what
it changes, its script asks REST for.

Imports: `admin/` and what is below it; `actions/`, `pages/` and `routes/` import the files here and those before them.
Start with `page.py`.
"""
