"""The owner's side of administration: which function answers which question.

A function answers the question that its parameter `question` is annotated with.  The question's docstring says what the
answer is; the function's own only what that does not say.  A question and its answer are JSON objects.  The answer
leaves when its pass is durable; a Refusal becomes its error.
"""
import inspect
import json
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.admin import (
    delayed_messages,
    housekeeping,
    listings,
    positions,
    schedules,
    segments,
    standstills,
    stored_topics,
    subscriptions,
    topic_changes,
    topic_figures,
    transactions,
    typed_json,
)
from geminga.storage.admin.questions import Question, TopicQuestion
from geminga.storage.errors import CorruptFile, NotDurable, StorageFull, text_of
from geminga.storage.open_topics.given import given
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.runtime.log import log

_MODULES = (delayed_messages, housekeeping, listings, positions, schedules, segments, standstills, stored_topics,
            subscriptions, topic_changes, topic_figures, transactions)
# Functions (parts of the owner, question); a test holds that questions and answers fit.
FUNCTIONS: dict[type[Question[Any]], Callable[..., object]] = {
    function.__annotations__["question"]: function for module in _MODULES for name, function in vars(module).items()
    if inspect.isfunction(function) and "question" in function.__annotations__ and not name.startswith("_")}
_BY_NAME = {kind.name: kind for kind in FUNCTIONS}
assert len(_BY_NAME) == len(FUNCTIONS), "two questions have the same name"


class Questions:
    """The questions of administration that one owner answers."""

    def __init__(self, topics: TopicTable, parts: Mapping[type, object]):
        """parts: parts of the owner by their types, of which each function is given those that it asks for."""
        self._topics = topics
        self.functions = {kind: given(function, parts, left=1) for kind, function in FUNCTIONS.items()}

    def __repr__(self) -> str:
        return f"<Questions {len(self.functions)}>"

    def answer(self, asked: bytes) -> bytes:
        """Answer a question of administration, in JSON: {"ask": name, "topic": ..., ...}, with or without a topic.

        Returns JSON: {"answer": ...} or {"refused": error code, "text": ...}. An answer that is bytes is returned
        unchanged.
        """
        try:
            question = self._read(json.loads(asked))
            made = self.functions[type(question)](question)
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

    def _read(self, fields: dict[str, Any]) -> Question[Any]:
        """Return the question of administration that a JSON object holds.

        Raises Refusal if its topic belongs to another owner. Raises KeyError or TypeError if questions.py has no such
        question.
        """
        name, topic = fields.pop("ask"), fields.pop("topic", None)
        kind = _BY_NAME[name]
        topic_name = names.parse(topic) if topic else None
        if topic_name is not None:
            self._topics.refuse_foreign(topic_name)
        values: dict[str, Any] = typed_json.read_fields(kind, fields)
        if issubclass(kind, TopicQuestion):
            if topic_name is None:
                raise TypeError(f"{name} is a question about a topic")
            return kind(topic_name, **values)
        return kind(**values)
