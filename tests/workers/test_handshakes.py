"""Handshakes with a clock of their own: which wait, which end the connection, and when credentials are asked for again.
"""
import time
from types import SimpleNamespace

import jwt
import pytest
from passlib.hash import ldap_sha1

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import ProtocolError
from geminga.storage.runtime.counters import make_counters
from geminga.workers.identity import handshakes, hashes
from geminga.workers.identity.authentication import OURSELVES, Authenticator, Identity
from geminga.workers.identity.handshakes import Handshakes
from geminga.workers.identity.options import AuthenticationOptions, AuthorizationOptions, IdentityOptions

SECRET = b"a secret key of more than 32 bytes"
T = api.BaseCommand.Type


class Loop:
    """A loop whose time passes when it is told to, and whose threads end when they are told to."""

    def __init__(self):
        self.now, self.due, self.threads = 0.0, [], []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, function, *arguments):
        entry = SimpleNamespace(when=self.now + seconds, call=lambda: function(*arguments))
        entry.cancel = lambda: entry in self.due and self.due.remove(entry)
        self.due.append(entry)
        return entry

    def run_in_executor(self, threads, function):
        future = SimpleNamespace(callbacks=[], function=function, cancelled=lambda: False, exception=lambda: None)
        future.add_done_callback = future.callbacks.append
        future.result = function
        self.threads.append(future)
        return future

    def pass_(self, seconds: float) -> None:
        end = self.now + seconds
        while ready := sorted((entry for entry in self.due if entry.when <= end), key=lambda entry: entry.when):
            self.now = ready[0].when
            self.due.remove(ready[0])
            ready[0].call()
        self.now = end

    def finish_threads(self) -> None:
        while self.threads:
            future = self.threads.pop(0)
            for callback in future.callbacks:
                callback(future)


class Client:
    """The part of a client that handshakes need."""

    protocol_version, host, number = 21, "10.0.0.1", 1

    def __init__(self, *, refreshes: bool = True, is_inside: bool = False):
        self.identity: Identity | None = None
        self.is_challenged, self.supports_auth_refresh, self.is_inside = False, refreshes, is_inside
        self.heard: list[api.BaseCommand] = []
        self.is_reading, self.is_closed = True, False
        self.stream = self
        self.transport = SimpleNamespace(is_closing=lambda: self.is_closed, abort=self.abort,
                                         get_extra_info=lambda name: None)

    def write(self, frame: bytes) -> None:
        self.heard.append(api.BaseCommand.FromString(frame[8:]))

    def abort(self) -> None:
        self.is_closed = True

    close = abort

    def stop_reading(self) -> None:
        self.is_reading = False

    def welcome(self, request, identity: Identity) -> None:
        self.identity, self.is_reading = identity, True

    @property
    def errors(self) -> list[str]:
        return [said.error.message for said in self.heard if said.type == T.ERROR]


def token(role: str = "joe", **claims) -> bytes:
    return jwt.encode({"sub": role} | claims, SECRET, "HS256").encode()


def making(loop: Loop, **options) -> Handshakes:
    options = {"methods": ("token", "basic"), "secret_keys": (f"data:,{SECRET.decode()}",), "refresh_interval_s": 60,
               "users": f"data:,joe:{ldap_sha1.hash('test')}"} | options
    identity = IdentityOptions(authentication=AuthenticationOptions(**options),
                               authorization=AuthorizationOptions(proxy_roles=("proxy",)))
    return Handshakes(Authenticator(identity), make_counters(1)[0], loop)


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def made(loop):
    return making(loop)


@pytest.fixture
def clock(monkeypatch):
    """The wall clock, by which tokens expire."""
    clock = SimpleNamespace(now=time.time())
    monkeypatch.setattr(handshakes.time, "time", lambda: clock.now)
    return clock


def connect(made: Handshakes, client: Client, method: str = "token", data: bytes = b"", **fields) -> Client:
    made.connect(client, api.CommandConnect(client_version="test", auth_method_name=method, auth_data=data, **fields))
    return client


def test_a_connection_without_a_handshake_ends_in_time(made, loop):
    client = Client()
    timer = made.opened(client)
    loop.pass_(29)
    assert not client.is_closed
    loop.pass_(2)
    assert client.is_closed
    other = Client()
    made.opened(other).cancel()
    loop.pass_(100)
    assert not other.is_closed and timer is not None


def test_the_brokers_own_processes_are_not_asked(made):
    assert connect(made, Client(is_inside=True), "none").identity is OURSELVES


@pytest.mark.parametrize("fields, method", [
    ({"auth_method_name": "token"}, "token"), ({"auth_method_name": ""}, ""), ({}, "none"),
    ({"auth_method": api.AuthMethodNone}, "none"),
    ({"auth_method": api.AuthMethodAthens}, "athens"),
    ({"auth_method_name": "basic", "auth_method": api.AuthMethodNone}, "basic")])
def test_the_method_is_said_by_name_or_as_of_old(fields, method):
    assert handshakes.method_of(api.CommandConnect(client_version="test", **fields)) == method


def test_a_hash_is_computed_in_a_thread_and_nothing_read_meanwhile(made, loop):
    right, wrong = connect(made, Client(), "basic", b"joe:test"), connect(made, Client(), "basic", b"joe:wrong")
    assert not right.is_reading and right.identity is None and not right.heard
    loop.finish_threads()
    assert right.is_reading and right.identity == Identity("joe", "basic")
    assert wrong.errors == ["Failed to authenticate"] and wrong.is_closed and wrong.identity is None
    # the password was right before
    assert connect(made, Client(), "basic", b"joe:test").identity == Identity("joe", "basic")


def test_who_left_meanwhile_is_left_alone(made, loop):
    gone = [connect(made, Client(), "basic", data) for data in (b"joe:test", b"joe:wrong")]
    for client in gone:
        client.is_closed = True
    loop.finish_threads()
    assert not any(client.heard or client.identity for client in gone) and made._hashes.waiting == 0


def test_only_so_many_wait_for_a_thread(made, loop):
    # one of them is being computed
    waiting = [connect(made, Client(), "basic", b"joe:test") for _ in range(hashes.OF_ADDRESS_MAX + 1)]
    one_more = connect(made, Client(), "basic", b"joe:test")
    assert one_more.heard[0].error.error == api.ServiceNotReady and one_more.is_closed
    loop.finish_threads()
    assert all(client.identity for client in waiting)
    assert connect(made, Client(), "basic", b"joe:test").identity


def test_addresses_take_turns_at_the_thread(made, loop):
    """Guesses from one address wait for each other; another address waits for one of them at most, and is not refused.
    """
    guessers = [connect(made, Client(), "basic", b"joe:guess-%d" % number) for number in range(200)]
    witnesses = []
    for number in range(2, 5):
        witnesses.append(Client())
        witnesses[-1].host = f"10.0.0.{number}"
        connect(made, witnesses[-1], "basic", b"joe:test")
    for _ in range(5):      # the guess that is computed, one more, and those of the others
        future = loop.threads.pop(0)
        future.callbacks[0](future)
    assert all(witness.identity for witness in witnesses)
    assert sum(client.is_closed for client in guessers) < 200 - 90


def test_turns_go_round_by_address(loop):
    """Addresses have turns in the order in which they came; their second guesses come behind all others."""
    shared, order = hashes.Hashes(loop), []
    for name in ("first", "a", "a", "b", "b", "c"):
        shared.put(name, lambda: None, lambda future, name=name: order.append(name), lambda: True)
    loop.finish_threads()
    assert order == ["first", "a", "b", "c", "a", "b"] and shared.waiting == 0


def test_with_many_addresses_each_has_fewer_that_wait(made, loop):
    """The bound is for all addresses together; one check of each may always wait."""
    for number in range(hashes._WAITING_MAX + 10):
        client = Client()
        client.host = f"10.0.{number // 250}.{number % 250}"
        assert not connect(made, client, "basic", b"joe:guess").is_closed
    assert connect(made, client, "basic", b"joe:guess").is_closed      # the second guess of this address
    assert made._hashes.waiting < hashes._WAITING_MAX + 10


def test_who_has_left_costs_no_hash(made, loop):
    _first, *others = [connect(made, Client(), "basic", b"joe:guess") for _ in range(10)]
    for client in others:
        client.is_closed = True
    future = loop.threads.pop(0)
    future.callbacks[0](future)
    assert not loop.threads and made._hashes.waiting == 0


def test_an_answer_that_waits_ends_the_connection_when_it_is_given(made, loop):
    clients = [connect(made, Client(), data=b"bad") for _ in range(4)]
    assert [client.is_closed for client in clients] == [True, True, False, False]
    assert not clients[2].is_reading
    loop.pass_(0.3)
    assert clients[2].errors == ["Failed to authenticate"] and not clients[3].is_closed
    clients[3].is_closed = True
    loop.pass_(10)
    assert not clients[3].heard and made._delayed == 0


@pytest.mark.slow
def test_only_so_many_answers_wait(made, monkeypatch):
    monkeypatch.setattr(handshakes, "_DELAYED_MAX", 3)
    clients = [connect(made, Client(), data=b"bad") for _ in range(8)]
    assert sum(not client.is_closed for client in clients) == 3


def refreshed(made: Handshakes, client: Client, data: bytes) -> None:
    made.response(client, api.CommandAuthResponse(response=api.AuthData(auth_method_name="token", auth_data=data)))


def test_a_token_is_asked_for_each_time_it_has_expired(made, loop, clock):
    client = connect(made, Client(), data=token(exp=int(clock.now) + 1000))
    for round_ in range(3):
        loop.pass_(60)
        assert len(client.heard) == round_
        clock.now += 2000
        loop.pass_(60)
        assert len(client.heard) == round_ + 1 and client.heard[-1].type == T.AUTH_CHALLENGE
        refreshed(made, client, token(exp=int(clock.now) + 1000))
        assert not client.is_closed and not client.is_challenged
    refreshed(made, client, token())
    clock.now += 1e6
    loop.pass_(600)
    assert len(client.heard) == 3 and not client.is_closed and not made._expiring


def test_without_an_answer_by_the_next_round_it_is_over(made, loop, clock):
    client = connect(made, Client(), data=token(exp=int(clock.now) + 10))
    clock.now += 20
    loop.pass_(60)
    assert client.is_challenged and not client.is_closed
    loop.pass_(60)
    assert client.is_closed and not client.errors and not made._expiring


def test_who_leaves_is_forgotten(made, loop, clock):
    client = connect(made, Client(), data=token(exp=int(clock.now) + 10))
    made.closed(client)
    clock.now += 20
    loop.pass_(120)
    assert not client.heard and not made._expiring


@pytest.mark.parametrize("checks, names, is_asked", [(False, False, True), (False, True, False), (True, True, True)])
def test_a_proxy_is_asked_when_it_passes_on_what_its_clients_show(loop, clock, checks, names, is_asked):
    made = making(loop, original_authentication=checks)
    original = {"original_principal": "jane", "original_auth_method": "token"} if names else {}
    if checks:
        original["original_auth_data"] = token("jane", exp=int(clock.now) + 1000).decode()
    client = connect(made, Client(), data=token("proxy", exp=int(clock.now) + 1000), **original)
    assert client.identity.proxy == ("proxy" if names else "")
    clock.now += 2000
    loop.pass_(60)
    assert (client.is_challenged, client.is_closed) == (is_asked, not is_asked)
    if checks:
        refreshed(made, client, token("jane"))
        assert not client.is_closed and client.identity == Identity("jane", "token", None, "proxy")


def test_nobody_answers_what_nobody_asked(loop):
    made = Handshakes(Authenticator(IdentityOptions()), make_counters(1)[0], loop)
    client = connect(made, Client(), data=b"anything")
    loop.pass_(3600)
    assert client.identity == Identity("") and not client.is_challenged and not client.is_closed
    with pytest.raises(ProtocolError):
        refreshed(made, client, b"anything")


def test_an_answer_without_anything_is_wrong(made):
    client = connect(made, Client(), data=token())
    made.response(client, api.CommandAuthResponse())
    assert client.errors == ["Failed to authenticate"] and client.is_closed


# -- keys of issuers

class Fetch:
    """A fetch of an issuer's keys that ends when it is told to."""

    def __init__(self):
        self.callbacks, self.is_cancelled, self.is_over = [], False, False
        self.add_done_callback = self.callbacks.append

    def cancelled(self) -> bool:
        return self.is_cancelled

    def end(self) -> None:
        self.is_over = True
        for callback in self.callbacks:
            callback(self)


@pytest.fixture
def fetch(made, monkeypatch):
    """A fetch that every token waits for until it has ended."""
    fetch = Fetch()
    monkeypatch.setattr(made._authenticator._methods["token"], "fetching",
                        lambda data: None if fetch.is_over else fetch)
    return fetch


def test_a_token_of_a_key_that_is_not_known_waits_and_others_do_not(made, fetch):
    waiting, wrong = connect(made, Client(), data=token()), connect(made, Client(), data=b"wrong")
    assert waiting.identity is None and not waiting.is_reading and not waiting.heard and not wrong.heard
    assert connect(made, Client(), "none").errors == ["Failed to authenticate"]
    fetch.end()
    assert waiting.identity.role == "joe" and waiting.is_reading
    assert wrong.errors == ["Failed to authenticate"]


def test_a_proxy_and_its_client_may_wait_for_two_issuers(loop, monkeypatch):
    made = making(loop, original_authentication=True)
    fetches = {token("proxy"): Fetch(), token("joe"): Fetch()}
    monkeypatch.setattr(made._authenticator._methods["token"], "fetching",
                        lambda data: None if fetches[data].is_over else fetches[data])
    client = connect(made, Client(), data=token("proxy"), original_principal="joe", original_auth_method="token",
                     original_auth_data=token("joe").decode())
    fetches[token("proxy")].end()
    assert client.identity is None and not client.heard
    fetches[token("joe")].end()
    assert (client.identity.role, client.identity.proxy) == ("joe", "proxy")


def test_a_client_that_left_while_it_waited_is_not_welcomed(made, fetch):
    client = connect(made, Client(), data=token())
    client.close()
    fetch.end()
    assert client.identity is None


def test_a_fetch_that_is_given_up_at_the_end_welcomes_nobody(made, fetch):
    client = connect(made, Client(), data=token())
    fetch.is_cancelled = True
    fetch.end()
    assert client.identity is None and not client.heard


def test_a_client_that_answered_is_not_dropped_while_its_token_waits(made, loop, clock, monkeypatch):
    fetch, waits = Fetch(), []
    monkeypatch.setattr(made._authenticator._methods["token"], "fetching",
                        lambda data: fetch if waits and not fetch.is_over else None)
    client = connect(made, Client(), data=token(exp=int(clock.now) + 10))
    clock.now += 20
    loop.pass_(60)
    assert client.is_challenged
    waits.append(True)
    refreshed(made, client, token(exp=int(clock.now) + 1000))
    loop.pass_(60)
    assert not client.is_closed
    fetch.end()
    loop.pass_(120)
    assert not client.is_closed and client.identity.expires_s == int(clock.now) + 1000


def test_of_many_answers_of_a_client_one_waits(made, loop, monkeypatch):
    """They come unasked, as fast as the client sends, while an issuer answers slowly."""
    fetch, waits = Fetch(), []
    monkeypatch.setattr(made._authenticator._methods["token"], "fetching",
                        lambda data: fetch if waits and not fetch.is_over else None)
    client = connect(made, Client(), data=token())
    waits.append(True)
    for _ in range(100):
        refreshed(made, client, token())
    assert len(fetch.callbacks) == 1
    fetch.end()
    assert not client.is_closed and not made._fetching
