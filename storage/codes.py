"""The codes of lines at warning or above, and of what is told when it is over: each with its page in systemd/runbook/.

A code stays what it is: alert rules and searches of the journal go by it.  A new one is a row here and a line in its page.
"""
CODES = {
    # Code: (page, what happened)
    "G101": ("disk", "the disk is nearly full: publishing is refused, or goes on"),
    "G102": ("disk", "an owner cannot begin on this data folder for now, and tries again"),
    "G103": ("disk", "something could not be written, or read, for now"),
    "G104": ("disk", "the data folder is gone"),
    "G105": ("disk", "a stop had no time to put everything in place; the next start does it"),
    "G110": ("sync", "a sync failed: an owner sets the file aside and starts again"),
    "G120": ("damage", "damage was found in the data folder, and mended where it could be"),
    "G121": ("damage", "a topic's files cannot be used: the topic is refused"),
    "G122": ("damage", "a client could not read a message"),
    "G123": ("damage", "a ledger's file is shorter than what was written to it"),
    "G124": ("damage", "an owner's journal needs a file that is damaged: the broker does not start"),
    "G201": ("processes", "a process ended and is started again"),
    "G202": ("processes", "a process did not stop in time and was killed"),
    "G203": ("processes", "a process cannot start: the broker stops"),
    "G204": ("processes", "a process did not answer, and is replaced"),
    "G205": ("processes", "a process waits in the kernel, most likely for a disk"),
    "G290": ("internal", "an error of the program's own"),
    "G320": ("limits", "the interpreter is slow: it was built without optimisation"),
    "G330": ("configuration", "the broker cannot serve with this configuration, or in this place"),
    "G331": ("configuration", "keys that mean nothing here, or are taken for something else than they may look"),
    "G401": ("certificate", "a certificate expires soon, or has expired"),
    "G402": ("certificate", "a certificate or key that was changed cannot be used"),
    "G403": ("identity", "TLS handshakes fail"),
    "G404": ("identity", "clients fail to authenticate"),
    "G405": ("identity", "a file of keys or passwords that was changed cannot be used"),
    "G406": ("identity", "the audit log cannot be written"),
    "G501": ("rates", "a rate keeps producers or consumers waiting"),
    "G511": ("nightly", "compaction cannot be started"),
    "G512": ("nightly", "jobs find no broker: nothing can be compacted"),
    "G513": ("nightly", "a job said something that the broker does not understand"),
    "G514": ("nightly", "the nightly job failed"),
}
