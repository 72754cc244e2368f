"""The worker's process.

    main.py        begins, follows the supervisor, and ends
    worker.py      Worker: all clients, and the parts that they share
    listeners.py   sockets that clients are accepted from; the process of administration uses them too

May import everything in workers/, storage and proto.  Start with worker.py.
"""
