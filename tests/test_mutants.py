"""Each bug of the list can be put into the sources as they are, and names tests that exist."""
import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest

from .breaches import assert_none
from .mutants.bugs import ROOT, all_bugs
from .mutants.checkout import CAUGHT, LATE, SURVIVED, Checkout

BUGS = all_bugs()


@cache
def functions_of(file):
    """Return the names of a file's test functions."""
    found = ast.walk(ast.parse((ROOT / file).read_text()))
    return {node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("test_")}


def impossible() -> Iterator[str]:
    for bug in BUGS:
        try:
            ast.parse(bug.put_in((ROOT / bug.file).read_text()))
        except (ValueError, SyntaxError) as error:
            yield f"{bug}: {error}"


@pytest.mark.slow
def test_each_bug_can_be_put_in():
    """A bug's old text stands in its file exactly once, and the file with its new text is still Python."""
    assert_none(impossible())


@pytest.mark.slow
def test_each_bug_has_tests_that_there_are():
    assert [str(bug) for bug in BUGS if not bug.tests] == []
    named = {test for bug in BUGS for test in bug.tests}
    missing = []
    for test in sorted(named):
        file, _, function = test.partition("::")
        if not (ROOT / file).is_file() or (function and function.partition("[")[0] not in functions_of(file)):
            missing.append(test)
    assert missing == []


def test_no_bug_is_there_twice():
    assert [again for again, count in Counter((bug.file, bug.old, bug.new) for bug in BUGS).items() if count > 1] == []


@pytest.mark.slow
def test_a_copy_is_tested_for_what_it_is(tmp_path):
    """Tests of a copy import geminga from the copy: its bug is caught, and former bugs leave no trace."""
    checkout, tests = Checkout(tmp_path), ("tests/proto/test_varints.py",)
    right = checkout.text("proto/varints.py")
    assert right == (ROOT / "proto" / "varints.py").read_text()
    wrong = right.replace("if byte == size - 1", "if byte == size - 2")
    assert len(wrong) == len(right) and wrong != right
    assert checkout.run(tests, 120)[0] == SURVIVED
    checkout.write("proto/varints.py", wrong)
    assert checkout.run(tests, 120)[0] == CAUGHT
    checkout.write("proto/varints.py", right)
    assert checkout.run(tests, 120)[0] == SURVIVED
    assert checkout.run(tests, 0.01)[0] == LATE
