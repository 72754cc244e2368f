"""Pages about job queues, followed word for word on a new broker: each command that they show succeeds in its turn."""
import shlex
from pathlib import Path

import pytest

from geminga.supervisor.main import main

DOCS = Path(__file__).parents[2] / "docs"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("page", ["filters", "dead-letters", "priority", "schedules", "undelete"])
def test_the_commands_of_a_page_succeed_one_after_the_other(page, fresh_broker, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    address = "--url", fresh_broker.service_url, "--admin-url", fresh_broker.http_url
    assert not main(["context", "set", "new", *address]) and not main(["context", "use", "new"])
    commands = [line for line in (DOCS / f"{page}.md").read_text().splitlines() if line.startswith("    geminga ")]
    assert commands
    for command in commands:
        assert not main(shlex.split(command, comments=True)[1:]), (command, capsys.readouterr())
