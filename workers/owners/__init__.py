"""Owners, seen from a worker: a link to each, and commands that wait for it.  A pass sends one envelope over each link.

    links.py       OwnerLink gathers and sends; OwnerLinks flushes, receives, stops publishers when owners are behind
    opening.py     PRODUCERs and SUBSCRIBEs for one owner: few of them are with it at a time, and clients take turns
    waiting.py     all commands that wait for an owner, bounded
    following.py   news from the supervisor: owners come and go, options change, the process is to stop

May import workers/options.py, identity/options.py and storage/runtime; knows clients only by Protocols.
Start with OwnerLinks.schedule_flush, the way out, and OwnerLinks.receive, the way back.
"""
