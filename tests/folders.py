"""Removes the folders of fixtures with the fixtures, unless a test failed meanwhile.

pytest keeps what fixtures made by `tmp_path_factory.mktemp` until its end.  A broker's folder has 128 MiB, as its
journals are laid out in advance, so a run had 8 GiB, which are memory where tests run in /dev/shm.
"""
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_mktemp = pytest.TempPathFactory.mktemp
_setting_up: list[pytest.FixtureDef[Any]] = []      # the innermost last
_folders: dict[pytest.FixtureDef[Any], tuple[int, list[Path]]] = {}      # tests that had failed before; its folders


def _noted(factory: pytest.TempPathFactory, basename: str, numbered: bool = True) -> Path:
    made = _mktemp(factory, basename, numbered)
    if _setting_up:
        _folders[_setting_up[-1]][1].append(made)
    return made


def configure() -> None:
    pytest.TempPathFactory.mktemp = _noted      # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any],
                         request: pytest.FixtureRequest) -> Generator[None, object, object]:
    _setting_up.append(fixturedef)
    _folders[fixturedef] = request.session.testsfailed, []
    try:
        return (yield)
    finally:
        _setting_up.pop()


def pytest_fixture_post_finalizer(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
    failed, folders = _folders.pop(fixturedef, (0, []))
    if request.session.testsfailed == failed:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
