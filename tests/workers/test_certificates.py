"""Certificates for TLS: files that are refused, and files that change while clients shake hands."""
import asyncio
import contextlib
import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import trustme
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from geminga.storage.runtime.counters import make_counters
from geminga.workers.identity import certificates
from geminga.workers.identity.certificates import Tls, ciphers, load, warning
from geminga.workers.identity.options import TlsOptions, Unusable

from ..harness import eventually


class Files:
    """The broker's certificate, its key and trusted certificates, replaced one by one, each as a whole, as tools do."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.authority = trustme.CA()
        self.put(self.authority, self.authority)

    def put(self, signed_by: trustme.CA, trusted: trustme.CA, **issue) -> None:
        certificate = signed_by.issue_cert("localhost", **issue)
        contents = {"cert": b"".join(part.bytes() for part in certificate.cert_chain_pems),
                    "key": certificate.private_key_pem.bytes(),
                    "trusted": trusted.cert_pem.bytes()}
        for name, content in contents.items():
            (self.folder / "new").write_bytes(content)
            (self.folder / "new").replace(self.folder / name)

    def options(self, **others) -> TlsOptions:
        named = {"certificate": f"{self.folder}/cert", "key": f"{self.folder}/key", "trusted": f"{self.folder}/trusted"}
        return TlsOptions(**named | others)

    @property
    def serial(self) -> int:
        return x509.load_pem_x509_certificate((self.folder / "cert").read_bytes()).serial_number


@pytest.fixture
def files(tmp_path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def always_looking(monkeypatch):
    """Let each handshake look at the files."""
    monkeypatch.setattr(certificates, "_LOOK_SECONDS", 0.0)


class Greeting(asyncio.Protocol):
    """A protocol that tells which clients have connected."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        shown = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        names = (
            x509.load_der_x509_certificate(shown).subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
            if shown
            else []
        )
        transport.write(b"hello " + (names[0].value.encode() if names else b"nobody"))


@contextlib.contextmanager
def served(tls: Tls):
    """Serve TLS on a loop like the workers'; yield the port."""
    tls.counters = make_counters(1)[0]
    ports, ended = [], asyncio.Event()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Greeting, "127.0.0.1", 0, **tls.listening())
        ports.extend([server.sockets[0].getsockname()[1], loop])
        await ended.wait()
        server.close()

    thread = threading.Thread(target=lambda: uvloop.run(serve()))
    thread.start()
    try:
        yield eventually(lambda: len(ports) == 2 and ports[0])
    finally:
        eventually(lambda: len(ports) == 2)
        ports[1].call_soon_threadsafe(ended.set)
        thread.join()


class Said(NamedTuple):
    text: str
    serial: int                          # serial number of the broker's certificate
    session: ssl.SSLSession
    is_resumed: bool


def context_of(
    trusted: trustme.CA, shown: trustme.LeafCert | None = None, version: ssl.TLSVersion | None = None
) -> ssl.SSLContext:
    context = ssl.create_default_context()
    trusted.configure_trust(context)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    if shown is not None:
        shown.configure_cert(context)
    return context


def talk(port: int, context: ssl.SSLContext, *, session: ssl.SSLSession | None = None) -> Said:
    """Connect and exchange a message.  Raises ssl.SSLError, in TLSv1.3 also for a refusal behind the handshake."""
    name = "localhost" if context.check_hostname else None
    with socket.create_connection(("127.0.0.1", port), 60) as plain, \
            context.wrap_socket(plain, server_hostname=name, session=session) as link:
        text = link.recv(100).decode()
        if not text:
            raise ssl.SSLError("closed without a word")
        serial = x509.load_der_x509_certificate(link.getpeercert(binary_form=True)).serial_number
        said = Said(text, serial, link.session, link.session_reused)
        link.unwrap().close()       # without a proper end the session would be forgotten
        return said


# -- what is refused before anything is served

def wrong(files: Files, tmp_path: Path) -> dict[str, tuple[TlsOptions, str, str]]:
    """Return {what is wrong: (options, key, text of the error)}."""
    key = load_pem_private_key((tmp_path / "key").read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    (tmp_path / "locked").write_bytes(locked)
    (tmp_path / "half").write_bytes((tmp_path / "cert").read_bytes()[:400])
    (tmp_path / "other").write_bytes(files.authority.issue_cert("localhost").private_key_pem.bytes())
    (tmp_path / "empty").write_bytes(b"")
    absent = str(tmp_path / "nowhere")
    return {
        "no file": (files.options(certificate=absent), "tls.certificate", f"cannot be read: {absent}: No such file"),
        "a folder": (files.options(key=str(tmp_path)), "tls.key", "Is a directory"),
        "half a certificate": (files.options(certificate=f"{tmp_path}/half"), "tls.certificate", "in PEM form"),
        "an empty file": (files.options(certificate=f"{tmp_path}/empty"), "tls.certificate", "in PEM form"),
        "a key that is locked": (files.options(key=f"{tmp_path}/locked"), "tls.key", "must not be encrypted"),
        "no key": (files.options(key=f"{tmp_path}/cert"), "tls.key", "a private key in PEM form"),
        "another's key": (files.options(key=f"{tmp_path}/other"), "tls.key",
                          "of the first certificate in tls.certificate"),
        "nobody to trust": (files.options(trusted=f"{tmp_path}/key"), "tls.trusted", "in PEM form"),
        "a cipher that nobody has": (files.options(ciphers="ECDHE-RSA-AES128-GCM-SHA256:ROT13"), "tls.ciphers",
                                     "'ROT13'"),
        "only ciphers of TLSv1.3": (files.options(ciphers="TLS_AES_128_GCM_SHA256"), "tls.ciphers", "one for TLSv1.2"),
    }


def test_what_cannot_be_served_is_refused_by_its_key(files, tmp_path):
    kinds = wrong(files, tmp_path)
    assert kinds
    for what, (options, key, said) in kinds.items():
        with pytest.raises(Unusable) as refused:
            load(options)
        assert refused.value.key == key and said in str(refused.value) and "\n" not in str(refused.value), what


def test_ciphers_have_names_of_openssl_or_java():
    """Names of TLSv1.3 ciphers may be given, too; these ciphers are always on."""
    java = (
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,TLS_AES_256_GCM_SHA384,"
        "TLS_RSA_WITH_AES_256_CBC_SHA256"
    )
    assert ciphers(java) == "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-CHACHA20-POLY1305:AES256-SHA256"
    assert ciphers("HIGH:!aNULL:@SECLEVEL=2") == "HIGH:!aNULL:@SECLEVEL=2"


def test_an_expiry_is_told_of_once_for_each_threshold():
    day, now = 24 * 3600, 1_800_000_000
    reached = [warning("tls.certificate", now + left, now)[0]
               for left in (31 * day, 30 * day, 8 * day, 7 * day, 2 * day, day, 1, -1)]
    assert reached == [-1, 30, 30, 7, 7, 1, 1, 0]
    assert (
        warning("tls.certificate", now + day, now)[1]
        == "a certificate of tls.certificate expires on 2027-01-16 08:00 UTC"
    )
    assert "has expired" in warning("tls.trusted", now - day, now)[1]


# -- handshakes

def test_a_client_may_show_who_it_is(files):
    """A client may show no certificate, but one that expired or that no authority signed is refused with an alert."""
    tls = Tls(files.options())
    past = datetime.now(UTC) - timedelta(days=1)
    with served(tls) as port:
        assert talk(port, context_of(files.authority)).text == "hello nobody"
        assert (
            talk(port, context_of(files.authority, files.authority.issue_cert(common_name="joe"))).text == "hello joe"
        )
        with pytest.raises(ssl.SSLError, match="(?i)unknown.ca"):
            talk(port, context_of(files.authority, trustme.CA().issue_cert(common_name="joe")))
        with pytest.raises(ssl.SSLError, match="(?i)expired"):
            talk(port, context_of(files.authority, files.authority.issue_cert(common_name="joe", not_after=past)))
    assert tls.counters.read()["tls_handshakes"] == 2 and tls.counters.read()["tls_handshakes_failed"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_may_have_to_show_who_it_is(files, version):
    tls = Tls(files.options(client_certificates="required"))
    with served(tls) as port:
        assert (
            talk(port, context_of(files.authority, files.authority.issue_cert(common_name="joe"), version)).text
            == "hello joe"
        )
        with pytest.raises(ssl.SSLError, match="(?i)certificate.required|handshake.failure"):
            talk(port, context_of(files.authority, version=version))


def test_nobody_is_asked_who_does_not_want_to_know(files):
    with served(Tls(files.options(client_certificates="none"))) as port:
        assert (
            talk(port, context_of(files.authority, trustme.CA().issue_cert(common_name="joe"))).text == "hello nobody"
        )


@pytest.mark.slow
@pytest.mark.parametrize(("versions", "spoken"), [(("TLSv1.2",), "TLSv1_2"), (("TLSv1.3",), "TLSv1_3")])
def test_versions_are_those_of_the_configuration(files, versions, spoken):
    with served(Tls(files.options(versions=versions))) as port:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            expected = contextlib.nullcontext() if version.name == spoken else pytest.raises(ssl.SSLError)
            with expected:
                assert talk(port, context_of(files.authority, version=version)).text == "hello nobody"


def test_what_is_no_handshake_ends_and_is_told_of_once(files, capfd, monkeypatch):
    """Plain text ends at once, silence and half a handshake after a while; each is logged once, without a traceback."""
    monkeypatch.setattr(certificates, "_HANDSHAKE_SECONDS", 0.3)
    tls = Tls(files.options())
    hello = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context_of(files.authority).wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
    with served(tls) as port:
        for said in (b"GET / HTTP/1.0\r\n\r\n", b"\0\0\0\x12\0\0\0\x0e\x08\x02\x12", b"\xff" * 4096, hello.read()[:50],
                     b""):
            with socket.create_connection(("127.0.0.1", port), 60) as peer:
                peer.sendall(said)
                with contextlib.suppress(ConnectionResetError):
                    while peer.recv(4096):
                        pass
        assert talk(port, context_of(files.authority)).text == "hello nobody"
    assert tls.counters.read()["tls_handshakes_failed"] == 3
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("geminga: a TLS handshake failed: ")


# -- files that change

@pytest.mark.slow
@pytest.mark.parametrize("names", [True, False])
def test_a_handshake_has_what_the_files_hold(files, always_looking, names):
    """A handshake uses the current certificate, key and trusted certificates, whether or not the client names a host.
    """
    tls = Tls(files.options())
    first, second = files.authority, trustme.CA()

    def context(trusted: trustme.CA, shown: trustme.LeafCert) -> ssl.SSLContext:
        found = context_of(trusted, shown)
        found.check_hostname = names
        return found

    with served(tls) as port:
        assert talk(port, context(first, first.issue_cert(common_name="joe"))).serial == files.serial
        files.put(second, second)
        said = talk(port, context(second, second.issue_cert(common_name="jane")))
        assert said.serial == files.serial and said.text == "hello jane"
        with pytest.raises(ssl.SSLError, match="(?i)unknown.ca"):
            talk(port, context(second, first.issue_cert(common_name="joe")))
        with pytest.raises(ssl.SSLCertVerificationError):
            talk(port, context(first, first.issue_cert(common_name="joe")))
        files.put(second, second, key_type=trustme.KeyType.RSA)
        assert talk(port, context(second, second.issue_cert(common_name="jane"))).serial == files.serial
    assert tls.counters.read()["tls_reloads"] == 2


def test_files_are_looked_at_once_a_second(files, monkeypatch):
    """A handshake within a second of the last look does not look at the files again; the first one after it does."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(certificates, "time", SimpleNamespace(monotonic=lambda: clock.now, time=time.time))
    tls = Tls(files.options())
    with served(tls) as port:
        context = context_of(files.authority)
        for _ in range(2):
            before = files.serial
            files.put(files.authority, files.authority)
            clock.now += 0.99
            assert talk(port, context).serial == before != files.serial
            clock.now += 0.02
            assert talk(port, context).serial == files.serial


def test_what_cannot_be_used_leaves_what_was(files, always_looking, capfd):
    """Files that cannot be used leave the former ones in force, and are logged once until usable ones are there."""
    tls = Tls(files.options())
    context, before = context_of(files.authority), files.serial
    with served(tls) as port:
        whole = (files.folder / "cert").read_bytes()
        for content in (whole[:200], b"", whole[:300]):
            (files.folder / "cert").write_bytes(content)
            assert talk(port, context).serial == before
        (files.folder / "cert").unlink()
        assert talk(port, context).serial == before
        files.put(files.authority, files.authority)
        assert talk(port, context).serial == files.serial != before
    assert tls.counters.read()["tls_reloads_failed"] == 4 and tls.counters.read()["tls_reloads"] == 1
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1 and "tls.certificate" in lines[0] and "stays in force" in lines[0]


def test_a_session_proves_nothing_when_others_are_trusted_since(files, always_looking):
    """A client that resumes a session shows no certificate again, so an old session is refused."""
    tls = Tls(files.options())
    context = context_of(files.authority, files.authority.issue_cert(common_name="joe"), ssl.TLSVersion.TLSv1_2)
    with served(tls) as port:
        said = talk(port, context)
        assert talk(port, context, session=said.session).is_resumed
        files.put(files.authority, trustme.CA())
        with pytest.raises((ssl.SSLError, ConnectionError)):
            talk(port, context, session=said.session)


def test_the_first_of_a_chain_to_expire_is_told_of(files, tmp_path):
    """The first expiry of a chain is told, be it the certificate's own or that of an authority above it."""
    between = files.authority.create_child_ca()
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(5)
    files.put(between, files.authority, not_after=soon)
    assert (tmp_path / "cert").read_bytes().count(b"BEGIN CERTIFICATE") == 2
    assert load(files.options()).expires["tls.certificate"] == soon.timestamp()
    chain = (tmp_path / "cert").read_bytes()
    half = chain.index(b"-----BEGIN", 1)
    later = x509.load_pem_x509_certificate(chain[half:]).not_valid_after_utc.timestamp()
    assert later > soon.timestamp()
