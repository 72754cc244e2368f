"""Worlds under seeds keep every promise, are the same whenever they are run, and find what is wrong with owners that break one."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .canaries import CANARIES
from .model import Broken
from .simulate import command, simulate
from .step_canaries import FOLDERS_OUT_OF_REACH, NOTICED, OUT_OF_REACH, UNNOTICED, add_canaries, is_about
from .steps import calls, left_out

add_canaries()

SEEDS = int(os.environ.get("SEEDS", "200"))
EACH = 10                 # seeds of one test
CANARY_SEEDS = 60


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, EACH))
def test_every_promise_is_kept(first):
    for seed in range(first, first + EACH):
        try:
            simulate(seed)
        except BaseException:
            print(f"seed {seed} shows it: {command(seed)}")
            raise


@pytest.mark.slow
def test_a_seed_is_the_same_whenever_it_is_run():
    program = Path(__file__).with_name("simulate.py")
    for seed in 1, 2:
        identities = {simulate(seed)[0], simulate(seed)[0]}
        for hash_seed in "1", "2":
            found = subprocess.run([sys.executable, program, "--seed", str(seed), "--identity"], capture_output=True, text=True, check=True,
                                   env=os.environ | {"PYTHONHASHSEED": hash_seed})
            identities.add(found.stdout.split()[0])
        assert len(identities) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", CANARIES)
def test_a_broken_promise_is_found(name):
    _, promises = CANARIES[name]
    for seed in range(CANARY_SEEDS):
        try:
            simulate(seed, canary=name)
        except Broken as broken:
            assert broken.promise in promises, broken
            return
    pytest.fail(f"{CANARY_SEEDS} seeds have not found it")


@pytest.mark.slow
def test_each_step_has_a_canary_or_a_reason():
    """A new call that syncs, retires, renames or removes needs one of them."""
    modules = {module.__name__ for module in OUT_OF_REACH}
    missing = [call for call in calls() if call[0] not in modules and call[0].split(".")[2] not in FOLDERS_OUT_OF_REACH
               and not any(is_about(step, *call) for step in (*NOTICED.values(), *UNNOTICED))]
    assert not missing


def test_each_reason_is_about_a_call():
    for step in UNNOTICED:
        assert left_out(step)
