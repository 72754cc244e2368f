"""Worlds under seeds keep every promise, are the same in each run, and find owners that break a promise."""
import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from .canaries import CANARIES, patched
from .model import Broken
from .scenes import play
from .simulate import MEMORY, TRANSACTIONS_EACH, command, has_transactions, make_template, simulate
from .step_canaries import FOLDERS_OUT_OF_REACH, NOTICED, OUT_OF_REACH, SCENES, UNNOTICED, add_canaries, is_about
from .steps import calls, left_out
from .transaction_canaries import TRANSACTION_CANARIES

add_canaries()

SEEDS = int(os.environ.get("SEEDS", "200"))
EACH = 10                 # seeds of one test
CANARY_SEEDS = 60
# A broken promise that hardly any world shows, and a seed that does: it changes with what the worlds do.
RARE = {"the_name_of_a_delayed_index_is_not_synced": 3_323, "a_decision_is_not_synced": 2_269,
        "another_owner_is_not_told_again_what_was_added": 314, "files_of_a_large_checkpoint_are_not_synced": 140,
        "what_is_unloaded_is_not_put_on_disk": 61, "windows_of_delayed_messages_are_not_synced": 156}
SCENE_SEEDS = 25


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
    for seed in 1, 2, TRANSACTIONS_EACH - 1:
        identities = {simulate(seed)[0], simulate(seed)[0]}
        for hash_seed in "1", "2":
            found = subprocess.run([sys.executable, program, "--seed", str(seed), "--identity"], capture_output=True,
                                   text=True, check=True, env=os.environ | {"PYTHONHASHSEED": hash_seed})
            identities.add(found.stdout.split()[0])
        assert len(identities) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", CANARIES)
def test_a_broken_promise_is_found(name):
    _find(name, CANARIES[name][1], has=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSACTION_CANARIES)
def test_a_broken_promise_about_transactions_is_found(name):
    _find(name, TRANSACTION_CANARIES[name][1], has=True)


def _find(name, promises, *, has):
    """Assert that a world with or without transactions finds a canary by one of these promises."""
    seeds = (seed for seed in itertools.count(RARE.get(name, 0)) if has_transactions(seed) == has)
    for seed in itertools.islice(seeds, CANARY_SEEDS):
        try:
            simulate(seed, canary=name)
        except Broken as broken:
            assert broken.promise in promises, broken
            return
    pytest.fail(f"{CANARY_SEEDS} seeds have not found it")


@pytest.fixture(scope="module", autouse=True)
def template():
    make_template()


def _play(scene, seed):
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        play(scene, seed, Path(folder))


@pytest.mark.slow
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_every_promise_is_kept_in_a_scene(scene):
    for seed in range(SCENE_SEEDS):
        _play(scene, seed)


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "step"), [(scene, step) for scene, steps in SCENES.items() for step in steps],
                         ids=lambda value: getattr(value, "call", "") or value.__name__)
def test_a_step_left_out_is_found_in_its_scene(scene, step):
    with patched(iter(left_out(step))):
        for seed in range(SCENE_SEEDS):
            try:
                _play(scene, seed)
            except Broken:
                return
    pytest.fail(f"{SCENE_SEEDS} seeds have not found it")


@pytest.mark.slow
def test_each_step_has_a_canary_or_a_reason():
    """Every call that syncs, retires, renames or removes has a canary or a written reason for none."""
    modules = {module.__name__ for module in OUT_OF_REACH}
    known = [*NOTICED.values(), *itertools.chain(*SCENES.values()), *UNNOTICED]
    missing = [call for call in calls() if call[0] not in modules and call[0].split(".")[2] not in FOLDERS_OUT_OF_REACH
               and not any(is_about(step, *call) for step in known)]
    assert not missing


def test_each_reason_is_about_a_call():
    assert [step for step in UNNOTICED if not left_out(step)] == []
