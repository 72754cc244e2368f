"""A throwaway copy of the checkout with an interpreter of its own, which imports geminga from the copy alone.

The interpreter is a virtual environment that sees our environment's packages.  Tests look for the broker's command
beside the interpreter, so the brokers that they start run the copy's code.
"""
import os
import shutil
import site
import subprocess
import sys
import time
import venv
from pathlib import Path

import psutil

from ..harness import HANG_SECONDS
from .bugs import ROOT

COMMAND = "#!{python}\nimport sys\nfrom geminga.supervisor.main import main\nsys.exit(main())\n"
PYTEST = "#!{python}\nimport sys\nfrom pytest import console_main\nsys.exit(console_main())\n"
SURVIVED, CAUGHT, LATE = "survived", "caught", "caught by its timeout"


class Checkout:
    """A copy of the checkout whose files are changed one at a time, as often as needed."""

    def __init__(self, folder: Path):
        self.root = folder / "checkout"
        self._scratch = folder / "t"       # short, as a socket's path has at most 107 bytes
        self._running: subprocess.Popen | None = None
        self._writes = 0
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                                check=True,
                                capture_output=True, text=True).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file() or (ROOT / name).is_symlink():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name, follow_symlinks=False)
        self._make_environment()

    def _make_environment(self) -> None:
        made = venv.EnvBuilder(symlinks=True)
        made.create(self.root / ".venv")
        bin_folder = self.root / ".venv" / "bin"
        packages = Path(site.getsitepackages([str(self.root / ".venv")])[0])
        # Python reads no .pth file in a folder that is named by another .pth file.  So our environment's own link to
        # geminga has no effect in the copy.
        (packages / "ours.pth").write_text("\n".join([str(self.root / ".source"), *site.getsitepackages()]) + "\n")
        for name, text in (("geminga", COMMAND), ("pytest", PYTEST)):
            (bin_folder / name).write_text(text.format(python=bin_folder / "python"))
            (bin_folder / name).chmod(0o755)
        for tool in Path(sys.executable).parent.iterdir():       # ruff, for example
            if not (bin_folder / tool.name).exists() and not tool.name.startswith(("python", "pip", "activate",
                                                                                   "Activate")):
                (bin_folder / tool.name).symlink_to(tool)
        self._environment = {name: value for name, value in os.environ.items()
                             if not name.startswith(("PYTHON", "GEMINGA_", "PYTEST_"))}
        self._environment |= {"VIRTUAL_ENV": str(bin_folder.parent),
                              "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}

    def text(self, file: str) -> str:
        return (self.root / file).read_text()

    def write(self, file: str, text: str) -> None:
        """Write a file, with a time of modification that no file had before.

        Python recognises bytecode by its source's size and second, and many bugs change neither.
        """
        self._writes += 1
        (self.root / file).write_text(text)
        os.utime(self.root / file, (time.time() + 10 * self._writes,) * 2)

    def run(self, tests: tuple[str, ...], seconds: float) -> tuple[str, str]:
        """Return (outcome, output of pytest), and leave no process of the tests running."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        command = [str(self.root / ".venv" / "bin" / "pytest"), "-x", "-q", "--no-header", "-p", "no:cacheprovider",
                   f"--basetemp={self._scratch}", *tests]
        with subprocess.Popen(command, cwd=self.root, env=self._environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True) as process:
            self._running = process
            try:
                said = process.communicate(timeout=seconds)[0]
            except subprocess.TimeoutExpired:
                _end(process)
                process.stdout.close()
                return LATE, f"not over after {seconds:.0f} s"
            finally:
                self._running = None
        return (CAUGHT if process.returncode else SURVIVED), said


    def end(self) -> None:
        """End the tests that run."""
        if self._running is not None:
            _end(self._running)


def _end(process: subprocess.Popen) -> None:
    """End a process with all its descendants, also those in process groups of their own."""
    try:
        there = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for each in there:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(there[1:], timeout=HANG_SECONDS)
