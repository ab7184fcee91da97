"""A `callbacks.py` of the working folder and this project's package `callbacks`, side by side."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from commands import ROOT

import callbacks as package
from tsr_lightning.cli.user_callbacks import keep_callbacks_apart

THEIRS = """
from dataclasses import dataclass

from callbacks import Evaluation


@dataclass
class Mine(Evaluation):
    word: "str" = "mine"
"""


@pytest.fixture(autouse=True)
def _package_is_restored() -> Iterator[None]:
    before = dict(vars(package)), list(package.__path__)
    yield
    vars(package).clear()
    vars(package).update(before[0])
    package.__path__ = before[1]
    sys.modules.pop("callbacks.more", None)


def imported() -> ModuleType:
    keep_callbacks_apart()
    return sys.modules["callbacks"]


def test_both_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "callbacks.py").write_text(THEIRS)
    monkeypatch.chdir(tmp_path)
    found = imported()
    assert found is package
    assert found.Evaluation.__module__ == "callbacks.evaluation"
    assert found.Mine is found.Mine
    assert issubclass(found.Mine, package.Evaluation)
    assert (found.Mine.__module__, found.Mine.__qualname__) == (
        "callbacks",
        "Mine",
    )  # as a saved configuration names it
    with pytest.raises(AttributeError, match=r"'callbacks' has no attribute 'Nobody', nor has .*callbacks\.py"):
        _ = found.Nobody


def test_a_folder_of_that_name_adds_its_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "callbacks").mkdir()
    (tmp_path / "callbacks" / "__init__.py").write_text("from .more import Mine")
    (tmp_path / "callbacks" / "more.py").write_text("class Mine: ...")
    monkeypatch.chdir(tmp_path)
    found = imported()
    assert found.Mine.__module__ == "callbacks.more"
    assert found.Evaluation is package.Evaluation


def test_without_one_the_package_is_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for folder in (tmp_path, ROOT):  # whose own folder is the package itself
        monkeypatch.chdir(folder)
        with pytest.raises(AttributeError, match=r"module 'callbacks' has no attribute 'Mine'$"):
            _ = imported().Mine


def test_ours_is_found_where_theirs_would_be_imported_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "callbacks.py").write_text("class History: ...")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    monkeypatch.delitem(sys.modules, "callbacks")
    keep_callbacks_apart()
    found = importlib.import_module("callbacks")
    assert (found.History.__module__, found.__file__) == ("callbacks", str(ROOT / "callbacks" / "__init__.py"))
