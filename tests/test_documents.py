"""What README says of policies is what the table says."""
from pathlib import Path

import pytest

from geminga.supervisor.configuration.documents import policies_in_force, policies_without_effect

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()


@pytest.mark.parametrize("table", [policies_in_force(), policies_without_effect()], ids=["in force", "without effect"])
def test_readme_has_the_table_of_policies(table):
    """Made anew by `python -m geminga.supervisor.configuration.documents`."""
    assert table in README
