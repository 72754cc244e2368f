"""The README's first program does what it says, run as its reader runs it."""
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"
PROGRAM_LINES_MAX = 20


def program() -> str:
    """The Python program of README.md."""
    return re.search(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)[1]


def test_the_first_program_publishes_and_receives(broker, tmp_path):
    """As printed, but for the address and the topic, which other tests of this broker may use too."""
    text = program().replace("pulsar://localhost:6650", broker.service_url).replace('"orders"', f'"{tmp_path.name}"')
    assert broker.service_url in text
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    received = re.findall(r"^received: (.*)$", done.stdout, re.MULTILINE)
    assert done.returncode == 0, done.stderr
    assert received == [f"order {number} with key customer-7" for number in range(3)]
    assert len(re.findall(r"^on disk: \S+$", done.stdout, re.MULTILINE)) == 3


def test_the_first_program_is_short():
    assert len(program().splitlines()) <= PROGRAM_LINES_MAX
