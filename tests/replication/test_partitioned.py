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
        self.is_five = False           # it answers as Pulsar 5.0 does, else as 4.0
        self.bare = set()              # partitions that do not belong to their topic, as 5.0's PUT makes them
        self.plain = set()             # topics without partitions

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_PUT(self):
                self._change()

            def do_POST(self):
                self._change()

            def do_GET(self):
                topic = self._topic()
                if topic not in far.partitions and topic not in administration.plain:
                    return self._answer(404, b"")
                self._answer(200, b'{"partitions": %d}' % far.partitions.get(topic, 0))

            def _topic(self):
                return "persistent://" + self.path.partition("/persistent/")[2].partition("/partitions")[0]

            def _change(self):
                count = int(self.rfile.read(int(self.headers["Content-Length"])))
                administration.requests.append((self.command, self.path.partition("?")[2], count))
                if administration.fails:
                    administration.fails -= 1
                    return self._answer(500, b"")
                topic = self._topic()
                with far.lock:
                    if topic in administration.plain:
                        return self._answer(409, b"")
                    if self.command == "PUT" and topic in far.partitions:
                        if not administration.is_five:
                            return self._answer(409, b"")
                        administration.bare |= {(topic, number) for number in range(far.partitions[topic], count)}
                    elif any(name == topic for name, _ in administration.bare) and "force=true" not in self.path:
                        return self._answer(409, b"")
                    else:
                        far.partitions[topic] = count
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
    eventually(lambda: far.partitions[topic] == 4, what="the topic is enlarged there without a message")
    set_clusters(replication.broker, topic, name, partitions=[3])
    replication.publish(f"{topic}-partition-3", numbered(5))
    arrive(far, f"{topic}-partition-3", numbered(5))
    assert administration.requests[-1] == ("POST", "updateLocalTopicOnly=true&force=true", 4)


def test_a_cluster_that_says_it_has_enlarged_a_topic_is_looked_at(replication, far_and_administration):
    """Pulsar 5.0 answers 204 to a PUT for a topic that exists, and makes partitions that do not belong to it."""
    name, far, administration = far_and_administration
    administration.is_five = True
    replication.know(name, far.url, serviceUrl=administration.url)
    topic = parted(replication, name, 1)
    eventually(lambda: far.partitions.get(topic) == 1, what="the topic is made there")
    request("PUT", f"{administration.url}/admin/v2/{topic.replace('://', '/')}/partitions", b"3")
    assert far.partitions[topic] == 1 and administration.bare
    assert request("POST", partitions_url(replication.broker.http_url, topic), b"3")[0] == 204
    eventually(lambda: far.partitions[topic] == 3, what="the topic is enlarged there")


def test_a_partitioned_topic_is_made_there_before_it_has_a_message(replication, far_and_administration):
    """A consumer there would make a topic without partitions otherwise."""
    name, far, administration = far_and_administration
    replication.know(name, far.url, serviceUrl=administration.url)
    before = partitioned_topic(replication.broker.http_url, 2)      # which is replicated later
    set_clusters(replication.broker, before, name, opens=False)
    eventually(lambda: far.partitions.get(before) == 2, what="the topic is made there")
    administration.fails = 2
    with far.lock:
        del far.partitions[before]
    replication.know(name, far.url, serviceUrl=administration.url, tlsAllowInsecureConnection=True)
    eventually(lambda: far.partitions.get(before) == 2, what="it is made after failures too")


def test_a_partitioned_topic_that_was_deleted_there_is_made_again_and_the_log_says_so(
        replication, far_and_administration):
    name, far, administration = far_and_administration
    replication.know(name, far.url, serviceUrl=administration.url)
    topic = parted(replication, name, 2)
    part = f"{topic}-partition-1"
    replication.publish(part, numbered(5))
    arrive(far, part, numbered(5))
    with far.lock:
        del far.partitions[topic]
    far.forget(part)
    replication.publish(part, numbered(5, 5))
    eventually(lambda: far.partitions.get(topic) == 2, what="it is made again")
    eventually(lambda: far.payloads(part)[-5:] == numbered(5, 5), what="what was published since is there")
    assert f"partitioned topic {topic} was deleted at cluster {name}" in replication.broker.log()


def test_what_stands_in_the_way_of_a_partitioned_topic_there_is_told_and_heals(replication, far_and_administration):
    name, far, administration = far_and_administration
    replication.know(name, far.url, serviceUrl=administration.url)
    topic = partitioned_topic(replication.broker.http_url, 2)
    administration.plain.add(topic)
    set_clusters(replication.broker, topic, name, partitions=range(2))
    part = f"{topic}-partition-0"
    replication.publish(part, numbered(5))
    lane = eventually(lambda: (lane := replication.lane(part, name)).get("error") and lane)
    assert "is a topic without partitions there" in lane["error"] and "delete it there" in lane["error"]
    administration.plain.clear()
    replication.know(name, far.url, serviceUrl=administration.url, tlsAllowInsecureConnection=True)      # no minute
    arrive(far, part, numbered(5))


@pytest.mark.parametrize("url", ["http://h\xf6st.invalid:1", f"http://{'a' * 70}.invalid:1", "http://127.0.0.1:1"])
def test_an_address_that_leads_nowhere_is_the_remotes_fault(replication, far_and_administration, url):
    name, far, _ = far_and_administration
    replication.know(name, far.url, serviceUrl=url)
    topic = partitioned_topic(replication.broker.http_url, 1)
    set_clusters(replication.broker, topic, name, partitions=[0])
    replication.publish(f"{topic}-partition-0", numbered(1))
    lane = eventually(lambda: (lane := replication.lane(f"{topic}-partition-0", name)).get("error") and lane)
    assert "this broker's own" not in lane["error"] and "making the partitioned topic there" in lane["error"]
    assert "G290" not in replication.broker.log()


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
    lane = eventually(lambda: (lane := replication.lane(f"{topic}-partition-1", name)).get("error") and lane)
    assert "has no serviceUrl" in lane["error"]
    far.partitions[topic] = 2
    replication.know(name, far.url, tlsAllowInsecureConnection=True)
    arrive(far, f"{topic}-partition-1", numbered(5))


def test_a_name_that_is_partitioned_there_and_not_here_is_refused(replication):
    name, far = replication.far()
    topic = replication.topic(name)
    far.partitions[topic] = 3
    replication.publish(topic, numbered(5))
    lane = eventually(lambda: (lane := replication.lane(topic, name)).get("error") and lane)
    assert "is a partitioned topic there, of 3 partitions" in lane["error"]
    assert not far.stored(topic)
