"""Pages agree with the code: the tables of policies, the files and functions that pages name."""
import ast
import re
from functools import cache
from pathlib import Path

import pytest

from geminga.supervisor.configuration.documents import policies_in_force, policies_without_effect

ROOT = Path(__file__).resolve().parent.parent
POLICIES = (ROOT / "docs/policies.md").read_text()
DOCS = sorted((ROOT / "docs").glob("*.md"))
TOURS = [ROOT / "docs" / name for name in ("architecture.md", "source-tour.md")]
ASSIGNMENTS = ast.Assign | ast.AnnAssign
FOLDERS = "proto|storage|workers|supervisor|systemd|tests|docs"

each_page = pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
each_tour = pytest.mark.parametrize("page", [page for page in TOURS if page.exists()], ids=lambda page: page.name)


@pytest.mark.parametrize("table", [policies_in_force(), policies_without_effect()], ids=["in force", "without effect"])
def test_the_page_has_the_table_of_policies(table):
    """Made anew by `python -m geminga.supervisor.configuration.documents`."""
    assert table in POLICIES


def files_named(text):
    """Paths from the checkout's root, such as storage/format.py, storage/dispatch/ or tests/crash/*.py."""
    return re.findall(rf"(?<![\w./-])(?:{FOLDERS})/[\w*./-]*[\w*/]", text)


def names_beside_files(text):
    """(file, name) of names that stand behind a file: `storage/owner/owner.py` `Owner.receive`, `Owner.end_pass`."""
    for path, names in re.findall(rf"`((?:{FOLDERS})/[\w/]+\.py)`((?:,? `[A-Za-z_][\w.]*`)+)", " ".join(text.split())):
        yield from ((path, name) for name in re.findall(r"`([\w.]+)`", names))


@cache
def names_defined(path):
    """Functions, classes and constants of a file; of classes also `Class.method` and `Class.field`."""
    names = set()

    def add(node, prefix):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(prefix + node.name)
        targets = getattr(node, "targets", [getattr(node, "target", node)]) if isinstance(node, ASSIGNMENTS) else []
        names.update(prefix + name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                add(inner, f"{node.name}.")

    for node in ast.parse((ROOT / path).read_text()).body:
        add(node, "")
    return names


@each_page
def test_every_file_that_a_page_names_exists(page):
    assert [path for path in files_named(page.read_text()) if not any(ROOT.glob(path.rstrip("/")))] == []


@each_tour
def test_every_function_named_beside_its_file_exists(page):
    beside = list(names_beside_files(page.read_text()))
    assert beside
    assert [(path, name) for path, name in beside if name not in names_defined(path)] == []


def test_the_check_of_pages_sees_files_and_names():
    """A canary: paths in code and in sentences, globs and folders, names behind a file over a line's end."""
    text = "See `storage/a.py` `Owner.receive`,\n`plan` and `storage/b/`. Run tests/crash/*.py, not http://host/docs/x.md"
    assert files_named(text) == ["storage/a.py", "storage/b/", "tests/crash/*.py"]
    assert list(names_beside_files(text)) == [("storage/a.py", "Owner.receive"), ("storage/a.py", "plan")]
