"""Each call in storage/ that syncs, retires, renames or removes: its canary, or the reason why it has none.

A canary leaves out one call (steps.py), and either random worlds show it (NOTICED) or a scripted one does (SCENES).
A call with a reason is left to the test that the reason names, or loses nothing.
"""
from geminga.storage.admin import housekeeping
from geminga.storage.catalogue.database import Database
from geminga.storage.cursors import state_v1
from geminga.storage.cursors.state_file import StateFile
from geminga.storage.delayed import amendments
from geminga.storage.delayed.window_files import WindowFiles
from geminga.storage.disk import data_folder, files
from geminga.storage.ledgers import (
    checkpoints,
    compacted_ledgers,
    journal,
    journal_reader,
    journal_segments,
    ledger_files,
    ledger_headers,
)
from geminga.storage.ledgers.checkpoints import FileSnapshot, SnapshotFile
from geminga.storage.ledgers.journal import Journal
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.offline import backup, backup_items, repair, restore
from geminga.storage.open_topics import backup_snapshot, compacted_views, disk_space
from geminga.storage.open_topics.durability import Durability
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.owner import recovery
from geminga.storage.owner.owner_pass import Pass
from geminga.storage.owner.recovery import Recovery
from geminga.storage.runtime import unix_sockets
from geminga.storage.topics import exported
from geminga.storage.upkeep import hole_punching
from geminga.storage.upkeep.delayed_scheduler import DelayedScheduler
from geminga.storage.upkeep.trimming import Trimming

from . import scenes
from .canaries import CANARIES, patched
from .scalable_canaries import SCALABLE_CANARIES
from .steps import Step, left_out
from .transaction_canaries import TRANSACTION_CANARIES

PROMISES = {
    "receipted entries are there", "what was acknowledged stays so, and nothing else is", "messages are counted",
    "nothing but the disk's own failures ends an owner", "a crash damages nothing", "a stop damages nothing",
    "nothing is replayed after a clean stop", "no file is left behind", "what is said to have been stored was",
    "only what was sent is stored, once", "entries keep their bytes", "subscriptions stay", "totals add up",
    "what is sent again is stored once", "ledgers that were deleted stay so", "totals are the model's own",
    "what is due is delivered",
}

NOTICED = {
    "a_pass_is_not_synced": Step(Journal.sync, "os.fdatasync("),
    "an_answer_comes_before_its_sync": Step(Durability._sync_when_due, "decisions.journal.sync()"),
    "the_end_of_a_segment_is_not_synced": Step(Journal._roll, "self.sync()"),
    "a_checkpoint_puts_nothing_on_disk": Step(Journal._write_and_retire, "write_checkpoint("),
    "a_checkpoint_retires_nothing": Step(Journal._write_and_retire, "retire(segment"),
    "a_stop_puts_nothing_on_disk": Step(Journal.close, "write_checkpoint("),
    "a_stop_retires_nothing": Step(Journal.close, "retire(segment"),
    "a_stop_does_not_sync_what_it_retires": Step(Journal.close, "os.fdatasync("),
    "the_name_of_a_new_segment_is_not_synced": Step(journal_segments.make_segment, "sync(path.parent"),
    "ledgers_are_not_synced": Step(checkpoints.write_checkpoint, "sync(path, os.fdatasync)"),
    "names_of_ledgers_and_states_are_not_synced": Step(checkpoints.write_checkpoint, "sync(folder, os.fsync)", 0),
    "the_name_of_a_new_partition_is_not_synced": Step(Database.commit, "sync(folder, os.fsync)"),
    "the_name_of_a_journal_is_not_synced": Step(journal.open_journal, "sync(above"),
    "retired_segments_of_a_start_are_not_synced": Step(journal.open_journal, "os.fdatasync("),
    "segments_of_a_start_are_not_synced": Step(journal_reader.make_sure, "os.fdatasync("),
    "a_segment_that_failed_is_not_copied": Step(journal_reader.rescue, "write_anew("),
    "a_start_with_other_owners_puts_nothing_on_disk": Step(recovery.recover, "checkpoints.write_checkpoint("),
    "the_number_of_owners_is_not_synced": Step(recovery.settle, "sync(path.parent"),
    "a_start_retires_nothing": Step(journal.open_journal, "retire("),
    "files_of_a_removed_journal_stay": Step(journal_reader.retire, "path.unlink(", 1),
    "windows_of_delayed_messages_are_not_synced": Step(DelayedScheduler._write, "sync_all("),
    "what_is_unloaded_is_not_put_on_disk": Step(Durability.checkpoint, "write_checkpoint("),
    "a_journal_that_moved_is_not_removed": Step(recovery.recover_owner, "journal_reader.retire("),
    "the_name_of_a_delayed_index_is_not_synced": Step(DelayedScheduler._write, "sync(named"),
    "a_file_written_anew_gets_no_name": Step(files.write_anew, "fresh.replace("),
    "trimmed_ledgers_are_left_behind": Step(Trimming.unlink_taken, "ledger.unlink("),
    "ledgers_deleted_in_the_journal_stay": Step(Recovery.is_durable, "deleted.unlink("),
    "a_state_is_not_put_in_place": Step(SnapshotFile.put, "self.fresh(number).replace("),
    "a_state_is_not_synced": Step(FileSnapshot.write, "sync(self.fresh"),
    "files_of_a_large_checkpoint_are_not_synced": Step(checkpoints._write_together, "disk.sync()", 0),
    "names_of_a_large_checkpoint_are_not_synced": Step(checkpoints._write_together, "disk.sync()", 1),
    "a_file_system_is_not_synced": Step(files.FileSystem.sync, "sync_all("),
    "a_pass_does_not_sync_when_due": Step(Pass.end, "self.sync("),
}

# Steps that only worlds of scalable topics take, which delete segments.
NOTICED_IN_DELETIONS = {
    "the_folder_of_a_deleted_segment_stays": Step(TopicTable._delete_files, "file.remove("),
    "files_of_a_deleted_segment_stay": Step(StateFile.remove, "shutil.rmtree("),
}

# A step that only worlds of transactions show: a new folder of a table gets its name from nothing else.
NOTICED_IN_TRANSACTIONS = {
    "names_of_tables_are_not_synced": Step(checkpoints.write_checkpoint, "sync(folder, os.fsync)", 1),
}

SCENES = {
    scenes.power_fails_in_a_checkpoint: [Step(Journal._collect, "self.sync()")],
    scenes.power_fails_after_a_stop_behind_a_checkpoint: [Step(Journal._write_and_retire, "os.fdatasync(")],
    scenes.power_fails_in_a_stop: [Step(Journal.close, "self.sync()")],
    scenes.power_fails_when_owners_move: [
        Step(recovery.recover, "journal_reader.make_sure("), Step(journal_reader.make_sure, "os.fdatasync(")],
    scenes.power_fails_when_owners_move_after_a_failed_sync: [Step(journal_reader.make_sure, "write_again(")],
    scenes.power_fails_after_a_start_behind_a_failed_sync: [Step(journal_reader.make_sure, "write_again(")],
    scenes.power_fails_after_a_start_without_room: [Step(journal.open_journal, "write_checkpoint(")],
    scenes.power_fails_in_a_rescue: [
        Step(journal_reader.rescue, "sync(folder", 0), Step(files.write_anew, "os.fsync(")],
    scenes.an_older_segment_is_not_retired_when_one_is_rescued: [Step(journal_reader.rescue, "bad.rename(")],
    scenes.power_fails_in_a_start_when_a_rescued_segment_was_removed: [Step(journal_reader.rescue, "sync(folder", 1)],
    scenes.power_fails_while_a_journal_is_removed: [
        Step(journal_reader.retire, "sync(folder"), Step(journal_reader.retire, "path.unlink(", 0)],
}

_AS_A_WHOLE = "The disk of the simulation syncs as a whole; that of tests/crash/test_power.py does not."
_SPACE = "Left out it costs space, and no promise of the simulation is about that."
_FOLDER = "Left out, a power cut within a few calls of a deletion leaves its folder, which too few worlds show."
UNNOTICED = {
    Step(Journal._set_aside, "self._segment.path.rename("):
        "It keeps a medium that failed out of use, which "
        "test_a_segment_that_failed_to_sync_is_set_aside_and_never_used_again holds.",
    Step(Journal._set_aside, "sync(self.folder"):
        "Left out, a power cut may bring a failed medium back into use, but loses no record that was answered.",
    Step(journal_segments.make_segment, "os.fdatasync("):
        "The first sync of a pass in the segment writes it too, but slower; test_journal_order.py holds this one.",
    Step(journal_segments.make_segment, "path.unlink("): _SPACE,
    Step(Journal._free_segment, "segment.path.unlink("): _SPACE,
    Step(journal.open_journal, "path.unlink("): _SPACE,
    Step(files.allocate, "path.unlink("): _SPACE,
    Step(SnapshotFile.drop, "self.fresh(number).unlink("): _SPACE,
    Step(ledger_files.create, "ledger.unlink("): _SPACE,
    Step(ledger_headers.remove_unmade, "path.unlink(", 0): _SPACE,
    Step(ledger_headers.remove_unmade, "path.unlink(", 1): _SPACE,
    Step(journal_reader.retire, "folder.rmdir("): "An empty folder has nothing to be replayed.",
    Step(DelayedScheduler._write, "write_anew("):
        "A start rebuilds an index that was not saved, which takes time; test_delays_files.py fails without it.",
    Step(TopicTable._delete_files, "self._decisions.journal.sync("): _FOLDER,
    Step(recovery.replay, "StateFile("): _FOLDER,
    Step(recovery.replay, "sync(folder"): _FOLDER,
    Step(files.write_anew, "fresh.unlink("): _SPACE,
    Step(files._sync_each, "sync(path"): _AS_A_WHOLE,
    Step(files._sync_each, "sync(folder"): _AS_A_WHOLE,
    Step(Ledger.unlink, "path.unlink("): "files_are_left_behind in canaries.py leaves out all of the function.",
    Step(recovery.recover, "journal_reader.rescue("):
        "A replay reads the segment that failed too; without the call the next owner writes to that segment, and "
        "test_a_segment_that_failed_to_sync_is_set_aside_and_never_used_again fails.",
    Step(recovery.settle, "write_anew("):
        "Each start then takes the owners for moved, which only takes time; "
        "test_who_wrote_the_journals_is_known_by_number fails.",
    Step(WindowFiles.remove, "self.path("): "A window that stays is read again, and its rows are known to be done.",
    Step(ledger_files.give_back_rows, "os.fsync("): "No ledger of the simulation is large enough.",
    Step(ledger_files.give_back_rows, "fresh.replace("): "No ledger of the simulation is large enough.",
    Step(ledger_files.give_back_rows, "fresh.unlink("): "No ledger of the simulation is large enough.",
}

OUT_OF_REACH = {
    amendments: "The simulation changes the time of no message.",
    backup: "The simulation makes no backup.",
    backup_items: "The simulation makes no backup.",
    compacted_ledgers: "The simulation compacts nothing.",
    data_folder: "The supervisor calls it before owners start.",
    housekeeping: "The simulation has no nights, which remove what interrupted deletions have left.",
    hole_punching: "No ledger of the simulation is large enough for holes.",
    repair: "It runs while no owner does.",
    restore: "It runs while no owner does.",
    backup_snapshot: "The simulation makes no backup.",
    disk_space: "The simulation reserves no space.",
    state_v1: "The simulation begins with the newest format.",
    compacted_views: "The simulation compacts nothing.",
    exported: "The simulation exports nothing.",
    unix_sockets: "The socket that it removes, of a process that has ended, keeps nothing.",
}
FOLDERS_OUT_OF_REACH = {
    "jobs": "Jobs are processes of their own; an owner takes over only what is complete.",
    "standby": "A copy is written by processes of a standby, which tests/standby kills at any moment.",
    "tables": "Exports are of the nightly job; tests/storage/tables kills them at each call."}


def add_canaries() -> None:
    """Add a canary for each step that random worlds notice."""
    lost_table = TRANSACTION_CANARIES["the_table_of_a_coordinator_is_not_written"][1]
    for canaries, steps, promises in (
            (CANARIES, NOTICED, PROMISES), (SCALABLE_CANARIES, NOTICED_IN_DELETIONS, PROMISES),
            (TRANSACTION_CANARIES, NOTICED_IN_TRANSACTIONS, lost_table)):
        for name, step in steps.items():
            canaries[name] = lambda step=step: patched(iter(left_out(step))), promises


def is_about(step: Step, module: str, function: str, call: str, number: int) -> bool:
    """Whether the step is this call, as `calls` yields it."""
    return (step.function.__module__, step.function.__qualname__) == (module, function) and call.startswith(step.call) \
        and step.number == number
