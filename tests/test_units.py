"""systemd parses the units as they are meant, and rates the services as hardly exposed."""
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SYSTEMD = ROOT / "systemd"
UNITS = sorted(path for path in SYSTEMD.iterdir() if path.suffix in (".service", ".timer", ".slice"))
EXPOSURE_MAX = {"geminga.service": 1.3, "geminga-nightly.service": 0.7, "geminga-nightly-failed.service": 0.2,
                "geminga-backup.service": 0.8}


@pytest.fixture
def analyze(tmp_path):
    """analyze(words...): runs systemd-analyze on the units, whose programs are replaced by ones that any host has."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    for path in UNITS:
        (tmp_path / path.name).write_text(path.read_text().replace("/usr/bin/geminga", "/bin/true"))
    return lambda *words: subprocess.run([program, *words], capture_output=True, text=True, cwd=tmp_path)


def test_units_are_what_systemd_reads(analyze, tmp_path):
    checked = analyze("verify", "--man=no", *(str(tmp_path / path.name) for path in UNITS))
    assert checked.returncode == 0 and not checked.stderr, checked.stderr


@pytest.mark.parametrize("unit", [path.name for path in UNITS if path.suffix == ".service"])
def test_services_are_exposed_as_little_as_they_can_be(analyze, tmp_path, unit):
    """systemd's own measure runs from 0, nothing exposed, to 10, everything.  Services keep sockets and the network."""
    rated = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX[unit] * 10:.0f}", str(tmp_path / unit))
    assert rated.returncode == 0, rated.stdout


@pytest.mark.parametrize("unit", ["geminga.service", "geminga-nightly.service", "geminga-backup.service"])
def test_a_service_with_jobs_lets_them_go_behind_others(unit):
    """A call that the unit's filter refuses would change nothing, and nobody would be told."""
    used = set(re.findall(r"os\.(sched_set\w+)", (ROOT / "supervisor/tasks/idle_cores.py").read_text()))
    filtered = re.findall(r"^SystemCallFilter=(?!~)(.*)$", (SYSTEMD / unit).read_text(), re.MULTILINE)
    assert used == {"sched_setscheduler", "sched_setaffinity"}
    assert used <= set(" ".join(filtered).split())
