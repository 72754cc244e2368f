"""Brokers of the lab, and programs that talk to them; whatever is started is ended by its own id."""

import contextlib
import json
import os
import queue
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import jwt
import trustme

from ..harness import Broker, request

KEY = b"a secret key of the lab, 32 bytes."
SILENCE_SECONDS = 180      # a program that says nothing for so long hangs in what it was asked
STOP_SECONDS = 30
PULSAR = "4.0.7"
HANGS = "hangs"


class Ground:
    """A scratch folder and the broker under test, for one run of the lab.

    service_url, tls_url, http_url: of the broker.  Tokens are signed with KEY.  Clients without any are admitted.
    """

    def __init__(self, against: str, memory: bool = False) -> None:
        self.against = against
        self._ends = contextlib.ExitStack()
        self.folder = Path(self._ends.enter_context(tempfile.TemporaryDirectory(prefix="lab-")))

    def __repr__(self) -> str:
        return f"<Ground {self.against} in {self.folder}>"

    def __enter__(self) -> "Ground":
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    @property
    def is_geminga(self) -> bool:
        return self.against == "geminga"

    @cached_property
    def broker(self) -> "Broker | Pulsar":
        """The broker, started at the first use."""
        self._write_certificates()
        started = self._geminga() if self.is_geminga else Pulsar(self.folder)
        self._ends.callback(started.close)
        started.start()
        return started

    def _write_certificates(self) -> None:
        authority, other = trustme.CA(), trustme.CA()
        issued = authority.issue_cert("localhost", "127.0.0.1")
        authority.cert_pem.write_to_path(f"{self.folder}/trusted.pem")
        other.cert_pem.write_to_path(f"{self.folder}/stranger.pem")
        issued.cert_chain_pems[0].write_to_path(f"{self.folder}/cert.pem")
        key = subprocess.run(["openssl", "pkcs8", "-topk8", "-nocrypt"], input=issued.private_key_pem.bytes(),
                             capture_output=True, check=True).stdout
        (self.folder / "key.pem").write_bytes(key)      # the form that Java takes
        (self.folder / "secret").write_bytes(KEY)
        for kind, name in ((["-out"], "encryption-private.pem"), (["-pubout", "-in"], "encryption-public.pem")):
            command = ["openssl", "genrsa", "-traditional", "-out", name, "2048"] if kind == ["-out"] else [
                "openssl", "rsa", "-in", "encryption-private.pem", "-pubout", "-out", name]
            subprocess.run(command, cwd=self.folder, capture_output=True, check=True)

    def _geminga(self) -> Broker:
        port, http_port = free_ports(2)      # of TLS: the same ones after a restart, as clients remember them
        (self.folder / "geminga.toml").write_text(f"""
[tls]
certificate = "{self.folder}/cert.pem"
key = "{self.folder}/key.pem"
port = {port}
http_port = {http_port}
[authentication]
methods = ["token"]
secret_keys = ["{self.folder}/secret"]
anonymous_role = "anonymous"
[authorization]
enabled = true
super_user_roles = ["anonymous", "lab"]
[nightly.tables]
url = "{self.folder}/tables"
""")
        return Broker(self.folder / "data", "--config", str(self.folder / "geminga.toml"))

    @cached_property
    def told(self) -> dict[str, str]:
        """What programs are told: addresses, files and tokens."""
        now = int(time.time())

        def token(**claims: object) -> str:
            return jwt.encode({"sub": "lab", **claims}, KEY, algorithm="HS256")

        return {"service": self.broker.service_url, "tls": self.broker.tls_url.replace("127.0.0.1", "localhost"),
                "http": self.broker.http_url, "trusted": f"{self.folder}/trusted.pem",
                "stranger": f"{self.folder}/stranger.pem", "token": token(exp=now + 86_400),
                "expired": token(exp=now - 60), "forged": jwt.encode({"sub": "lab"}, KEY[::-1], algorithm="HS256"),
                "public": f"{self.folder}/encryption-public.pem", "private": f"{self.folder}/encryption-private.pem"}

    def please(self, wish: dict[str, Any]) -> str:
        """Do for a program what its library cannot, in administration; return "done" or the error."""
        if wish["please"] == "restart":
            self.broker.stop()
            self.broker.start()
            return "done"
        body = wish.get("body")
        status, text = request(wish["please"], self.broker.http_url + "/admin/v2/" + wish["path"],
                               None if body is None else json.dumps(body).encode())
        return "done" if status < 300 else f"{status} {text}"

    def ask(self, command: list[str | Path], things: list[str], prefix: str,
            environment: dict[str, str] | None = None, more: dict[str, str] | None = None,
            broker: bool = True) -> Iterator[tuple[str, str]]:
        """Run a program that does things by name, and yield what it answers to each.

        It is told one JSON object as its last argument: `told`, `more`, the things, and the prefix of its topics.  It
        prints {"thing": ..., "answer": ...} for each, and {"please": METHOD, "path": ..., "body": ...} or {"please":
        "restart"}, after which it reads a line.  A program that hangs or ends in a thing is started again for the
        others.

        broker: whether it is told of the broker, which is started for that.
        """
        left = list(things)
        while left:
            said = (self.told if broker else {}) | (more or {}) | {"things": ",".join(left), "prefix": prefix}
            with self._talking([*command, json.dumps(said)], environment) as (process, lines):
                ended = ""
                while left and not ended:
                    try:
                        line = lines.get(timeout=SILENCE_SECONDS)
                    except queue.Empty:
                        ended = HANGS
                        break
                    if line is None:
                        ended = f"the program ended with status {process.wait()}"
                        break
                    answer = _json(line)
                    if "please" in answer:
                        assert process.stdin is not None
                        with contextlib.suppress(BrokenPipeError):
                            process.stdin.write(self.please(answer) + "\n")
                            process.stdin.flush()
                    elif answer.get("thing") in left:
                        left.remove(answer["thing"])
                        yield answer["thing"], answer["answer"].replace(prefix, "lab") if prefix else answer["answer"]
            if left:
                yield left.pop(0), ended

    @contextlib.contextmanager
    def _talking(self, command: list[str | Path], environment: dict[str, str] | None
                 ) -> "Iterator[tuple[subprocess.Popen[str], queue.Queue[str | None]]]":
        lines: queue.Queue[str | None] = queue.Queue()
        with (self.folder / "program.log").open("a") as log:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                                       env={**os.environ, **(environment or {})}, cwd=self.folder)

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.put(line)
            lines.put(None)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield process, lines
        finally:
            process.kill()
            reader.join()
            process.communicate()      # closes its pipes


def _json(line: str) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


class Pulsar:
    """Apache Pulsar's broker, all of it in one process of Java, as Maven's registry has it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        ports = free_ports(4)
        self.service_url, self.http_url = f"pulsar://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}"
        self.tls_url, self.https_url = f"pulsar+ssl://127.0.0.1:{ports[2]}", f"https://127.0.0.1:{ports[3]}"
        settings = {
            "metadataStoreUrl": "", "brokerServicePort": ports[0], "webServicePort": ports[1],
            "brokerServicePortTls": ports[2], "webServicePortTls": ports[3], "bindAddress": "127.0.0.1",
            "advertisedAddress": "localhost", "clusterName": "standalone", "loadBalancerEnabled": "false",
            "managedLedgerDefaultEnsembleSize": 1, "managedLedgerDefaultWriteQuorum": 1,
            "managedLedgerDefaultAckQuorum": 1, "journalSyncData": "false", "nettyMaxFrameSizeBytes": 5253120,
            "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.NoopLoadManager",
            "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
            "bookkeeperUseV2WireProtocol": "true", "journalMaxGroupWaitMSec": 1, "allowLoopback": "true",
            "diskUsageThreshold": 0.99, "diskUsageWarnThreshold": 0.99, "topicLevelPoliciesEnabled": "true",
            "systemTopicEnabled": "true", "transactionCoordinatorEnabled": "true", "webSocketServiceEnabled": "true",
            "acknowledgmentAtBatchIndexLevelEnabled": "true", "brokerDeleteInactiveTopicsEnabled": "false",
            "isDelayedDeliveryDeliverAtTimeStrict": "true", "authenticationEnabled": "true",
            "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
            "authorizationEnabled": "true", "anonymousUserRole": "anonymous", "superUserRoles": "anonymous,lab",
            "tokenSecretKey": f"file://{folder}/secret", "tlsCertificateFilePath": f"{folder}/cert.pem",
            "tlsKeyFilePath": f"{folder}/key.pem", "forceDeleteNamespaceAllowed": "true",
            "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
            "brokerClientAuthenticationParameters": "token:" + jwt.encode({"sub": "lab"}, KEY, algorithm="HS256"),
        }
        (folder / "standalone.conf").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        (folder / "log4j2.xml").write_text('<Configuration><Appenders><Console name="err" target="SYSTEM_ERR"/>'
                                           '</Appenders><Loggers><Root level="warn"><AppenderRef ref="err"/></Root>'
                                           "</Loggers></Configuration>")

    def __repr__(self) -> str:
        return f"<Pulsar {self.service_url}>"

    def start(self) -> None:
        from . import registries

        jars = registries.jars({"org.apache.pulsar:pulsar-broker": PULSAR,
                                "org.apache.logging.log4j:log4j-slf4j2-impl": "2.23.1",
                                "org.apache.logging.log4j:log4j-core": "2.23.1"})
        opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in
                  ("sun.net", "jdk.internal.platform", "java.nio", "jdk.internal.misc")]
        opened += ["--add-opens=java.management/sun.management=ALL-UNNAMED"]
        with (self._folder / "pulsar.log").open("a") as log:
            self._process = subprocess.Popen(
                ["java", "-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=2g", "-XX:+UseSerialGC", *opened,
                 f"-Dlog4j.configurationFile={self._folder}/log4j2.xml", "-Dio.netty.tryReflectionSetAccessible=true",
                 "-cp", f"{jars}/*", "org.apache.pulsar.PulsarStandaloneStarter", "--config",
                 str(self._folder / "standalone.conf"), "-nss", "-nfw", "--bookkeeper-dir",
                 str(self._folder / "bookkeeper"), "--metadata-dir", str(self._folder / "metadata")],
                stdout=log, stderr=log, cwd=self._folder)
        until = time.monotonic() + 180
        while not self._serves():
            if time.monotonic() > until or self._process.poll() is not None:
                raise RuntimeError("Pulsar did not start: " + (self._folder / "pulsar.log").read_text()[-2000:])
            time.sleep(0.5)

    def _serves(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.http_url}/admin/v2/namespaces/public/default", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    import socket

    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
