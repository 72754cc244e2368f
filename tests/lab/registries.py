"""Packages of others, installed from their registries into a cache, each set once.

The cache is $GEMINGA_LAB, or `geminga-tests/lab` in the user's cache.  A set of packages is installed in a folder
beside its place and moved there when it is whole, so that nothing is ever half there.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from ..clients.java import _pom
from ..interpreters import NotHere, fetched
from .subject import NotRun

INSTALL_SECONDS = 900
SPACE = 8 << 30         # most bytes of the cache
PROGRAMS = Path(__file__).parent / "programs"
GO = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOGC": "400", "GOFLAGS": "-mod=mod"}
# A version that was never released is asked for by 4.0.8.
MANAGED = {"org.apache.pulsar:jetcd-core-shaded": "4.0.7", "org.apache.pulsar:pulsar-opentelemetry": "4.0.7"}


@cache
def place() -> Path:
    """Return the cache's folder.  Raises NotRun if it has grown too large."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "geminga-tests" / "lab"
    folder = Path(os.environ.get("GEMINGA_LAB") or default)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def size() -> int:
    """Return the bytes that the cache has on disk."""
    return sum(file.lstat().st_blocks * 512 for file in place().rglob("*"))


def installed(kind: str, words: str, install: Callable[[Path], None]) -> Path:
    """Return the folder of a set of packages, installed by `install` if it is not there.

    words: everything that the set depends on.  Raises NotRun.
    """
    folder = place() / f"{kind}-{hashlib.sha256(words.encode()).hexdigest()[:12]}"
    if folder.exists():
        return folder
    if size() > SPACE:
        raise NotRun(f"the cache has {SPACE >> 30} GiB; remove {place()}")
    scratch = Path(tempfile.mkdtemp(prefix=f"{kind}-", suffix=".new", dir=place()))
    try:
        install(scratch)
        (scratch / "words").write_text(words)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def run(command: list[str | Path], seconds: float = INSTALL_SECONDS, **options: object) -> str:
    """Run an installer; return its output.  Raises NotRun with its last words."""
    if shutil.which(command[0]) is None:
        raise NotRun(f"{Path(command[0]).name} is not installed")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL,
                              **options)      # type: ignore[call-overload]
    except subprocess.TimeoutExpired:
        raise NotRun(f"{Path(command[0]).name} did not end within {seconds:.0f} s") from None
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = sorted((line for line in said if "error" in line.lower()),
                        key=lambda line: "fatal error" not in line) or said
        raise NotRun(f"{Path(command[0]).name}: {errors[0][-250:] if errors else done.returncode}")
    return done.stdout


def python(*packages: str, version: str = "") -> Path:
    """Return an interpreter whose environment has these packages, "name==version"; version: of Python, such as "3.14".

    Raises NotRun.
    """
    interpreter = Path(sys.executable) if not version else cpython(version)
    base = version or ".".join(map(str, sys.version_info[:3]))

    def install(folder: Path) -> None:
        # not moved: an environment has its own path in it, so that this one is told where it will be
        run([interpreter, "-m", "venv", "--without-pip", folder / "venv"])
        site = next((folder / "venv/lib").glob("python*")) / "site-packages"
        other = ["--only-binary", ":all:", "--python-version", version] if version else []
        run([sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", site, *other, *packages])

    return installed("python", f"{base} {' '.join(packages)}", install) / "venv/bin/python"


def cpython(version: str) -> Path:
    """Return an interpreter of this version of Python.  Raises NotRun."""
    def install(folder: Path) -> None:
        try:
            fetched(version, folder)
        except NotHere as why:
            raise NotRun(str(why)) from None

    folder = installed("cpython", version, install)
    return next(folder.glob(f"org/bytedeco/cpython/*/bin/python{version}"))


def jars(packages: dict[str, str], managed: dict[str, str] | None = None,
         excluded: dict[str, list[str]] | None = None) -> Path:
    """Return the folder of jars of Maven's artifacts {"group:artifact": version} and those they need.  Raises NotRun.
    """
    pom = _pom(packages, MANAGED if managed is None else managed, excluded or {})

    def install(folder: Path) -> None:
        (folder / "pom.xml").write_text(pom)
        run(["mvn", "-q", "-B", "-f", folder / "pom.xml", "dependency:copy-dependencies",
             f"-DoutputDirectory={folder}/lib", "-DincludeScope=runtime"])

    return installed("java", pom, install) / "lib"


def classes(jar_folder: Path, *sources: Path) -> Path:
    """Return the folder of the classes of some sources of Java, compiled against these jars.  Raises NotRun."""
    def install(folder: Path) -> None:
        path = ":".join(map(str, jar_folder.glob("*.jar")))
        run(["java", "-m", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-proc:none", "-d", folder, "-cp", path,
             *sources])

    words = f"{jar_folder}" + "".join(source.read_text() for source in sources)
    return installed("classes", words, install)


def maven_project(source: Path, dependencies: str) -> Path:
    """Return the folder of a project of one source of Java that Maven has built.  Raises NotRun.

    dependencies: what its pom.xml says of them, and of plugins.
    """
    pom = ('<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>lab</groupId>'
           "<artifactId>lab</artifactId><version>1</version><properties><maven.compiler.source>17"
           "</maven.compiler.source><maven.compiler.target>17</maven.compiler.target></properties>"
           f"{dependencies}</project>")

    def install(folder: Path) -> None:
        (folder / "pom.xml").write_text(pom)
        (folder / "src/main/java").mkdir(parents=True)
        shutil.copy(source, folder / "src/main/java")
        run(["mvn", "-q", "-B", "-f", folder / "pom.xml", "package"])

    return installed("maven", pom + source.read_text(), install)


def go_program(sources: list[Path], modules: dict[str, str], without: Iterable[str] = (), package: str = ".") -> Path:
    """Return a program built of Go sources with modules {path: version}.  Raises NotRun.

    without: modules that some module names and no source uses, and that the proxy does not serve.
    package: a program of one of the modules, in place of the sources.
    """
    def install(folder: Path) -> None:
        for source in sources:
            shutil.copy(source, folder)
        required = "".join(f"require {path} {version}\n" for path, version in modules.items())
        for module in without:
            (folder / module).mkdir(parents=True)
            (folder / module / "go.mod").write_text(f"module {module}\n")
            required += f"replace {module} => ./{module}\n"
        (folder / "go.mod").write_text(f"module lab/program\n\ngo 1.24.0\n\n{required}")
        environment = {**os.environ, **GO}
        # without Prometheus' clients of clouds, which take most of its time
        run(["go", "build", "-buildvcs=false", "-tags=remove_all_sd", "-gcflags=all=-N -l", "-ldflags=-s -w",
             "-o", folder / "program", package], cwd=folder, env=environment)

    words = repr(modules) + package.strip(".") + "".join(source.read_text() for source in sources)
    return installed("go", words, install) / "program"


def debian(package: str) -> Path:
    """Return the folder of the files of a package of this machine's Debian, which is not installed.  Raises NotRun."""
    def install(folder: Path) -> None:
        run(["apt-get", "download", "-qq", package], cwd=folder)
        [archive] = folder.glob("*.deb")
        run(["dpkg-deb", "--extract", archive, folder])
        archive.unlink()

    return installed("debian", package, install)


def node_modules(packages: dict[str, str]) -> Path:
    """Return a folder with these packages of npm, whose programs find them there.  Raises NotRun."""
    def install(folder: Path) -> None:
        run(["npm", "install", "--no-audit", "--no-fund", "--prefix", folder,
             *(f"{name}@{version}" for name, version in packages.items())])

    return installed("node", repr(packages), install)


def rust_program(source: Path, crates: dict[str, str]) -> Path:
    """Return a program built of one source of Rust with crates {name: what Cargo.toml says of it}.  Raises NotRun.

    All programs share what is compiled of their crates, which takes twenty minutes on a busy machine.
    """
    def install(folder: Path) -> None:
        (folder / "src").mkdir()
        shutil.copy(source, folder / "src/main.rs")
        (folder / "Cargo.toml").write_text(
            '[package]\nname = "things"\nversion = "0.1.0"\nedition = "2021"\n\n[profile.dev]\ndebug = 0\n\n'
            "[dependencies]\n" + "".join(f"{name} = {said}\n" for name, said in crates.items()))
        # the compiler of protobuf, which crates call
        (folder / "protoc").write_text(f'#!/bin/sh\nexec {sys.executable} -m grpc_tools.protoc "$@"\n')
        (folder / "protoc").chmod(0o755)
        target = place() / "cargo"
        run(["cargo", "build", "--quiet"], 3 * INSTALL_SECONDS, cwd=folder,
            env={**os.environ, "CARGO_TARGET_DIR": str(target), "PROTOC": str(folder / "protoc")})
        shutil.copy(target / "debug/things", folder / "program")

    return installed("rust", repr(crates) + source.read_text(), install) / "program"


ASKED = {      # registry: (command that tells the newest version, how its output has it)
    "pypi": ([sys.executable, "-m", "pip", "index", "versions", "{}"], r"\(([^)]+)\)"),
    "npm": (["npm", "view", "{}", "version"], r"(\S+)"),
    "go": (["go", "list", "-m", "-f", "{{{{.Version}}}}", "{}@latest"], r"(\S+)"),
    "crates": (["cargo", "info", "--registry", "crates-io", "{}"], r"version: (\S+)"),
}


@cache
def newest(registry: str, package: str) -> str:
    """Return the newest version of a package that its registry serves.  Raises NotRun."""
    command, form = ASKED[registry]
    found = re.search(form, run([word.format(package) for word in command], cwd=place()))
    if found is None:
        raise NotRun(f"{registry} tells no version of {package}")
    return found[1]
