"""Every call that syncs, retires, renames or removes in storage/, and how the simulation notices that it is left out.

    calls()              {(module, function): [text of each such call, in order]} of all files of storage/
    left_out(step)       a patch that replaces one of them by None

A step is (function, how the text of the call begins, its number among such calls of that function).
"""
import ast
import functools
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import geminga.storage

NAMES = {"fsync", "fdatasync", "sync", "sync_all", "write_anew", "write_again", "write_checkpoint", "_retire", "retire",
         "rescue", "make_sure", "rename", "unlink", "rmtree", "rmdir", "remove"}
STORAGE = Path(geminga.storage.__path__[0])


class Step(NamedTuple):
    function: Callable
    call: str
    number: int = 0


def _is_step(node: ast.AST) -> bool:
    """Whether the syntax node is a call that syncs, renames, retires or removes.

    `replace` counts only with one argument, as the method of a path.
    """
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    is_path_replace = name == "replace" and len(node.args) == 1 and not node.keywords
    is_list_remove = name == "remove" and len(node.args) == 1      # `remove` of a path or a folder has no argument
    return is_path_replace or (name in NAMES and not is_list_remove)


def _steps_in(function: ast.AST) -> list[ast.Call]:
    """Return the steps in the function, in the order of its lines."""
    found = [node for node in ast.walk(function) if _is_step(node)]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child


def calls() -> Iterator[tuple[str, str, str, int]]:
    """Yield (module, function, text of the call, number among equal calls) for each step in storage/."""
    for path in sorted(STORAGE.rglob("*.py")):
        names = path.relative_to(STORAGE).with_suffix("").parts
        module = ".".join(("geminga", "storage", *names)).removesuffix(".__init__")
        for function, node in _functions(ast.parse(path.read_text())):
            texts: list[str] = []
            for call in _steps_in(node):
                text = ast.unparse(call)
                yield module, function, text, texts.count(text)
                texts.append(text)


class _LeaveOut(ast.NodeTransformer):
    def __init__(self, call: ast.Call):
        self._call = call

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if node is self._call:
            return ast.copy_location(ast.Constant(None), node)
        return self.generic_visit(node)


def left_out(step: Step) -> list[tuple[object, str, Callable]]:
    """Return [(holder of the function, its name, the function without that call)] for every module that imported it."""
    module = sys.modules[step.function.__module__]
    *classes, name = step.function.__qualname__.split(".")
    where = functools.reduce(getattr, classes, module)
    tree = ast.parse(textwrap.dedent(inspect.getsource(step.function)))
    [call] = [call for call in _steps_in(tree) if ast.unparse(call).startswith(step.call)][step.number:step.number + 1]
    made: dict[str, Callable] = {}
    tree = ast.fix_missing_locations(_LeaveOut(call).visit(tree))
    exec(compile(tree, f"<{name} without {step.call}>", "exec"), vars(module), made)
    if classes:
        return [(where, name, made[name])]
    users = [module for path, module in sorted(sys.modules.items())
             if path.startswith(("geminga.storage", "tests.")) and vars(module).get(name) is step.function]
    return [(module, name, made[name]) for module in users]
