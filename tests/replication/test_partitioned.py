"""Partitioned topics are made at the other cluster, with as many partitions, before their messages go there."""
import http.server
import threading

import pytest

from ..harness import eventually, partitioned_topic, partitions_url, request
from .conftest import arrive, numbered, set_clusters


class Administration:
    """The HTTP side of another cluster: it makes and enlarges partitioned topics."""

    def __init__(self, far):
        administration, self.requests, self.fails = self, [], 0

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_PUT(self):
                self._change()

            def do_POST(self):
                self._change()

            def do_GET(self):
                self._answer(200, b'{"partitions": %d}' % far.partitions.get(self._topic(), 0))

            def _topic(self):
                return "persistent://" + self.path.partition("/persistent/")[2].partition("/partitions")[0]

            def _change(self):
                count = int(self.rfile.read(int(self.headers["Content-Length"])))
                administration.requests.append((self.command, self.path.partition("?")[2], count))
                if administration.fails:
                    administration.fails -= 1
                    return self._answer(500, b"")
                with far.lock:
                    if self.command == "PUT" and self._topic() in far.partitions:
                        return self._answer(409, b"")
                    far.partitions[self._topic()] = count
                self._answer(204, b"")

            def _answer(self, status, body):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def far_and_administration(replication):
    name, far = replication.far(is_known=False)
    administration = Administration(far)
    yield name, far, administration
    administration.close()


def parted(replication, name, count):
    topic = partitioned_topic(replication.broker.http_url, count)
    set_clusters(replication.broker, topic, name, partitions=range(count))
    return topic


def test_a_partitioned_topic_is_made_and_enlarged_there(replication, far_and_administration):
    name, far, administration = far_and_administration
    administration.fails = 1
    replication.know(name, far.url, serviceUrl=administration.url)
    topic = parted(replication, name, 3)
    for number in range(3):
        replication.publish(f"{topic}-partition-{number}", numbered(20, 20 * number))
    for number in range(3):
        arrive(far, f"{topic}-partition-{number}", numbered(20, 20 * number))
    assert administration.requests[-1] == ("PUT", "createLocalTopicOnly=true", 3)
    assert len(administration.requests) == 2      # the first one failed
    assert request("POST", partitions_url(replication.broker.http_url, topic), b"4")[0] == 204
    set_clusters(replication.broker, topic, name, partitions=[3])
    replication.publish(f"{topic}-partition-3", numbered(5))
    arrive(far, f"{topic}-partition-3", numbered(5))
    assert administration.requests[-1] == ("POST", "updateLocalTopicOnly=true&force=false", 4)


def test_a_topic_that_is_there_already_is_fine(replication, far_and_administration):
    name, far, administration = far_and_administration
    replication.know(name, far.url, serviceUrl=administration.url)
    topic = partitioned_topic(replication.broker.http_url, 2)
    far.partitions[topic] = 5
    set_clusters(replication.broker, topic, name, partitions=[1])
    replication.publish(f"{topic}-partition-1", numbered(5))
    arrive(far, f"{topic}-partition-1", numbered(5))
    assert administration.requests == []


def test_without_its_http_address_partitions_go_where_they_exist_and_the_reason_is_told(
        replication, far_and_administration):
    name, far, _ = far_and_administration
    replication.know(name, far.url)
    topic = partitioned_topic(replication.broker.http_url, 2)
    set_clusters(replication.broker, topic, name, partitions=[1])
    replication.publish(f"{topic}-partition-1", numbered(5))
    lane = eventually(lambda: (lane := replication.lane(f"{topic}-partition-1", name)).get("error") and lane, 20)
    assert "has no serviceUrl" in lane["error"]
    far.partitions[topic] = 2
    replication.know(name, far.url, tlsAllowInsecureConnection=True)
    arrive(far, f"{topic}-partition-1", numbered(5))


def test_a_name_that_is_partitioned_there_and_not_here_is_refused(replication):
    name, far = replication.far()
    topic = replication.topic(name)
    far.partitions[topic] = 3
    replication.publish(topic, numbered(5))
    lane = eventually(lambda: (lane := replication.lane(topic, name)).get("error") and lane, 20)
    assert "is a partitioned topic there, of 3 partitions" in lane["error"]
    assert not far.stored(topic)
