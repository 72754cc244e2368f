"""The command that shows sizes counts what it says."""
from collections import Counter

from . import sizes


def test_folders_files_and_classes_are_counted_and_the_largest_come_first(tmp_path, monkeypatch):
    for name, text in {"storage/__init__.py": '"""Caption."""\n', "storage/a.py": "x = 1\n" * 3,
                       "proto/pulsar_api_pb2.py": "y = 1\n" * 99,
                       "proto/b.py": "class B:\n    def f(self): ...\n    async def g(self): ...\n    def h(self):\n"
                                     "        def inner(): ...\n    class C:\n        def i(self): ...\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sizes, "ROOT", tmp_path)
    assert sizes.files_of_folders() == [(2, "storage"), (1, "proto")]
    assert sizes.lines_of_files() == [(7, "proto/b.py"), (3, "storage/a.py"), (1, "storage/__init__.py")]
    assert sizes.methods_of_classes() == [(3, "proto/b.py B"), (1, "proto/b.py C")]
    assert sizes.largest(Counter()) == []


def test_the_command_prints_rows_of_each_kind(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["sizes", "--count", "2"])
    sizes.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[::3]] == [
        "files of a folder", "lines of a file", "methods of a class"]
    assert len(lines) == 9
