"""The folder and the programs that tests need of a machine; a run begins by naming those that are missing.

Nothing is installed here.  Tests whose program is missing are skipped, and pytest's summary names each of them.
"""
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

GIB = 1 << 30
# the most that a whole run has on disk at a time, mostly journals of brokers, with room to spare
SPACE = 4 * GIB
SPACE_OF_FAST = GIB // 2
MEMORY = 4 * GIB           # for brokers and a Spark beside them
IN_MEMORY = {"tmpfs", "ramfs"}


def file_system(folder: Path) -> str:
    """Return the type of a folder's file system as the kernel names it ("ext4"); "" where the kernel does not say."""
    device = folder.stat().st_dev
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == f"{os.major(device)}:{os.minor(device)}":
            return rest.split()[0]
    return ""


def place_for_tests(space: int) -> Path:
    """Return the folder to work in: TMPDIR if it is set, else the first of /tmp and /var/tmp on a disk with `space`
    bytes.

    If neither has that much, take the one with the most space.  A /tmp in memory is passed over: journals of brokers
    fill it, and take the memory that the brokers need.
    """
    if os.environ.get("TMPDIR"):
        return Path(os.environ["TMPDIR"])
    folders = [folder for folder in (Path("/tmp"), Path("/var/tmp")) if os.access(folder, os.W_OK)]
    on_disk = (
        [folder for folder in folders if file_system(folder) not in IN_MEMORY]
        or folders
        or [Path(tempfile.gettempdir())]
    )
    return next((folder for folder in on_disk if _free(folder) >= space), max(on_disk, key=_free))


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def missing(folder: Path) -> list[str]:
    """Return a line for each thing that a whole run needs and this machine lacks, with the consequence for the tests.
    """
    from geminga.supervisor import bootstrap  # only now is it known that this checkout's geminga is imported

    needs: list[tuple[str, Callable[[], bool], str]] = [
        (f"{SPACE / GIB:.0f} GiB of disk", lambda: _free(folder) >= SPACE,
         f"{folder} has {_free(folder) / GIB:.1f}: tests will fail; set TMPDIR to a folder that has more"),
        ("a folder on a disk", lambda: file_system(folder) not in IN_MEMORY,
         f"{folder} is in memory: tests may fail for want of it; set TMPDIR to a folder on a disk"),
        (f"{MEMORY / GIB:.0f} GiB of memory",
         lambda: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >= MEMORY * 0.9,
         "tests with Spark may fail"),
        (f"Java {bootstrap.JAVA_FIRST}", bootstrap.has_java,
         f"tests with Spark and of Java clients are skipped (Debian: {bootstrap.JAVA_PACKAGE})"),
        ("mvn", lambda: shutil.which("mvn") is not None, "tests of Java clients are skipped (Debian: maven)"),
        ("go", lambda: shutil.which("go") is not None, "tests of the Go client are skipped"),
        ("prometheus and promtool", lambda: None not in map(shutil.which, ("prometheus", "promtool")),
         "tests of rules and dashboards are skipped (Debian: prometheus)"),
        ("chromium and chromedriver", lambda: None not in map(shutil.which, ("chromium", "chromedriver")),
         "tests of the console in a browser are skipped (Debian: chromium, chromium-driver)"),
        ("systemd-analyze", lambda: shutil.which("systemd-analyze") is not None,
         "tests of units are skipped (Debian: systemd)"),
        ("root", lambda: os.geteuid() == 0, "tests that mount file systems or act as another user are skipped"),
        ("/dev/fuse", lambda: os.access("/dev/fuse", os.R_OK | os.W_OK), "tests of power cuts are skipped"),
    ]
    return [f"{name} is missing: {consequence}" for name, is_there, consequence in needs if not is_there()]

