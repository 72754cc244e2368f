"""Layers and rooms import only what is below them: supervisor -> workers -> storage -> proto, and never back."""
import ast
import functools
import sys
from pathlib import Path

import pytest

from .breaches import assert_none

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("proto", "storage", "workers", "supervisor")  # each may use itself and those before it
SOURCES = sorted(path.relative_to(ROOT) for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))
COMPILED = {".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".pyx", ".pxd", ".rs", ".go", ".o", ".a", ".so", ".pyd", ".dll",
            ".dylib"}


def imported(source):
    """List the absolute dotted names that a file imports, wherever in it: `from geminga.a import b` gives geminga.a.b.
    """
    return [name for _, name in imports(source)]


def imports(source):
    """List (line, name) of what a file imports."""
    return names_imported(ROOT / source, ("geminga", *source.parent.parts))


def nodes_of(file):
    """Yield a file's statements and what else is no expression: imports, functions and classes are all there."""
    ahead = [ast.parse(file.read_text())]
    while ahead:
        node = ahead.pop()
        yield node
        ahead += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]


@functools.cache      # several tests ask about every file
def names_imported(file, package):
    names = []
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            names += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else ()
            module = [*base, *filter(None, [node.module])]
            names += [(node.lineno, ".".join([*module, alias.name])) for alias in node.names]
    return names


def test_a_layer_uses_only_those_below_it():
    """No file imports from a layer above its own, not even inside a function or for annotations."""
    below = {layer: LAYERS[:number + 1] for number, layer in enumerate(LAYERS)}
    assert_none(f"{source}:{line}: {name} is of no layer that {source.parts[0]} may use"
                for source in SOURCES for line, name in imports(source)
                if name.split(".")[0] == "geminga" and name.split(".")[1] not in below[source.parts[0]])


def test_a_layer_is_imported_by_its_installed_name():
    """No file says `import proto`: this finds our folder from the checkout, and another project's package elsewhere."""
    assert_none(f"{source}:{line}: {name} is imported without geminga."
                for source in SOURCES for line, name in imports(source) if name.split(".")[0] in LAYERS)


# The rooms of a layer, from the ground up; "" is the layer's own folder.  Each may use itself and those before it.
ROOMS = {
    "proto": ("",),
    "storage": ("", "disk", "runtime", "ledgers", "cursors", "catalogue", "schemas", "delayed", "filters",
                "topics", "dispatch",
                "open_topics", "statistics", "transactions", "scalable", "commands", "enforcement", "recurring",
                "upkeep", "admin", "owner", "jobs", "tables", "offline", "standby"),
    "supervisor": ("", "host", "configuration", "wording", "load", "tables", "tasks", "admin", "console", "processes",
                   "standby", "cli", "main.py"),
    "workers": ("", "identity", "ports", "owners", "directory", "clients", "process", "pulsar_client", "messages",
                "dead_letters", "replication", "web", "http_messages"),
}


def room_of(name):
    """Return the room of a file, given as the parts of its path below the layer.

    The command's main.py stands in the supervisor's folder and uses all its rooms, so it counts as one above them.
    """
    return name[0] if len(name) > 1 or name == ("main.py",) else ""


def test_every_folder_of_a_layer_is_one_of_its_rooms():
    folders = {(source.parts[0], room_of(source.parts[1:])) for source in SOURCES}
    assert folders == {(layer, room) for layer, rooms in ROOMS.items() for room in rooms}


def test_a_room_uses_only_those_below_it():
    assert_none(f"{source}:{line}: {used} is in a room above {room_of(source.parts[1:]) or source.parts[0]}"
                for source in SOURCES for line, used in lines_and_files_used(source) if is_above(used, source))


def is_above(file, source):
    """Whether a file of the same layer is in a room above that of a source."""
    rooms = ROOMS[source.parts[0]]
    return file.parts[0] == source.parts[0] and \
        room_of(file.parts[1:]) not in rooms[:rooms.index(room_of(source.parts[1:])) + 1]


def test_the_checks_of_layers_and_rooms_see_what_is_above(tmp_path, monkeypatch):
    """A canary: each check names file and line of an import that goes up."""
    files = {"storage/disk/a.py": "import geminga.workers.b\nimport proto\nfrom ..owner import c\n",
             "storage/owner/c.py": "from ..disk import a\n", "workers/b.py": "from geminga.storage.disk import a\n"}
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    monkeypatch.setattr(sys.modules[__name__], "SOURCES", [Path(file) for file in files])
    for check, said in [
        (test_a_layer_uses_only_those_below_it,
         "storage/disk/a.py:1: geminga.workers.b is of no layer that storage may use"),
        (test_a_layer_is_imported_by_its_installed_name, "storage/disk/a.py:2: proto is imported without geminga."),
        (test_a_room_uses_only_those_below_it, "storage/disk/a.py:3: storage/owner/c.py is in a room above disk"),
    ]:
        with pytest.raises(AssertionError) as refused:
            check()
        assert str(refused.value) == f"1 of its kind:\n{said}"


def files_used(source):
    """Return our files that a file imports from, for types too.

    An __init__.py does not count, as it holds a caption only.
    """
    return {file for _, file in lines_and_files_used(source)}


def lines_and_files_used(source):
    """Yield (line, our file that is imported there)."""
    for line, name in imports(source):
        parts = name.split(".")[1:]
        for end in (len(parts), len(parts) - 1):
            file = Path(*parts[:end]).with_suffix(".py") if end > 0 and name.startswith("geminga.") else None
            if file is not None and is_file(ROOT / file):
                yield line, file
                break


is_file = functools.cache(Path.is_file)


def circles(uses):
    """Return the sets of files that reach each other by imports, given as file -> files it uses."""
    reached = {}
    for start in uses:
        seen, ahead = set(), [start]
        while ahead:
            new = uses.get(ahead.pop(), set()) - seen
            seen |= new
            ahead += new
        reached[start] = seen
    return {frozenset(other for other in seen if file in reached.get(other, ())) for file, seen in reached.items()
            if file in seen}


def test_no_two_files_import_each_other():
    """Imports for types count too: a circle is opened by a Protocol, or by a file for what both sides need."""
    assert circles({source: files_used(source) for source in SOURCES}) == set()


def test_no_two_folders_import_each_other():
    """A folder and one inside it are two: files that others are made of lie below those that put them together."""
    assert circles(folders_used()) == set()


def folders_used():
    """Return folder -> other folders whose files it imports."""
    uses = {folder_of(source): set() for source in SOURCES}
    for source in SOURCES:
        uses[folder_of(source)] |= {folder_of(file) for file in files_used(source)} - {folder_of(source)}
    return uses


def folder_of(source):
    """Return the folder of a file; the supervisor's main.py is a folder to itself, above all others."""
    return source if source.parts == ("supervisor", "main.py") else source.parent


_NIGHT = {"storage/jobs/night.py": "from .views import parts\n", "storage/jobs/arrays.py": ""}


@pytest.mark.parametrize(("files", "circle"), [
    ({"storage/jobs/views/parts.py": "from geminga.storage.jobs import arrays\n"},
     {"storage/jobs", "storage/jobs/views"}),
    ({"storage/jobs/views/parts.py": "from ..tables import rows\n",
      "storage/jobs/tables/rows.py": "def f():\n    from .. import arrays\n"},
     {"storage/jobs", "storage/jobs/views", "storage/jobs/tables"}),
    ({"storage/jobs/views/parts.py": ""}, None)])
def test_the_check_of_folders_sees_circles_between_files_that_are_in_none(tmp_path, monkeypatch, files, circle):
    """A canary: two files of one folder may make a circle with another folder, and no file is in a circle."""
    files = _NIGHT | files
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    monkeypatch.setattr(sys.modules[__name__], "SOURCES", [Path(file) for file in files])
    assert circles(folders_used()) == ({frozenset(map(Path, circle))} if circle else set())


def test_a_circle_is_seen_however_long_it_is():
    assert circles({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"d2"}, "d2": set()}) == {frozenset("abc")}
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == set()


def test_the_check_of_arrows_sees_every_way_to_import(tmp_path, monkeypatch):
    """A canary: absolute, relative, nested and aliased imports are all resolved to the same name."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    source = Path("storage/dispatch/order.py")
    (tmp_path / source).parent.mkdir(parents=True)
    (tmp_path / source).write_text(
        "import geminga.workers.loop as l\n"
        "from geminga import workers\n"
        "from geminga.workers import loop\n"
        "def f():\n    from ...workers import loop\n"
        "from . import shared\n"
        "from ..options import StorageOptions\n"
    )
    assert sorted(imported(source)) == [
        "geminga.storage.dispatch.shared",
        "geminga.storage.options.StorageOptions",
        "geminga.workers",
        "geminga.workers.loop", "geminga.workers.loop", "geminga.workers.loop",
    ]


def test_the_bootstrap_needs_only_the_standard_library():
    """The bootstrap runs before anything is installed, on the interpreter that the user happens to have."""
    assert [
        name for name in imported(Path("supervisor/bootstrap.py")) if name.split(".")[0] not in sys.stdlib_module_names
    ] == []


def test_no_neighbour_of_the_bootstrap_hides_the_standard_library():
    """A script's own folder comes first on its path: supervisor/signal.py would replace the standard `signal` for it.
    """
    neighbours = {path.stem for path in (ROOT / "supervisor").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert neighbours & sys.stdlib_module_names == set()


def test_no_code_of_ours_is_compiled():
    """The broker is Python throughout: no extension's source, no library, no build step."""
    assert [str(path) for layer in LAYERS for path in (ROOT / layer).rglob("*") if path.suffix in COMPILED] == []
    assert not (ROOT / "setup.py").exists()
    assert "ext-modules" not in (ROOT / "pyproject.toml").read_text()


def test_the_namespace_stays_open():
    """`geminga` has no __init__.py: the layers are separate folders that share the name only once installed."""
    assert not (ROOT / "geminga").exists()
    assert not (ROOT / "__init__.py").exists()
