"""Answers of a broker: which of its commands answer a request, and the errors in them."""
from typing import Any

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import TABLE, T

_MESSAGES = {field.number: (field.name, set(field.message_type.fields_by_name))
             for field in api.BaseCommand.DESCRIPTOR.fields if field.message_type is not None}
# Type of a command that only a broker sends, about a request -> its field of BaseCommand.
_ANSWERS = {kind: name for kind, (name, fields) in _MESSAGES.items() if kind not in TABLE and "request_id" in fields}
# Type of a command that may tell an error -> (its field of BaseCommand, field of the code, field of the text).
_ERRORS = {kind: (name, *pair) for kind, (name, fields) in _MESSAGES.items()
           for pair in (("error", "message"), ("error_code", "error_message")) if set(pair) <= fields}


def answer_in(command: api.BaseCommand) -> Any:
    """Return the message inside an answer, which has the request's id; None if the command is no answer.

    A producer that is made, but has to wait, is no answer: another one follows.
    """
    if command.type not in _ANSWERS or (command.type == T.PRODUCER_SUCCESS
                                        and not command.producer_success.producer_ready):
        return None
    return getattr(command, _ANSWERS[command.type])


def error_in(command: api.BaseCommand) -> tuple[int, str] | None:
    """Return (code, text) of the error that a command tells, None if it tells none."""
    if command.type not in _ERRORS:
        return None
    name, code, text = _ERRORS[command.type]
    answer = getattr(command, name)
    return (getattr(answer, code), getattr(answer, text)) if answer.HasField(code) else None
