"""Every test has an assertion that is sure to run, and no wait fails because a machine is slow.

An assertion in a loop over nothing never runs.  So a test has to assert something in its own body outside of loops, or
in a loop over values that the test itself writes down.  Where a loop goes over something made or found, an `assert
found` before the loop is enough.

A wait catches what hangs, so it lasts HANG_SECONDS (tests/harness.py) by itself.  A test that gives a time of its own
promises that time, and has a name for it.
"""
import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from .breaches import assert_none
from .harness import HANG_MS, HANG_SECONDS

HERE = Path(__file__).resolve().parent
FILES = sorted(path.relative_to(HERE.parent) for path in HERE.rglob("*.py"))
# functions with these prefixes fail by themselves
SAYS = ("assert_", "check", "eventually", "fail", "raises", "warns")
# functions that wait, and which argument of theirs is a number of seconds
WAITS = {"eventually": 1, "wait_replaced": 3, "ended": 0, "see": 1}
# names of arguments, and functions with one argument, for seconds or milliseconds: the least and the most that are
# refused.  Less than the least watches that nothing comes.
LIMITS = {"timeout": (10, HANG_SECONDS), "timeout_millis": (5_000, HANG_MS), "receive": (5_000, HANG_MS),
          "read_next": (5_000, HANG_MS), "wait": (10, HANG_SECONDS), "join": (10, HANG_SECONDS),
          "settimeout": (20, HANG_SECONDS)}
# calls whose result has something in it if their first argument has
KEEPS = ("enumerate", "list", "permutations", "reversed", "set", "sorted", "tuple", "zip")
VIEWS = ("items", "keys", "split", "values")
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef

Known = dict[str, list[ast.expr]]      # name -> every expression that is assigned to it


def has_something(node: ast.expr, known: Known) -> bool:
    """Whether a loop over the expression is sure to go round, judged by values that the test itself writes down."""
    match node:
        case ast.Constant(value=value):
            return bool(value)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return any(not isinstance(part, ast.Starred) or has_something(part.value, known) for part in parts)
        case ast.Dict(keys=keys):
            return bool(keys)
        case ast.Name(id=name):
            return bool(known.get(name)) and all(has_something(value, known | {name: []}) for value in known[name])
        case ast.Call(func=ast.Name(id="range"), args=bounds):
            return not all(isinstance(bound, ast.Constant) for bound in bounds) or bool(
                range(*(bound.value for bound in bounds))
            )
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[first, *_]) if name in KEEPS:
            return has_something(first, known)
        case ast.Call(func=ast.Attribute(value=held, attr=name)) if name in VIEWS:
            return has_something(held, known)
        case ast.ListComp(generators=rounds) | ast.GeneratorExp(generators=rounds) | ast.SetComp(generators=rounds) | \
                ast.DictComp(generators=rounds):
            return all(not one.ifs and has_something(one.iter, known) for one in rounds)
        case ast.BinOp(left=left, op=ast.Add() | ast.BitOr(), right=right):
            return has_something(left, known) or has_something(right, known)
        case ast.IfExp(body=one, orelse=other):
            return has_something(one, known) and has_something(other, known)
    return False


def assigned(nodes: list[ast.stmt]) -> Known:
    found: Known = {}
    for node in nodes:
        for one in ast.walk(node):
            targets = (
                one.targets
                if isinstance(one, ast.Assign)
                else [one.target]
                if isinstance(one, ast.AnnAssign) and one.value
                else []
            )
            for target in targets:
                each = [(target, one.value)]
                if isinstance(target, ast.Tuple) and isinstance(one.value, ast.Tuple):
                    each = list(zip(target.elts, one.value.elts, strict=False))
                for name, value in each:
                    if isinstance(name, ast.Name):
                        found.setdefault(name.id, []).append(value)
    return found


def parameters(test: FUNCTIONS) -> Known:
    """Return the parameters of a test as names with something in them: their values are written in its decorators."""
    found: Known = {}
    for decorator in test.decorator_list:
        match decorator:
            case ast.Call(func=ast.Attribute(attr="parametrize"), args=[ast.Constant(value=names), *_]):
                found |= {name.strip(): [ast.Constant(value=1)] for name in names.split(",")}
    return found


def assertions(nodes: list[ast.AST], known: Known, is_sure: bool = True) -> Iterator[bool]:
    """Yield for each assertion whether it is sure to be reached."""
    for node in nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() | ast.ClassDef():
                continue
            case ast.For(iter=over, body=body, orelse=rest) | ast.AsyncFor(iter=over, body=body, orelse=rest):
                yield from assertions([over, *rest], known, is_sure)
                yield from assertions(body, known, is_sure and has_something(over, known))
                continue
            case ast.While(test=condition, body=body):
                yield from assertions(body, known, is_sure and has_something(condition, known))
                continue
            case ast.Assert(test=ast.Call(func=ast.Name(id="all"), args=[ast.GeneratorExp() as each])):
                yield is_sure and all(has_something(one.iter, known) for one in each.generators)
                continue
            case ast.Assert() | ast.Raise():
                yield is_sure
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name.startswith(SAYS):
                yield is_sure
        yield from assertions(list(ast.iter_child_nodes(node)), known, is_sure)


def unsure(tree: ast.Module) -> list[tuple[int, str]]:
    """Return (line, name) of the tests that assert something, but nothing that is sure to be reached."""
    of_module = assigned([node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)])
    found = []
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS) and node.name.startswith("test_"):
            said = list(assertions(node.body, of_module | assigned(node.body) | parameters(node)))
            if said and not any(said):
                found.append((node.lineno, node.name))
    return found


def hasty(tree: ast.Module) -> list[tuple[int, str]]:
    """Return (line, text) of the calls that are given a number as the time to wait for what has to come.

    A time that is promised has a name, so it is not seen here.
    """
    return [(node.lineno, ast.unparse(node)) for node in ast.walk(tree) if isinstance(node, ast.Call)
            and any(isinstance(value, ast.Constant) and least <= (value.value or 0) < most
                    for value, (least, most) in limits_of(node))]


def limits_of(call: ast.Call) -> Iterator[tuple[ast.expr, tuple[int, int]]]:
    """Yield each argument of a call that limits a wait, with the numbers that are refused there."""
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    if name in WAITS:
        yield from ((value, (0, HANG_SECONDS)) for value in call.args[WAITS[name]:][:1])
        yield from ((word.value, (0, HANG_SECONDS)) for word in call.keywords if word.arg == "seconds")
    if name in LIMITS:
        yield from ((value, LIMITS[name]) for value in call.args[:1])
    yield from ((word.value, LIMITS[word.arg]) for word in call.keywords if word.arg in ("timeout", "timeout_millis"))


def breaches() -> Iterator[str]:
    for file in FILES:
        tree = ast.parse((HERE.parent / file).read_text())
        yield from (f"{file}:{line}: {call} gives a number for its limit" for line, call in hasty(tree))
        if file.name.startswith("test_"):
            yield from (f"{file}:{line}: no assertion of {name} is sure to be reached" for line, name in unsure(tree))


@pytest.mark.slow
def test_assertions_are_sure_to_be_reached_and_waits_long_enough_for_a_busy_machine():
    assert_none(breaches())


def test_the_look_at_waits_sees_every_kind():
    """A canary: waits with a number are found, with every function that waits."""
    waits = ["eventually(it, 5, 'it')", "own.wait_replaced('owner', 0, pid, 1)", "own.ended(30)",
             "eventually(it, seconds=2)", "browser.see('it', 20)", "link(timeout=60)",
             "link.receive(timeout_millis=9000)", "consumer.receive(5000)", "process.wait(10)", "link.settimeout(60)"]
    right = ["eventually(it)", "own.ended(BACK_SECONDS)", "link.settimeout(0.1)", "link.settimeout(None)",
             "link.receive(200)", "link(timeout=600)", "life.wait(2000)",
             "consumer.receive(HANG_MS)"]
    source = "\n".join([*waits, *right])
    assert hasty(ast.parse(source)) == list(enumerate(waits, start=1))


LOOPS = """
def test_sure_by_itself(found):
    assert found
    for one in found:
        assert one

def test_sure_by_its_values():
    for one in (1, 2):
        assert one

def test_sure_by_what_it_made():
    made = [name for name in "abc"]
    for number, one in enumerate(made):
        assert one

def test_sure_by_one_of_two():
    number, made = 0, {"a": 1}
    for one, value in made.items():
        assert one

def test_sure_by_what_refuses(found):
    with pytest.raises(ValueError):
        found()
    for one in found:
        assert one

def test_unsure(found):
    for one in found:
        assert one

def test_unsure_in_another_loop(found):
    for one in (1, 2):
        for other in found[one]:
            assert other

def test_unsure_by_a_filter():
    for one in [number for number in (1, 2) if number > 2]:
        assert one

def test_unsure_by_all(found):
    assert all(one > 0 for one in found)

def test_unsure_while(found):
    while found:
        assert found.pop()

def test_that_leaves_it_to_others(found):
    for one in found:
        look(one)
"""


def test_the_look_at_loops_sees_every_kind():
    """A canary: tests whose assertions may never run are found, and no others."""
    assert [name for _, name in unsure(ast.parse(textwrap.dedent(LOOPS)))] == [
        "test_unsure", "test_unsure_in_another_loop", "test_unsure_by_a_filter", "test_unsure_by_all",
        "test_unsure_while"]
