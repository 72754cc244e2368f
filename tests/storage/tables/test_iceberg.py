"""Tables of Apache Iceberg have each message once, whatever is killed when, and follow the schema."""
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark


def test_a_table_of_iceberg_has_each_message_once_over_kills(tmp_path):
    pytest.importorskip("pyspark")
    done = subprocess.run([sys.executable, "-m", "tests.storage.tables.iceberg_tables", str(tmp_path)],
                          cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=600)
    if done.stdout == "no package\n":
        pytest.skip("Iceberg's package cannot be had here")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-3000:]
