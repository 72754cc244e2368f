"""The page of policies says what the table of policies says."""
from pathlib import Path

import pytest

from geminga.supervisor.configuration.documents import policies_in_force, policies_without_effect

POLICIES = (Path(__file__).resolve().parent.parent / "docs/policies.md").read_text()


@pytest.mark.parametrize("table", [policies_in_force(), policies_without_effect()], ids=["in force", "without effect"])
def test_the_page_has_the_table_of_policies(table):
    """Made anew by `python -m geminga.supervisor.configuration.documents`."""
    assert table in POLICIES
