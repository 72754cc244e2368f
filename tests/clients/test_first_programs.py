"""The first programs that pages show do what they say, run as their readers run them."""
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..harness import HANG_SECONDS
from .java import JavaTools, fetch_jars

ROOT = Path(__file__).resolve().parents[2]
LINES_MAX = 20
RECEIVED = [f"order {number} with key customer-7" for number in range(3)]


def program(page, language):
    """Return the program that a page prints in this language."""
    return re.search(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)[1]


def placed(text, broker, topic):
    """Put this broker's address and an unused topic into the program."""
    assert "pulsar://localhost:6650" in text and '"orders"' in text
    return text.replace("pulsar://localhost:6650", broker.service_url).replace('"orders"', f'"{topic}"')


def received(output):
    return re.findall(r"^received: (.*)$", output, re.MULTILINE)


def test_the_first_program_in_python_publishes_and_receives(broker, tmp_path):
    text = placed(program("README.md", "python"), broker, tmp_path.name)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True,
                          timeout=HANG_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert received(done.stdout) == RECEIVED
    assert len(re.findall(r"^on disk: \S+$", done.stdout, re.MULTILINE)) == len(RECEIVED)


def test_the_first_program_in_python_is_short():
    assert len(program("README.md", "python").splitlines()) <= LINES_MAX


@pytest.mark.java
def test_the_first_program_in_java_publishes_and_receives(broker, tmp_path):
    java = JavaTools(fetch_jars(), tmp_path, broker.service_url, broker.http_url)
    source = tmp_path / "First.java"
    source.write_text(placed(program("docs/getting-started.md", "java"), broker, f"{tmp_path.name}-java"))
    assert received(java.program(source)) == RECEIVED[:1]
