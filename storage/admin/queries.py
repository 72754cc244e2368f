"""The owner's side of administration: one function for each question of `questions.py`, in one table.

A question and its answer are JSON objects. The answer leaves when its pass is durable; a Refusal becomes its error.
"""
import json
import traceback
from collections.abc import Callable
from typing import Any

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.admin import (
    delayed_messages,
    housekeeping,
    listings,
    positions,
    questions,
    standstills,
    stored_topics,
    subscriptions,
    table_questions,
    topic_changes,
    topic_figures,
    transactions,
    typed_json,
)
from geminga.storage.admin.context import AdministeredOwner
from geminga.storage.admin.questions import Question, TopicQuestion
from geminga.storage.errors import CorruptFile, NotDurable, StorageFull, text_of
from geminga.storage.runtime.log import log


def answer(owner: AdministeredOwner, asked: bytes) -> bytes:
    """Answer a question of administration, in JSON: {"ask": name, "topic": ..., ...}, with or without a topic.

    Returns JSON: {"answer": ...} or {"refused": error code, "text": ...}. An answer that is bytes is returned
    unchanged.
    """
    try:
        question = _read(owner, json.loads(asked))
        made = FUNCTIONS[type(question)](owner, question)
        return made if isinstance(made, bytes) else typed_json.dump({"answer": made})
    except Refusal as refusal:
        code, text = refusal.code, refusal.message
    except (StorageFull, CorruptFile) as error:
        code, text = api.PersistenceError, str(error)
    except OSError as error:
        code, text = api.PersistenceError, text_of(error)
    except NotDurable:
        raise
    except Exception:
        log.error(f"a question of administration failed: {asked.decode()}: {traceback.format_exc()}", code="G291")
        code, text = api.UnknownError, "An error of the broker's own; its log has the details"
    return json.dumps({"refused": code, "text": text}).encode()


def _read(owner: AdministeredOwner, fields: dict[str, Any]) -> Question[Any]:
    """Return the question of administration that a JSON object holds.

    Raises Refusal if its topic belongs to another owner. Raises KeyError or TypeError if questions.py has no such
    question.
    """
    name, topic = fields.pop("ask"), fields.pop("topic", None)
    kind = _BY_NAME[name]
    topic_name = names.parse(topic) if topic else None
    if topic_name is not None:
        owner.refuse_foreign(topic_name)
    values: dict[str, Any] = typed_json.read_fields(kind, fields)
    if issubclass(kind, TopicQuestion):
        if topic_name is None:
            raise TypeError(f"{name} is a question about a topic")
        return kind(topic_name, **values)
    return kind(**values)


Function = Callable[[AdministeredOwner, Any], object]      # of the question and its answer; a test holds that they fit

FUNCTIONS: dict[type[Question[Any]], Function] = {
    questions.Terminate: topic_changes.terminate,
    questions.Unload: topic_changes.unload,
    questions.OpenTopics: topic_changes.open_topics,
    questions.Delete: topic_changes.delete,
    questions.IsUsed: topic_changes.is_used,
    questions.Truncate: topic_changes.truncate,
    questions.Trim: topic_changes.trim,
    questions.ApplyPolicies: topic_changes.apply_policies,
    questions.ApplyOptions: topic_changes.apply_options,
    questions.Subscriptions: subscriptions.names,
    questions.Subscribe: subscriptions.subscribe,
    questions.Unsubscribe: subscriptions.unsubscribe,
    questions.Properties: subscriptions.properties,
    questions.Replicated: subscriptions.replicated,
    questions.Why: standstills.why,
    questions.Release: subscriptions.release,
    questions.Clear: positions.clear,
    questions.Skip: positions.skip,
    questions.Reset: positions.reset,
    questions.Expire: positions.expire,
    questions.Analyze: positions.analyze,
    questions.BytesBehind: positions.bytes_behind,
    questions.GetLastMessage: positions.last_message,
    questions.FindByTime: positions.find_by_time,
    questions.FindByIndex: positions.find_by_index,
    questions.Peek: positions.peek,
    questions.GetEntry: positions.entry,
    questions.Examine: positions.examine,
    table_questions.GetPage: positions.page,
    table_questions.GetCursorMap: standstills.cursor_map,
    questions.GetDelayed: delayed_messages.delayed,
    questions.Cancel: delayed_messages.cancel,
    questions.Reschedule: delayed_messages.reschedule,
    questions.GetStatistics: topic_figures.topic,
    questions.Measure: topic_figures.measure,
    table_questions.ListTopics: listings.topics,
    table_questions.ListSubscriptions: listings.subscriptions,
    table_questions.ListClients: listings.clients,
    table_questions.ListUnexported: listings.unexported,
    table_questions.ListUnreplicated: listings.unreplicated,
    questions.GetStorage: stored_topics.storage,
    questions.GetStored: stored_topics.stored_topic,
    questions.AdoptView: housekeeping.adopt_view,
    questions.Settle: housekeeping.settle,
    questions.NoteExported: housekeeping.note_exported,
    questions.CompactionDue: housekeeping.compaction_due,
    questions.Enforce: housekeeping.enforce,
    questions.RemoveLeftovers: housekeeping.leftovers,
    questions.BeginBackup: housekeeping.begin_backup,
    questions.HoldCommits: housekeeping.hold_commits,
    questions.CutBackup: housekeeping.cut_backup,
    transactions.GetJournal: transactions.journal,
    transactions.GetCoordinators: transactions.coordinators,
    transactions.GetTransactions: transactions.of_coordinator,
    transactions.ListTransactions: transactions.listing,
    transactions.GetDone: transactions.done,
    transactions.GetOutcome: transactions.outcome,
    transactions.GetInTopic: transactions.in_topic,
    transactions.GetTopic: transactions.topic,
    transactions.GetPendingPosition: transactions.pending_position,
    transactions.AbortTransaction: transactions.abort,
}
_BY_NAME = {kind.name: kind for kind in FUNCTIONS}
assert len(_BY_NAME) == len(FUNCTIONS), "two questions have the same name"
