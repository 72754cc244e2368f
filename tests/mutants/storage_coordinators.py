"""Bugs in coordinators of transactions: who may end one, what a backup has of it, and what files show."""

from .bugs import of

_TESTS = "storage/test_coordinator.py"
_BACKUPS = "storage/test_transactions_backup.py"
_FILES = "storage/test_transactions_files.py"

BUGS = [
    *of("storage/transactions/coordinator.py", _TESTS,
        ("    return session.is_superuser or role.is_name(session.role)\n", "    return True\n",
         "everybody ends every transaction"),
        ("session.is_superuser or ", "", "super users cannot help"),
        ("        if maximum and len(table.by_id) >= maximum:\n", "        if False:\n",
         "one client opens as many as it likes"),
        ("            if (how[0] == COMMITTED) != commits:\n", "            if False:\n",
         "an abort of what was committed is a success"),
        ("            if known in session.told_ended:", "            if False:",
         "a client ends twice what it was told of"),
        ("    if len(waiting) >= _WAITING_MAX:\n", "    if False:\n", "requests pile up while an owner is down"),
        ("        self._waiting.pop(request, None)\n", "", "after many requests no more are taken"),
        ("commits and self.held.is_on:", "False:", "a commit is in half of a backup", _BACKUPS),
        ("        self.held.check_cut(self._owner.now_ms)\n", "", "a late cut has half of a commit", _BACKUPS),
        ("        if self.held.is_over(now_ms):\n", "        if False:\n", "a backup that died stops all commits",
         _BACKUPS),
        ("table.encode(of_backup=True)", "table.encode()", "what was open goes on in a restored copy", _BACKUPS)),
    *of("storage/transactions/peers.py", "storage/test_peers.py",
        ("row for row in rows if row[0] in _ANSWERS", "row for row in rows", "memory grows while an owner is down"),
        ("        self.send({index: self._waiting.pop(index, [])})\n", "",
         "an answer to an owner that is not known yet is lost")),
    *of("storage/transactions/participant.py", _FILES,
        ("            self._owner.after_commit(self._settle_one)\n", "            pass\n",
         "files do not say how transactions have ended")),
    *of("storage/jobs/chunks.py", _FILES,
        ("                    is_chosen &= confirmed.are_committed(", "                    confirmed.are_committed(",
         "chunks of an aborted message are joined with new ones")),
    *of("storage/topics/partition.py", "storage/test_transactions_messages.py",
        ("self.schedule.waiting_of(self.discarded) if self.discarded.bitmaps else self.schedule.waiting",
         "self.schedule.waiting", "delayed messages that were undone wait")),
    *of("workers/clients/forwarding.py", "workers/test_coordinators.py",
        ('                       "superuser": client.is_superuser,\n', '                       "superuser": False,\n',
         "owners do not know super users")),
]
