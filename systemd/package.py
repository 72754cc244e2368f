"""Debian packages of this checkout, for the release of Debian that this runs on.

    python3 systemd/package.py [--out DIR] [--version VERSION] [--spark]

The package geminga is the broker, below /usr/lib/geminga.  Its folders are laid out like a virtual environment of
Debian's interpreter, so the broker uses its pinned dependencies and sees neither Debian's modules nor a user's.  The
package geminga-nightly (--spark) adds Spark and depends on a Java runtime.  Its version is made of the versions in it,
so that an upgrade of the broker does not replace it.

    /usr/bin/geminga                    the command
    /usr/lib/geminga                    bin/python3, a link to Debian's; lib/python3.N/site-packages: the four layers,
                                        dependencies, bytecode
    /usr/lib/{systemd,sysusers.d,tmpfiles.d}
    /etc/geminga/geminga.toml           geminga.toml.example, with the units' data folder; dpkg keeps local changes
    /usr/share/{man,bash-completion,zsh,fish}     made from the command's help (manual.py)
    /usr/share/doc/geminga              README.md, docs, runbook, Prometheus' rules, dashboards, licences

The script needs the standard library, and Debian's python3, pip (not with --site-packages) and dpkg-deb.  It prints the
path of each finished package.  Rejected: debhelper, which brings half a gigabyte to a machine that only wants to
install a broker, and xz, which takes a minute where zstd takes two seconds.
"""
import argparse
import gzip
import hashlib
import os
import platform
import re
import runpy
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
# By release of Debian.
JAVA = {"12": "openjdk-17-jre-headless", "13": "openjdk-21-jre-headless", "14": "openjdk-21-jre-headless"}
UNRELEASED = {"forky": "14"}      # codename -> release, whose os-release has no VERSION_ID yet
UNITS = (".service", ".timer", ".slice")
# Beginnings of links in pages of the checkout, and where these lead among the installed documents.
INSTALLED_LINKS = {"](systemd/runbook/": "](runbook/", "](../systemd/runbook/": "](../runbook/",
                   "](../../docs/": "](../docs/", "](LICENSE)": "](copyright)"}
# Folders of dependencies that are not needed at run time.
NOT_NEEDED = ("bin", "**/test", "**/tests", "pyarrow/include", "pyarrow/src", "numpy/_core/include")
INTERPRETER = "usr/lib/geminga/bin/python3"
LAUNCHER = f"""#!/{INTERPRETER} -I
from geminga.supervisor.main import run

if __name__ == "__main__":      # processes that a command starts read this file too
    run()
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
    """An error: no package can be made.  The text is one line for the user."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Make Debian packages of this checkout, for the release of Debian that this runs on.")
    parser.add_argument("--out", metavar="DIR", type=Path, default=CHECKOUT / "dist",
                        help="folder for the packages (default: dist)")
    parser.add_argument("--version",
                        help="version of geminga (default: the project's, with time and name of the commit)")
    parser.add_argument("--spark", action="store_true", help="also make geminga-nightly, which has Spark")
    parser.add_argument("--site-packages", metavar="DIR", type=Path,
                        help="take dependencies from this folder instead of a package index")
    given = parser.parse_args()
    try:
        release = debian_release()
        project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
        given.out.mkdir(parents=True, exist_ok=True)
        # Spark is large, and /tmp may be in memory, for this script and for pip.
        os.environ["TMPDIR"] = tempfile.tempdir = str(given.out.resolve())
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
    """Return the release of Debian that runs here, such as "13".  Raises PackageError elsewhere."""
    facts = platform.freedesktop_os_release()
    release = facts.get("VERSION_ID", UNRELEASED.get(facts.get("VERSION_CODENAME", ""), ""))
    if facts.get("ID") != "debian" or release not in JAVA:
        here = facts.get("PRETTY_NAME", "something else")
        raise PackageError(f"packages are made on Debian {' or '.join(JAVA)}, and this is {here}")
    return release


def python_minor() -> str:
    """Return the name of Debian's interpreter, such as "python3.11"."""
    return Path("/usr/bin/python3").resolve(strict=True).name


def spark_version(project: dict, release: str) -> str:
    """Return the version of geminga-nightly, made of its pinned dependencies and the release of Debian."""
    pins = dict(pin.split("==") for pin in project["optional-dependencies"]["nightly"])
    others = [f"{name}{version}" for name, version in pins.items() if name != "pyspark"]
    return "+".join([pins["pyspark"], *others]) + f"~deb{release}"


def version_of(project: dict) -> str:
    """Return the version of a package of this checkout: the project's, with time and name of the commit.

    Without a commit, in a folder that was copied by hand, the time is that of the newest source file.
    """
    commit = runpy.run_path(str(CHECKOUT / "supervisor/host/build.py"))["of_checkout"](CHECKOUT)
    if not commit:
        newest = max(path.stat().st_mtime for layer in LAYERS for path in (CHECKOUT / layer).rglob("*.py"))
        commit = time.strftime("%Y%m%d%H%M%S", time.gmtime(newest))
    return f"{project['version']}+{commit}"


# -- the two packages

def broker(project: dict, release: str, out: Path, version: str | None, site_packages: Path | None) -> Path:
    version = version or version_of(project)
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
                     "Replaces: geminga-nightly"]      # a dependency of Spark may become one of the broker
        description = ("message broker that Apache Pulsar clients talk to\n"
                       " An appliance for one host: an answered message is on disk, and every night gives space back.")
        return finished(root, out, "geminga", f"{version}~deb{release}", relations, description)


def spark(project: dict, release: str, out: Path) -> Path:
    """Return the path of the package geminga-nightly, and build it unless it exists.

    A package of the same version already has the same content.
    """
    version = spark_version(project, release)
    if (package := package_path(out, "geminga-nightly", version)).exists():
        return package
    with tempfile.TemporaryDirectory(prefix="geminga-package-") as folder:
        root = Path(folder)
        lay_spark(root, project)
        lay_documents(root, "geminga-nightly")
        relations = [f"Depends: geminga, {python_minor()}, {JAVA[release]}"]
        description = ("Spark for Geminga's nightly job\n"
                       " With Spark, a night also compacts topics whose keys do not fit into memory.")
        return finished(root, out, "geminga-nightly", version, relations, description)


# -- content

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
    # The program reads its version where pip would have written it.
    write(target / f"geminga-{project['version']}.dist-info/METADATA",
          f"Metadata-Version: 2.1\nName: {OWN}\nVersion: {version}\n")
    compile_bytecode(root)
    write(root / "usr/bin/geminga", LAUNCHER, 0o755)


def lay_spark(root: Path, project: dict) -> None:
    """Install Spark and its dependencies into the package's folder, without those in the broker's package.

    pip is given the requirements of both packages, so that both agree on versions.
    """
    target = site_packages_of(root)
    pip_install(target, project["dependencies"] + project["optional-dependencies"]["nightly"], binary_only=False)
    with tempfile.TemporaryDirectory(prefix="geminga-package-") as folder:
        pip_install(Path(folder), project["dependencies"], binary_only=True)
        for path in Path(folder).rglob("*"):
            if not path.is_dir():
                (target / path.relative_to(folder)).unlink(missing_ok=True)
    for folder in sorted((path for path in target.rglob("*") if path.is_dir()), reverse=True):      # innermost first
        if not any(folder.iterdir()):
            folder.rmdir()
    compile_bytecode(root)


def lay_system(root: Path) -> None:
    """Put systemd units, user, folders, configuration, man pages and completion into the package's folder."""
    for path in HERE.iterdir():
        if path.suffix in UNITS:
            write(root / "usr/lib/systemd/system" / path.name, path.read_text())
    write(root / "usr/lib/sysusers.d/geminga.conf", (HERE / "sysusers.conf").read_text())
    write(root / "usr/lib/tmpfiles.d/geminga.conf", (HERE / "tmpfiles.conf").read_text())
    write(root / "etc/geminga/geminga.toml", configuration())
    subprocess.run([root / INTERPRETER, "-I", HERE / "manual.py", root / "usr/share"], check=True)


def configuration() -> str:
    """Return the example configuration, whose keys are all commented out, with the data folder of the units set."""
    example = (HERE / "geminga.toml.example").read_text()
    text, lines = re.subn(r'^#data_dir = .*$', 'data_dir = "/var/lib/geminga"', example, flags=re.M)
    assert lines == 1, "geminga.toml.example names data_dir"
    return text


def lay_documents(root: Path, name: str) -> None:
    documents = root / "usr/share/doc" / name
    if name == "geminga":
        for source in (CHECKOUT / "docs", HERE / "prometheus", HERE / "runbook"):
            shutil.copytree(source, documents / source.name)
        shutil.copy(CHECKOUT / "README.md", documents)
        for page in documents.rglob("*.md"):
            write(page, with_installed_links(page.read_text()))
    write(documents / "copyright", COPYRIGHT + "".join(licences(site_packages_of(root))))


def with_installed_links(text: str) -> str:
    """Return a page of the checkout with its links changed to the same pages among the installed documents."""
    for beginning, installed in INSTALLED_LINKS.items():
        text = text.replace(beginning, installed)
    return text


def licences(site_packages: Path) -> list[str]:
    """Return a paragraph for each dependency; the licences' texts lie in its dist-info folder."""
    paragraphs = []
    for metadata in sorted(site_packages.glob("*.dist-info/METADATA")):
        about = HeaderParser().parsestr(metadata.read_text("utf-8"))
        if about["Name"] == OWN:
            continue
        licence = about["License-Expression"] or (about["License"] or "").partition("\n")[0] or "as its files say"
        who = (about["Author"] or about["Author-email"] or "its authors").partition("\n")[0]
        paragraphs.append(f"\nFiles: *\nComment: {about['Name']} {about['Version']}, "
                          f"the files in {metadata.parent.name}/RECORD\n"
                          f"Copyright: {who}\nLicense: {licence}\n")
    return paragraphs


def site_packages_of(root: Path) -> Path:
    return root / "usr/lib/geminga/lib" / python_minor() / "site-packages"


def folder_version() -> str:
    """Return the version of the data folder's format.

    The version is read from the source text, because an import would need numpy.
    """
    line = re.search(r"^FOLDER_VERSION\b.*?= (\d+)", (CHECKOUT / "storage/format.py").read_text(), re.M)
    assert line, "storage/format.py has FOLDER_VERSION"
    return line[1]


def pip_install(target: Path, requirements: list[str], *, binary_only: bool) -> None:
    """Install requirements and their dependencies into a folder.

    binary_only: take wheels only.  Spark is published as a source archive, from which pip builds a wheel.
    """
    only = ["--only-binary", ":all:"] if binary_only else ["--use-pep517"]
    subprocess.run(["/usr/bin/python3", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                    "--root-user-action", "ignore", "--no-compile", *only, "--target", target, *requirements],
                   check=True, stdout=sys.stderr)
    for path in [path for pattern in NOT_NEEDED for path in target.glob(pattern)]:
        shutil.rmtree(path)


def compile_bytecode(root: Path) -> None:
    """Compile modules for their installed paths, because the broker's user may not write bytecode there."""
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
    """Build a Debian package from the folder `root` in the folder `out`, and return its path."""
    write_changelog(root, name, version)
    files = sorted(path for path in root.rglob("*") if not path.is_relative_to(root / "DEBIAN"))
    regular = [path for path in files if path.is_file() and not path.is_symlink()]
    sums = "".join(f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in regular)
    write(root / "DEBIAN/md5sums", sums)
    size_kib = sum(-(-path.lstat().st_size // 1024) if path in regular else 1 for path in files)
    write(root / "DEBIAN/control", CONTROL.format(
        name=name, version=version, architecture=architecture(), size_kib=size_kib, relations="\n".join(relations),
        description=description))
    for path in [root, *root.rglob("*")]:
        normalise_mode(path)
    package = package_path(out, name, version)
    part = package.with_suffix(".part")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zzstd", "-z3", "--build", root, part], check=True,
                   stdout=subprocess.DEVNULL)
    return part.rename(package)


def write_changelog(root: Path, name: str, version: str) -> None:
    text = (f"{name} ({version}) unstable; urgency=medium\n\n  * Made from its repository.\n\n"
            f" -- Geminga <geminga@localhost>  {formatdate()}\n")
    (root / "usr/share/doc" / name / "changelog.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def normalise_mode(path: Path) -> None:
    """Set a file's mode independent of umask and wheels.

    Only root may write, and only scripts and folders are executable.
    """
    if path.is_symlink():
        return
    is_program = path.is_dir() or (path.stat().st_mode & stat.S_IXUSR and path.read_bytes()[:2] == b"#!")
    path.chmod(0o755 if is_program else 0o644)


if __name__ == "__main__":
    sys.exit(main())
