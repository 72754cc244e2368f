"""Messages over plain HTTP for tests.

    rest = Rest(broker.http_url)
    topic = rest.topic()                              # which exists
    places = rest.publish(topic, "one", "two")        # message ids
    rest.stored(topic)                                # everything that the topic has, decoded by its schemas
"""
import base64
import json
from typing import Any

from ..harness import path_of, request, unique_topic


class Rest:
    """Calls to one broker."""

    def __init__(self, http_url: str, **headers: str) -> None:
        self.http_url, self._headers = http_url, headers

    def __repr__(self) -> str:
        return f"<Rest {self.http_url}>"

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Return status and JSON of a call, None without a body.  body: bytes as they are, else JSON."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        status, text = request(method, self.http_url + path, data, **self._headers | headers)
        return status, json.loads(text) if text[:1] in ("{", "[") else text or None

    def topic(self, hint: str = "rest") -> str:
        """Create a topic, and return its name."""
        topic = unique_topic(hint)
        assert self.ask("PUT", f"/admin/v2/{path_of(topic)}")[0] == 204
        return topic

    def produce(self, topic: str, messages: list[Any], more: str = "", **body: Any) -> tuple[int, Any]:
        """Return status and answer of REST produce.  more: of the path; body: other fields."""
        return self.ask("POST", f"/topics/{path_of(topic)}{more}", {"messages": messages, **body})

    def publish(self, topic: str, *payloads: Any, **body: Any) -> list[str]:
        """Publish payloads, and return the message ids."""
        status, answer = self.produce(topic, [{"payload": payload} for payload in payloads], **body)
        assert status == 200, answer
        assert all(one["errorCode"] == 0 for one in answer["messagePublishResults"]), answer
        return [one["messageId"] for one in answer["messagePublishResults"]]

    def stored(self, topic: str) -> list[dict[str, Any]]:
        """Return all messages of a topic without partitions, or of one partition."""
        rows, first = [], ""
        while True:
            status, answer = self.ask("GET", f"/ops/v1/messages/{path_of(topic)}?limit=100{first}")
            assert status == 200, answer
            rows += answer["rows"]
            if not answer["next"]:
                return rows
            first = f"&from={answer['next']}"


def schema(kind: str, definition: Any = None) -> str:
    """Return a schema as a body of REST produce names it."""
    text = "" if definition is None else json.dumps(definition)
    return json.dumps({"name": "", "type": kind, "schema": base64.b64encode(text.encode()).decode(), "properties": {}})
