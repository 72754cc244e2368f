"""The page about messages over plain HTTP: its commands run, and answer what it shows."""
import re
import subprocess
from pathlib import Path

from ..harness import HANG_SECONDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "http.md"
BLOCKS = re.findall(r"^```(sh|json)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def pattern(shown):
    """Return the pattern of an answer: numbers of ids and times differ from one broker to the next."""
    return re.sub(r"\d+", r"\\d+", re.escape(shown.strip()))


def test_the_commands_of_the_page_answer_what_it_shows(own):
    assert len(BLOCKS) >= 4
    answer = ""
    for kind, text in BLOCKS:
        if kind == "sh":
            commands = "curl() { command curl -sS --fail-with-body \"$@\"; }\n" + text
            done = subprocess.run(["bash", "-e", "-c", commands.replace("localhost:8080",
                                                                       own.http_url.removeprefix("http://"))],
                                  capture_output=True, text=True, timeout=HANG_SECONDS)
            assert done.returncode == 0, (text, done)
            answer = done.stdout
        else:
            assert re.fullmatch(pattern(text), answer.strip()), (text, answer)
