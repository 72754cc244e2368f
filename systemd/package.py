"""Debian packages of this checkout, for the release of Debian that this runs on.

    python3 systemd/package.py [--out DIR] [--version VERSION] [--spark]

geminga is the broker: a program of its own below /usr/lib/geminga, laid out as a virtual environment of Debian's interpreter is, so that it
has its pinned dependencies, and sees neither Debian's modules nor a user's.  geminga-nightly (--spark) adds Spark and depends on a Java
runtime; it is versioned by what is in it, so that the broker is upgraded without it.

    /usr/bin/geminga                    starts it
    /usr/lib/geminga                    bin/python3, which is Debian's; lib/python3.N/site-packages: the four layers, dependencies, bytecode
    /usr/lib/{systemd,sysusers.d,tmpfiles.d}
    /etc/geminga/geminga.toml           geminga.toml.example, with the data folder of the units; dpkg keeps what was changed in it
    /usr/share/{man,bash-completion,zsh,fish}     made by the command from itself (manual.py)
    /usr/share/doc/geminga              README.md, docs, runbook, Prometheus' rules, dashboards, licences

Only the standard library is used, and of Debian python3, pip (not with --site-packages) and dpkg-deb.  The path of a finished package goes
to standard output.  Rejected: debhelper, which brings half a gigabyte to a machine that only wants to install a broker; xz,
which takes a minute for what zstd does in two seconds.
"""
import argparse
import gzip
import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import tomllib
from email.parser import HeaderParser
from email.utils import formatdate
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent
OWN = "geminga"
LAYERS = ("proto", "storage", "workers", "supervisor")
JAVA = {"12": "openjdk-17-jre-headless", "13": "openjdk-21-jre-headless"}      # by release of Debian
UNITS = (".service", ".timer", ".slice")
NOT_NEEDED = ("bin", "**/test", "**/tests", "pyarrow/include", "pyarrow/src", "numpy/_core/include")      # of dependencies, at run time
INTERPRETER = "usr/lib/geminga/bin/python3"
LAUNCHER = f"""#!/{INTERPRETER} -I
import sys

from geminga.supervisor.main import main

sys.exit(main())
"""
CONTROL = """Package: {name}
Version: {version}
Architecture: {architecture}
Maintainer: Geminga <geminga@localhost>
Installed-Size: {size_kib}
{relations}
Section: net
Priority: optional
Description: {description}
"""
COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
Copyright: the authors of Geminga
License: Apache-2.0
 See /usr/share/common-licenses/Apache-2.0.
"""


class PackageError(Exception):
    """No package can be made; the text is the line to show."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Make Debian packages of this checkout, for the release of Debian that this runs on.")
    parser.add_argument("--out", metavar="DIR", type=Path, default=CHECKOUT / "dist", help="where they go (default: dist)")
    parser.add_argument("--version", help="of geminga (default: the project's, with the time of day)")
    parser.add_argument("--spark", action="store_true", help="make geminga-nightly, which is Spark, beside it")
    parser.add_argument("--site-packages", metavar="DIR", type=Path, help="take dependencies from there, rather than from a package index")
    given = parser.parse_args()
    try:
        release = debian_release()
        project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
        given.out.mkdir(parents=True, exist_ok=True)
        os.environ["TMPDIR"] = tempfile.tempdir = str(given.out.resolve())      # pip's too: /tmp may be in memory, and Spark is large
        print(broker(project, release, given.out, given.version, given.site_packages), flush=True)
        if given.spark:
            print(spark(project, release, given.out), flush=True)
    except (PackageError, OSError) as error:
        print(f"package: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"package: `{' '.join(map(str, error.cmd))}` ended with status {error.returncode}", file=sys.stderr)
        return 1
    return 0


def debian_release() -> str:
    """"12", "13"."""
    facts = platform.freedesktop_os_release()
    release = facts.get("VERSION_ID", "")
    if facts.get("ID") != "debian" or release not in JAVA:
        raise PackageError(f"packages are made on Debian {' or '.join(JAVA)}, and this is {facts.get('PRETTY_NAME', 'something else')}")
    return release


def python_minor() -> str:
    """"python3.11": Debian's, whichever this runs on."""
    return Path("/usr/bin/python3").resolve(strict=True).name


def spark_version(project: dict, release: str) -> str:
    """Of geminga-nightly: what is pinned in it, and for which Debian."""
    pins = dict(pin.split("==") for pin in project["optional-dependencies"]["nightly"])
    return "+".join([pins.pop("pyspark"), *(f"{name}{version}" for name, version in pins.items())]) + f"~deb{release}"


# -- the two packages

def broker(project: dict, release: str, out: Path, version: str | None, site_packages: Path | None) -> Path:
    version = version or f"{project['version']}+{time.strftime('%Y%m%d%H%M%S', time.gmtime())}"
    with tempfile.TemporaryDirectory(prefix="geminga-package-") as folder:
        root = Path(folder)
        lay_program(root, project, site_packages, version)
        lay_system(root)
        lay_documents(root, "geminga")
        for script in ("preinst", "postinst", "prerm", "postrm"):
            text = (HERE / "debian" / script).read_text().replace("@FOLDER_VERSION@", folder_version())
            write(root / "DEBIAN" / script, text, 0o755)
        write(root / "DEBIAN/conffiles", "/etc/geminga/geminga.toml\n")
        with_spark = spark_version(project, release)
        relations = [f"Depends: {python_minor()}, libc6, libgcc-s1, libstdc++6, systemd",
                     f"Suggests: geminga-nightly (>= {with_spark})",
                     f"Breaks: geminga-nightly (<< {with_spark})",
                     "Replaces: geminga-nightly"]      # a dependency of Spark's may become one of the broker's
        description = ("message broker that Apache Pulsar clients talk to\n"
                       " An appliance for one host: what it answers is on disk, and every night it gives space back.")
        return finished(root, out, "geminga", f"{version}~deb{release}", relations, description)


def spark(project: dict, release: str, out: Path) -> Path:
    """The same version has the same in it: one that lies there already is it."""
    version = spark_version(project, release)
    if (package := package_path(out, "geminga-nightly", version)).exists():
        return package
    with tempfile.TemporaryDirectory(prefix="geminga-package-") as folder:
        root = Path(folder)
        lay_spark(root, project)
        lay_documents(root, "geminga-nightly")
        relations = [f"Depends: geminga, {python_minor()}, {JAVA[release]}"]
        description = ("Spark for Geminga's nightly job\n"
                       " With it a night compacts topics also when their keys do not fit into memory.")
        return finished(root, out, "geminga-nightly", version, relations, description)


# -- what goes in

def lay_program(root: Path, project: dict, site_packages: Path | None, version: str) -> None:
    program, target = root / "usr/lib/geminga", site_packages_of(root)
    (program / "bin").mkdir(parents=True)
    (root / INTERPRETER).symlink_to(f"/usr/bin/{python_minor()}")
    write(program / "pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n")
    if site_packages is None:
        pip_install(target, project["dependencies"], binary_only=True)
    else:
        shutil.copytree(site_packages, target)
    for layer in LAYERS:
        shutil.copytree(CHECKOUT / layer, target / "geminga" / layer, ignore=shutil.ignore_patterns("__pycache__"))
    # As pip leaves it: the program asks for its version there.
    write(target / f"geminga-{project['version']}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {OWN}\nVersion: {version}\n")
    compile_bytecode(root)
    write(root / "usr/bin/geminga", LAUNCHER, 0o755)


def lay_spark(root: Path, project: dict) -> None:
    """What it needs and the broker has is not there twice; pip is told of both, so that it is the same."""
    target = site_packages_of(root)
    pip_install(target, project["dependencies"] + project["optional-dependencies"]["nightly"], binary_only=False)
    with tempfile.TemporaryDirectory(prefix="geminga-package-") as folder:
        pip_install(Path(folder), project["dependencies"], binary_only=True)
        for path in Path(folder).rglob("*"):
            if not path.is_dir():
                (target / path.relative_to(folder)).unlink(missing_ok=True)
    for folder in sorted((path for path in target.rglob("*") if path.is_dir()), reverse=True):      # the innermost first
        if not any(folder.iterdir()):
            folder.rmdir()
    compile_bytecode(root)


def lay_system(root: Path) -> None:
    """Units, user, folders, configuration; man pages and completion, which the program makes."""
    for path in HERE.iterdir():
        if path.suffix in UNITS:
            write(root / "usr/lib/systemd/system" / path.name, path.read_text())
    write(root / "usr/lib/sysusers.d/geminga.conf", (HERE / "sysusers.conf").read_text())
    write(root / "usr/lib/tmpfiles.d/geminga.conf", (HERE / "tmpfiles.conf").read_text())
    write(root / "etc/geminga/geminga.toml", configuration())
    subprocess.run([root / INTERPRETER, "-I", HERE / "manual.py", root / "usr/share"], check=True)


def configuration() -> str:
    """The example, whose keys are all commented out, with the one that a package knows better."""
    text, lines = re.subn(r'^#data_dir = .*$', 'data_dir = "/var/lib/geminga"', (HERE / "geminga.toml.example").read_text(), flags=re.M)
    assert lines == 1, "geminga.toml.example names data_dir"
    return text


def lay_documents(root: Path, name: str) -> None:
    documents = root / "usr/share/doc" / name
    if name == "geminga":
        write(documents / "README.md", (CHECKOUT / "README.md").read_text())
        shutil.copytree(CHECKOUT / "docs", documents / "docs")
        for folder in ("prometheus", "runbook"):
            shutil.copytree(HERE / folder, documents / folder)
    write(documents / "copyright", COPYRIGHT + "".join(licences(site_packages_of(root))))


def licences(site_packages: Path) -> list[str]:
    """A paragraph for each dependency; the texts are beside it."""
    paragraphs = []
    for metadata in sorted(site_packages.glob("*.dist-info/METADATA")):
        about = HeaderParser().parsestr(metadata.read_text("utf-8"))
        if about["Name"] == OWN:
            continue
        licence = about["License-Expression"] or (about["License"] or "").partition("\n")[0] or "as its files say"
        who = (about["Author"] or about["Author-email"] or "its authors").partition("\n")[0]
        paragraphs.append(f"\nFiles: *\nComment: {about['Name']} {about['Version']}, the files in {metadata.parent.name}/RECORD\n"
                          f"Copyright: {who}\nLicense: {licence}\n")
    return paragraphs


def site_packages_of(root: Path) -> Path:
    return root / "usr/lib/geminga/lib" / python_minor() / "site-packages"


def folder_version() -> str:
    """The number of the data folder's format; read, as importing it would take numpy."""
    found = re.search(r"^FOLDER_VERSION\b.*?= (\d+)", (CHECKOUT / "storage/format.py").read_text(), re.M)
    assert found, "storage/format.py has FOLDER_VERSION"
    return found[1]


def pip_install(target: Path, requirements: list[str], *, binary_only: bool) -> None:
    """Just these and what they need; nothing is compiled here that comes ready made; Spark comes as what a wheel is made of."""
    only = ["--only-binary", ":all:"] if binary_only else ["--use-pep517"]
    subprocess.run(["/usr/bin/python3", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action", "ignore",
                    "--no-compile", *only, "--target", target, *requirements], check=True, stdout=sys.stderr)
    for path in [path for pattern in NOT_NEEDED for path in target.glob(pattern)]:
        shutil.rmtree(path)


def compile_bytecode(root: Path) -> None:
    """Beside each module, with the place where it will be: the broker's user may write nothing there."""
    compileall = ["/usr/bin/python3", "-I", "-m", "compileall", "-q", "-j", "0", "-s", root, "-p", "/"]
    subprocess.run([*compileall, site_packages_of(root)], check=True)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


# -- the archive

def architecture() -> str:
    return subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True).stdout.strip()


def package_path(out: Path, name: str, version: str) -> Path:
    return out.resolve() / f"{name}_{version}_{architecture()}.deb"


def finished(root: Path, out: Path, name: str, version: str, relations: list[str], description: str) -> Path:
    """The package, in `out`."""
    write_changelog(root, name, version)
    files = sorted(path for path in root.rglob("*") if not path.is_relative_to(root / "DEBIAN"))
    regular = [path for path in files if path.is_file() and not path.is_symlink()]
    sums = "".join(f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in regular)
    write(root / "DEBIAN/md5sums", sums)
    size_kib = sum(-(-path.lstat().st_size // 1024) if path in regular else 1 for path in files)
    write(root / "DEBIAN/control", CONTROL.format(name=name, version=version, architecture=architecture(), size_kib=size_kib,
                                                  relations="\n".join(relations), description=description))
    for path in [root, *root.rglob("*")]:
        normalise_mode(path)
    package = package_path(out, name, version)
    part = package.with_suffix(".part")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zzstd", "-z3", "--build", root, part], check=True, stdout=subprocess.DEVNULL)
    return part.rename(package)


def write_changelog(root: Path, name: str, version: str) -> None:
    text = (f"{name} ({version}) unstable; urgency=medium\n\n  * Made from its repository.\n\n"
            f" -- Geminga <geminga@localhost>  {formatdate()}\n")
    (root / "usr/share/doc" / name / "changelog.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def normalise_mode(path: Path) -> None:
    """Whatever the umask was and wheels say: nobody but root writes, and what is no script is not started."""
    if path.is_symlink():
        return
    is_program = path.is_dir() or (path.stat().st_mode & stat.S_IXUSR and path.read_bytes()[:2] == b"#!")
    path.chmod(0o755 if is_program else 0o644)


if __name__ == "__main__":
    sys.exit(main())
