"""Set up a fresh checkout, and run the broker, a night or the tests in it, with one command.

    python3 supervisor/bootstrap.py serve [arguments of `geminga serve`]
    python3 supervisor/bootstrap.py nightly [arguments of `geminga nightly`]
    python3 supervisor/bootstrap.py test  [--fast] [arguments of pytest]

The bootstrap chooses an interpreter, makes <checkout>/.venv with it, installs the project there (editable, with its
pinned dependencies) and becomes the wanted program.  `nightly` and `test` need Spark too, and Spark a Java runtime.
`nightly` installs a Java runtime from the distribution if it runs as root.  `test` changes nothing outside of the
checkout, unless CI=true is set.  A stamp in the environment says what the environment was made of.  While the stamp is
true, a start does nothing else:

    no environment                                               -> from scratch
    stamp UNFINISHED or cut off: a run was interrupted           -> from scratch
    made elsewhere: checkout moved, interpreter gone or upgraded -> from scratch
    pyproject.toml changed, or tests asked for after serve       -> pip again, in place
    no stamp: made by hand                                       -> pip again, in place; its owner's additions stay
    no stamp and no pip                                          -> refused: not ours to remove

Only the standard library is used.  This file also parses on interpreters too old to run the broker, because it has to
tell their users; so annotations that they cannot evaluate are texts.
"""
import fcntl
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKOUT = Path(__file__).resolve().parent.parent
SUPPORTED = ((3, 11), (3, 14))  # first and last; a test compares them with requires-python
EXTRAS = ("", "nightly", "dev")  # each includes those before it
# Verb: (script, extras).
PROGRAMS = {"serve": ("geminga", ""), "nightly": ("geminga", "nightly"), "test": ("pytest", "dev")}
JAVA_PACKAGE = "default-jre-headless"  # of every release of Debian: OpenJDK 17 in 12, 21 in 13
JAVA_FIRST = 17  # the oldest version that Spark runs on
STAMP = "geminga-setup.json"
UNFINISHED = "{}"


class SetUpError(Exception):
    """A failure that ends the set-up.  The text is one line for the user."""


def main(arguments: "list[str]") -> int:
    if arguments == ["facts"]:  # interpreter_facts() has started this interpreter
        print(json.dumps(own_facts()))
        return 0
    if not arguments or arguments[0] not in PROGRAMS:
        print(f"usage: python3 supervisor/bootstrap.py {'|'.join(PROGRAMS)} [arguments]", file=sys.stderr)
        return 2
    verb, *rest = arguments
    program, extras = PROGRAMS[verb]
    environment = CHECKOUT / ".venv"
    try:
        if not is_ready(environment, program, extras):
            set_up(environment, program, extras)
        if extras and not has_java():
            if verb == "nightly":
                install_java(is_needed=True)
            elif os.environ.get("CI") == "true":
                install_java(is_needed=False)
    except (SetUpError, OSError) as error:
        say(error)
        return 1
    except KeyboardInterrupt:
        say("interrupted; the next run starts the set-up again")
        return 130
    if verb == "test":
        os.chdir(CHECKOUT)  # where pytest finds its configuration
        rest = [*processes_of_tests(rest), *rest]
    else:
        rest = [verb, *rest]  # in the user's folder, as --config and --data-dir may be relative paths
    script = environment / "bin" / program
    os.execv(script, [str(script), *rest])


def processes_of_tests(arguments: "list[str]") -> "list[str]":
    """Return pytest's options for parallel tests: one process per core, at most four, if --fast was given.

    More processes would only import more often. Without --fast tests run in one process: some of them measure times,
    and the brokers that they start use all cores already.
    """
    return ["-n", str(min(len(os.sched_getaffinity(0)), 4)), "--dist", "worksteal"] if "--fast" in arguments else []


def say(text: object) -> None:
    print(f"bootstrap: {text}", file=sys.stderr, flush=True)


# --- the environment ---------------------------------------------------------------------------------------------

def is_ready(environment: Path, program: str, extras: str) -> bool:
    """Whether the environment can be used without any set-up.

    Every start calls this function, so it reads two small files and starts no process.
    """
    stamp = read_stamp(environment)
    return (
        stamp is not None
        and stamp.get("extras") in EXTRAS
        and stamp == stamp_of(environment, stamp["extras"])
        and EXTRAS.index(extras) <= EXTRAS.index(stamp["extras"])
        and os.access(environment / "bin" / program, os.X_OK)
    )


def stamp_of(environment: Path, extras: str) -> "dict[str, str]":
    """Return the stamp to write into an environment whose set-up has finished."""
    return {
        "checkout": str(CHECKOUT),  # console scripts and the editable install have this path in them
        "interpreter": os.path.realpath(environment / "bin" / "python"),  # a path with 3.N on every distribution
        "project": hashlib.sha256((CHECKOUT / "pyproject.toml").read_bytes()).hexdigest(),
        "extras": extras,
    }


def read_stamp(environment: Path) -> "dict[str, str] | None":
    """Return the stamp, {} for an unfinished environment, None without a stamp."""
    try:
        stamp: dict[str, str] = json.loads((environment / STAMP).read_text())
    except FileNotFoundError:
        return None
    except ValueError:  # cut off by a crash of the machine
        return {}
    return stamp


def set_up(environment: Path, program: str, extras: str) -> None:
    """Make the environment ready, one run at a time.  An interrupted run leaves the stamp UNFINISHED."""
    with open(CHECKOUT / "pyproject.toml", "rb") as lock:  # any file that always exists can be locked
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this checkout to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if is_ready(environment, program, extras):
            return
        stamp = read_stamp(environment)
        if can_be_kept(environment, stamp):
            had = (stamp or {}).get("extras", "")
            # Extras only grow: a serve after a test keeps the test's packages.
            extras = max(extras, had if had in EXTRAS else "", key=EXTRAS.index)
            say(f"bringing {environment} up to date")
            (environment / STAMP).write_text(UNFINISHED)
        else:
            interpreter = chosen_interpreter()
            say(f"making {environment} with {interpreter} (once, about a minute)")
            clear(environment)
            run([interpreter, "-I", "-m", "venv", str(environment)], lock)
        install(environment, extras, lock)
        write_stamp(environment, extras)


def can_be_kept(environment: Path, stamp: "dict[str, str] | None") -> bool:
    """Whether pip may work in the existing environment instead of a new one (table in the module's docstring)."""
    if stamp is None:
        if not environment.exists() or not any(environment.iterdir()):
            return False
        if not interpreter_facts(environment / "bin" / "python").get("pip"):
            raise SetUpError(f"{environment} was not made by this command and has no working pip: "
                             "remove it, then try again")
        return True
    now = stamp_of(environment, "")
    return all(stamp.get(key) == now[key] for key in ("checkout", "interpreter"))


def clear(environment: Path) -> None:
    """Empty the environment's folder.  The stamp says UNFINISHED before the first file is removed."""
    environment.mkdir(exist_ok=True)
    (environment / STAMP).write_text(UNFINISHED)
    for path in environment.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != STAMP:
            path.unlink()


def install(environment: Path, extras: str, lock: BinaryIO) -> None:
    project = f"{CHECKOUT}[{extras}]" if extras else str(CHECKOUT)
    pip = [str(environment / "bin" / "python"), "-I", "-m", "pip"]
    # --quiet still shows errors and retries, and hides a warning about this checkout's folders.
    run([*pip, "install", "--quiet", "--disable-pip-version-check", "--editable", project], lock)


def write_stamp(environment: Path, extras: str) -> None:
    new = environment / (STAMP + ".new")
    new.write_text(json.dumps(stamp_of(environment, extras), indent=1) + "\n")
    new.replace(environment / STAMP)


def run(command: "list[str]", lock: BinaryIO) -> None:
    """Run a command to its end and show its output.  Raises SetUpError.

    The command inherits the lock: if it outlives a killed parent, the next set-up waits for it.
    """
    import subprocess  # slower to import than the rest of this file, and most starts do not need it

    status = subprocess.run(command, pass_fds=(lock.fileno(),)).returncode
    if status:
        raise SetUpError(f"set-up failed: `{' '.join(command)}` ended with status {status}")


# --- Java --------------------------------------------------------------------------------------------------------

def has_java() -> bool:
    """Whether the java of JAVA_HOME, else the first on the path, is new enough for Spark."""
    import re
    import subprocess

    home = os.environ.get("JAVA_HOME")
    try:
        java = f"{home}/bin/java" if home else "java"
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired):
        return False
    version = re.search(r'version "(\d+)', output)
    return version is not None and int(version[1]) >= JAVA_FIRST


def install_java(is_needed: bool) -> None:
    """Install a Java runtime from the distribution if the user is root; otherwise print the command for it.

    Raises SetUpError if is_needed and there is no Java runtime in the end.
    """
    import subprocess

    command = ["apt-get", "install", "--yes", "--no-install-recommends", JAVA_PACKAGE]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        say(f"installing {JAVA_PACKAGE}, which Spark needs")
        for step in (["apt-get", "update"], command):
            quiet = ["env", "DEBIAN_FRONTEND=noninteractive", *step, "-qq"]
            status = subprocess.run(quiet, stdout=subprocess.DEVNULL).returncode
        if status == 0 and has_java():
            return
    line = f"Spark needs a Java runtime, {JAVA_FIRST} or newer: {' '.join(command[:2])} {JAVA_PACKAGE}"
    if is_needed:
        raise SetUpError(line)
    say(line + "; tests that need it are left out")


# --- the interpreter ---------------------------------------------------------------------------------------------

def is_optimised() -> bool:
    """Whether the running interpreter was built with profile-guided optimisation.

    Debian and Ubuntu optimise in a makefile of their own, which leaves no trace in the arguments of configure.  So an
    interpreter in /usr counts as the distribution's.
    """
    import sysconfig

    if sysconfig.get_config_var("Py_DEBUG"):
        return False
    return "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "") or sys.base_prefix == "/usr"


def own_facts() -> "dict[str, Any]":
    from importlib.util import find_spec

    return {
        "path": getattr(sys, "_base_executable", sys.executable),  # in an environment: the one it was made with
        "version": sys.version_info[:2],
        "optimised": is_optimised(),
        "venv": find_spec("venv") is not None and find_spec("ensurepip") is not None,
        "pip": find_spec("pip") is not None,
    }


def interpreter_facts(path: "str | Path") -> "dict[str, Any]":
    """Return own_facts() of the interpreter at a path; {} if no interpreter runs from there."""
    import subprocess

    try:
        answer = subprocess.run([str(path), "-I", __file__, "facts"], stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, timeout=30)
        facts: dict[str, Any] = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):  # absent; not Python, or a version manager's empty shim
        return {}
    return facts


def candidates() -> "Iterator[str]":
    """Iterate over interpreters in order of preference: the caller's choice, the distribution's, then by version."""
    first, last = SUPPORTED
    yield sys.executable
    yield "/usr/bin/python3"
    for minor in range(last[1], first[1] - 1, -1):
        path = shutil.which(f"python3.{minor}")
        if path:
            yield path


def chosen_interpreter() -> str:
    """Return the path of a supported interpreter that can make environments, an optimised one if possible."""
    first, last = SUPPORTED
    named = f"Python {first[0]}.{first[1]} to {last[0]}.{last[1]}"
    working = [facts for facts in map(interpreter_facts, candidates()) if facts]
    supported = [facts for facts in working if first <= tuple(facts["version"]) <= last]
    if not supported:
        raise SetUpError(f"{named} is needed and none was found: apt-get install python3 python3-venv")
    usable = [facts for facts in supported if facts["venv"]]
    if not usable:
        raise SetUpError(f"{supported[0]['path']} has no venv module: apt-get install python3-venv")
    best = next((facts for facts in usable if facts["optimised"]), usable[0])
    if not best["optimised"]:
        say(f"warning: {best['path']} was built without optimisation, which costs 1.5 to 2 times the CPU; "
            "the distribution's is not: apt-get install python3 python3-venv")
    return str(best["path"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
