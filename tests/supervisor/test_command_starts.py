"""Commands import little: imports are nearly all of the time that a short command takes."""
import os
import subprocess
import sys

import pytest

from ..harness import HANG_SECONDS, Broker, request, unique_topic

LIBRARIES = {"numpy", "lz4", "snappy", "zstandard", "aiohttp", "zmq", "cryptography", "jwt", "rich", "yaml", "jmespath",
             "re2", "pyarrow", "sqlite3", "http.client"}
OF_PROTOCOL = {"google.protobuf", "asyncio", "crc32c", "ssl"}      # what only commands of the binary protocol need
OWN = "geminga.supervisor.cli."


def started(*words, **environment):
    """Run a command in a process of its own; return (its output, the modules that it imported)."""
    code = f"import sys; from geminga.supervisor.main import main; main({[*map(str, words)]}); sys.stdout.flush(); " \
           "print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=HANG_SECONDS, check=True,
                          env={**os.environ, **environment})
    return done.stdout, set(done.stderr.split("\n")[-2].split())


@pytest.fixture(scope="module")
def topic(own: Broker):
    name = unique_topic()
    assert request("PUT", f"{own.http_url}/admin/v2/{name.replace('://', '/')}")[0] == 204
    return name


@pytest.mark.parametrize("environment", [{}, {"_GEMINGA_COMPLETE": "bash_complete", "COMP_WORDS": "geminga ",
                                              "COMP_CWORD": "1"}], ids=["help", "completion"])
def test_the_list_of_commands_imports_no_command(environment):
    """The list and the completion of names need no module of a command."""
    printed, modules = started(*[] if environment else ["-h"], **environment)
    assert "subscriptions" in printed
    assert {name for name in modules if name.startswith(OWN)} == {f"{OWN}grammar"}
    assert modules & (LIBRARIES | OF_PROTOCOL) == set()


@pytest.mark.slow
@pytest.mark.parametrize("module", ["supervisor.admin.app", "supervisor.console.routes.console",
                                    "supervisor.admin.resources.websockets", "workers.web.process",
                                    "workers.http_messages.server", "workers.replication.process"])
def test_processes_that_always_run_import_nothing_that_only_jobs_and_visitors_need(module):
    """Arrow takes 31 MiB of memory.  Pages, and the key of their sessions, are for a console that somebody opens."""
    code = f"import sys, geminga.{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=HANG_SECONDS, check=True)
    assert set(done.stdout.split()) & {"pyarrow", "pandas", "pyspark", "jinja2", "markdown_it",
                                       "cryptography.fernet"} == set()


@pytest.mark.slow
def test_a_night_imports_no_pandas():
    """Only Spark needs pandas, which Arrow imports as soon as an array is made of Python's values or of numpy's."""
    code = "import sys, geminga.supervisor.tasks.nights; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=HANG_SECONDS, check=True)
    modules = set(done.stdout.split())
    assert "pyarrow" in modules and "pandas" not in modules


@pytest.mark.slow
def test_a_question_over_http_imports_no_protocol(own, topic):
    for words in (("admin", "--admin-url", own.http_url, "topics", "list", "public/default"),
                  ("topics", "--admin-url", own.http_url)):
        printed, modules = started(*words)
        assert topic in printed or "TOPIC" in printed
        assert modules & (LIBRARIES | OF_PROTOCOL) == set(), words
        tables = {"geminga.storage.catalogue.catalogue", "geminga.storage.catalogue.policy_table"}
        assert modules & tables == set(), words


@pytest.mark.slow
def test_a_plain_message_imports_only_the_protocol(own, topic):
    """Arrays, compression and schemas are for messages that need them.  Readers compute no checksum."""
    printed, modules = started("produce", topic, "Hello", "--url", own.service_url)
    assert printed.startswith("published ") and modules & (LIBRARIES | {"crc32c", "importlib.metadata"}) == set()
    for words in (["consume", topic, "-n", "1"], ["consume", topic, "-n", "1", "-s", "billing", "--from", "earliest"],
                  ["search", topic, "-n", "1"]):
        printed, modules = started(*words, "--url", own.service_url)
        assert "Hello" in printed and modules & (LIBRARIES | {"crc32c"}) == set(), words


@pytest.mark.slow
@pytest.mark.parametrize(("codec", "libraries"), [("zstd", {"zstandard"}), ("lz4", {"lz4"}), ("snappy", {"snappy"}),
                                                  ("zlib", set())])
def test_compressed_batches_import_the_library_of_their_codec(own, codec, libraries):
    """Batches and compression of a few messages need no arrays, and so no numpy."""
    name = unique_topic()
    printed, modules = started("produce", name, "Hello", "again", "--compression", codec, "--url", own.service_url)
    assert printed.startswith("published ") and modules & LIBRARIES == libraries
    for words in (["consume", name, "-n", "2"], ["consume", name, "-n", "2", "-s", "billing", "--from", "earliest"],
                  ["search", name, "-n", "2"], ["redrive", name, "--dry-run", "--key", "none",
                                                "--admin-url", own.http_url]):
        printed, modules = started(*words, "--url", own.service_url)
        assert ("again" in printed or "would go" in printed), words
        assert modules & (LIBRARIES | {"crc32c"}) <= libraries, words


@pytest.mark.slow
@pytest.mark.parametrize("command", ["show", "check"])
def test_a_look_at_a_configuration_imports_nothing_of_a_broker(command, tmp_path):
    """Libraries for TLS and authentication are for configurations that have them."""
    printed, modules = started("config", command, "--data-dir", tmp_path)
    assert str(tmp_path) in printed
    assert modules & (LIBRARIES | OF_PROTOCOL) == set()
    assert {name for name in modules if name.startswith("geminga.supervisor.processes")} == set()


@pytest.mark.slow
def test_a_look_at_dead_letters_imports_only_the_protocol(own, topic):
    printed, modules = started("redrive", topic, "--dry-run", "--url", own.service_url, "--admin-url", own.http_url)
    assert printed.startswith("0 would go") and modules & (LIBRARIES | {"crc32c"}) == set()
