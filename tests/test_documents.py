"""Pages agree with the code and with each other: generated parts, links, and the files, functions and scripts named."""
import ast
import re
import runpy
from functools import cache
from pathlib import Path

import pytest

from geminga.proto import names as proto_names
from geminga.proto.job_properties import PRIORITY_PROPERTY, TTL_PROPERTY
from geminga.storage.catalogue.policy_table import TABLE
from geminga.storage.commands.consumers import QUARANTINE
from geminga.storage.filters.sieve import FILTER
from geminga.supervisor import bootstrap
from geminga.supervisor.configuration import config
from geminga.supervisor.configuration.config import KEYS
from geminga.supervisor.configuration.properties import REFUSED, SPECIAL, TRANSLATED, UNMET

from .bench import picture
from .breaches import assert_none

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
DOCS_AND_README = [ROOT / "README.md", *DOCS]
PAGES = [*DOCS_AND_README, *sorted((ROOT / "systemd/runbook").glob("*.md"))]
TOURS = [ROOT / "docs" / name for name in ("architecture.md", "source-tour.md")]
ASSIGNMENTS = ast.Assign | ast.AnnAssign
FOLDERS = "proto|storage|workers|supervisor|systemd|tests|docs"


def name_of(page):
    return page.relative_to(ROOT).as_posix()


each_tour = pytest.mark.parametrize("page", [page for page in TOURS if page.exists()], ids=lambda page: page.name)


# -- generated pages

REFERENCE = runpy.run_path(str(ROOT / "systemd/reference.py"))


@pytest.mark.parametrize("page", REFERENCE["PAGES"], ids=lambda page: page.name)
def test_generated_parts_of_a_page_are_those_that_the_code_gives(page):
    """Generated parts are what `python systemd/reference.py` writes now."""
    assert page.read_text() == REFERENCE["rewritten"](page.read_text())


def test_the_picture_of_benchmarks_has_the_figures_of_their_table():
    """The picture is what `python -m tests.bench.picture` draws now."""
    assert picture.PICTURE.read_text() == picture.drawn(picture.PAGE.read_text())


def test_every_generated_part_is_in_a_page():
    pages = "".join(page.read_text() for page in REFERENCE["PAGES"])
    assert set(re.findall(r"<!-- begin ([\w ]+):", pages)) == REFERENCE["PARTS"].keys()


def test_the_page_of_the_configuration_has_every_key_and_every_key_of_pulsars_that_means_something():
    text = (ROOT / "docs/configuration.md").read_text()
    shown = re.findall(r"^- \*\*`(\w+) = ", text, re.MULTILINE)
    assert shown == [key.rpartition(".")[2] for key in KEYS]
    assert [name for name in [*TRANSLATED, *SPECIAL, *REFUSED, *UNMET] if f"`{name}`" not in text] == []


def test_the_page_of_job_queues_has_every_property_that_the_broker_reads_or_writes():
    known = {PRIORITY_PROPERTY, TTL_PROPERTY, FILTER, QUARANTINE, *proto_names.DEAD_LETTER_PROPERTIES,
             proto_names.REDRIVEN_FROM, proto_names.ONLY_FOR, proto_names.SCHEDULE, proto_names.SCHEDULED_FOR}
    text = (ROOT / "docs/job-queues.md").read_text()
    assert set(re.findall(r"^\| `(geminga\.[a-z.-]+)` \|", text, re.MULTILINE)) == known


def test_the_page_of_policies_has_every_policy():
    """Each policy is listed with a description, its fields and its verbs, or with a reason why it has no effect."""
    text = (ROOT / "docs/policies.md").read_text()
    assert TABLE
    for policy in TABLE.values():
        if policy.where:
            chapter = re.search(rf"^### {re.escape(policy.name)}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)[1]
            assert policy.doc in " ".join(chapter.split())
            assert [part.json for part in policy.parts if part.json and f"`{part.json}`" not in chapter] == []
            verbs = [policy.verb_at(level) for level in policy.levels]
            assert [verb for verb in verbs if f"set-{verb}`" not in chapter] == []
        else:
            row = rf"^\| `{re.escape(policy.name)}` \| .* \| {re.escape(policy.why)} \|$"
            assert re.search(row, text, re.MULTILINE)


# -- files and functions

def files_named(text):
    """Return the paths from the checkout's root that a text names, such as storage/format.py or tests/crash/*.py."""
    return re.findall(rf"(?<![\w./-])(?:{FOLDERS})/[\w*./-]*[\w*/]", text)


def names_beside_files(text):
    """Return (file, name) for names behind a file in code: `storage/owner/owner.py` `Owner.receive`, `Owner.end_pass`.
    """
    for path, names in re.findall(rf"`((?:{FOLDERS})/[\w/]+\.py)`((?:,? `[A-Za-z_][\w.]*`)+)", " ".join(text.split())):
        yield from ((path, name) for name in re.findall(r"`([\w.]+)`", names))


@cache
def names_defined(path):
    """Return the functions, classes and constants of a file, and each `Class.method` and `Class.field`."""
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


def test_every_file_that_a_page_names_exists():
    assert_none(f"{name_of(page)}: {path} does not exist" for page in DOCS_AND_README
                for path in files_named(page.read_text()) if not any(ROOT.glob(path.rstrip("/"))))


@pytest.mark.slow
@each_tour
def test_every_function_named_beside_its_file_exists(page):
    beside = list(names_beside_files(page.read_text()))
    assert beside
    assert [(path, name) for path, name in beside if name not in names_defined(path)] == []


def test_the_check_of_pages_sees_files_and_names():
    """A canary: the check sees paths in code and in sentences, globs and folders, and names behind a file over two
    lines.
    """
    text = ("See `storage/a.py` `Owner.receive`,\n`plan` and `storage/b/`. "
            "Run tests/crash/*.py, not http://host/docs/x.md")
    assert files_named(text) == ["storage/a.py", "storage/b/", "tests/crash/*.py"]
    assert list(names_beside_files(text)) == [("storage/a.py", "Owner.receive"), ("storage/a.py", "plan")]


# -- links

def links_of(text):
    """Return (path, anchor) of links to other pages and places; either may be empty.  Links inside code do not count.
    """
    for target in re.findall(r"\]\(([^()\s]+)\)", without_code(text)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield path, anchor


def without_code(text):
    return re.sub(r"^(?:```.*?^```| {4}.*?)$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors_of(text):
    """Return the names by which headings are linked to: small letters, digits, `_`, and `-` for each blank."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_link_leads_to_a_page_and_a_heading():
    assert_none(f"{name_of(page)}: {path}#{anchor} leads nowhere" for page in PAGES
                for path, anchor in links_of(page.read_text())
                if not is_place((page.parent / path).resolve() if path else page, anchor))


def is_place(page, anchor):
    return page.exists() and (not anchor or anchor in anchors_of(page.read_text()))


def test_every_page_is_linked_from_the_index():
    """docs/README.md names each page of docs/, and the repository's README names the index."""
    linked = {path for path, _ in links_of((ROOT / "docs/README.md").read_text())}
    assert {page.name for page in DOCS} - {"README.md"} <= linked
    assert "docs/README.md" in {path for path, _ in links_of((ROOT / "README.md").read_text())}


def test_readme_is_short():
    """README has at most 150 lines; longer explanations have pages of their own."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_check_of_links_sees_links_and_headings():
    """A canary: the check sees links in sentences and tables, none in code, and headings with code and punctuation."""
    text = ("# The `x` page, now\n[a](b.md#c) | [d](#e) `[f](g)` [h](https://i/j)\n"
            "    [k](l)\n```text\n# m\n[n](o)\n```\n")
    assert list(links_of(text)) == [("b.md", "c"), ("", "e")]
    assert anchors_of(text) == {"the-x-page-now"}


# -- programs and configurations that pages show

def blocks_of(language):
    """Return (page's name, text) of each code block in a language, over all pages."""
    blocks = [(page.name, text) for page in PAGES
              for text in re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)]
    assert blocks
    return blocks


@pytest.mark.parametrize(("name", "text"), blocks_of("toml"))
def test_every_configuration_that_a_page_shows_is_one(name, text, tmp_path):
    (tmp_path / "geminga.toml").write_text(text)
    config.load(tmp_path / "geminga.toml", {}, {})


@pytest.mark.parametrize(("name", "text"), blocks_of("python"))
def test_every_program_that_a_page_shows_can_be_compiled(name, text):
    compile(text, name, "exec")


# -- scripts

def scripts_of(text):
    """Find lines that run a script or module of the checkout: sh FILE, python3 FILE, python -m MODULE.

    Yields ("file" or "module", its name, its options).
    """
    for line in re.findall(r"^ {4}(.*)$", text, re.MULTILINE):
        command = line.partition(" #")[0]
        if match := re.match(r"(sh|(?:\.venv/bin/)?python3?(?: -m)?) ((?:tests[.]|[a-z]+/)[\w./]+)(.*)", command):
            kind = "module" if match[1].endswith("-m") else "file"
            yield kind, match[2], re.findall(r"(?<=[\s\[])--[a-z][\w-]*", match[3])


def options_of(script):
    """Return the options that a script may take: quoted words of its folder's files, as scripts share declarations."""
    texts = [path.read_text() for path in script.parent.glob(f"*{script.suffix}")]
    return {f"--{word}" for text in texts for word in re.findall(r"(?:--|[\"'])([a-z][a-z-]*)", text)}


@pytest.mark.slow
def test_every_script_and_option_that_a_page_runs_is_there():
    assert_none(f"{name_of(page)}: {name} with {options} cannot be run" for page in DOCS_AND_README
                for kind, name, options in scripts_of(page.read_text()) if not is_script(kind, name, options))


def is_script(kind, name, options):
    path = ROOT / (name.replace(".", "/") if kind == "module" else name)
    script = next((one for one in (path, path.with_suffix(".py"), path / "__main__.py") if one.is_file()), None)
    return script is not None and set(options) <= options_of(script)


def test_bootstrap_knows_the_verbs_that_pages_name():
    verbs = {verb for page in PAGES for verb in re.findall(r"supervisor/bootstrap\.py (\w+)", page.read_text())}
    assert verbs <= bootstrap.PROGRAMS.keys() and {"serve", "test"} <= verbs
