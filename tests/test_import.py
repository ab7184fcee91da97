"""`import tsr_lightning` registers the environments, without loading them or PyTorch, and knows the public names."""

import ast
import subprocess
import sys
from importlib import import_module

import pytest
from commands import ROOT

import tsr_lightning

CODE = """
import sys
import tsr_lightning
import gymnasium
ids = sorted(id for id in gymnasium.registry if id.startswith("tsr/"))
print(*ids)
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "lightning", "transformers", "pandas"}))
print(*sorted(name for name in sys.modules if name.startswith("tsr_lightning.")))
"""


def test_importing_the_package_registers_its_environments_and_loads_nothing():
    output = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ids, libraries, modules = output.splitlines()
    names = ("ALFWorld", "FrozenLake", "SWE", "Sokoban", "TextWorld", "WebShop")
    assert ids.split() == [f"tsr/{name}-v0" for name in names]
    assert libraries == ""
    assert modules == "tsr_lightning.envs tsr_lightning.worlds"


@pytest.mark.parametrize("module", tsr_lightning.PUBLIC)
def test_public_names_are_those_of_their_modules(module: str):
    home = import_module(f"tsr_lightning.{module}")
    for name in tsr_lightning.PUBLIC[module]:
        assert getattr(tsr_lightning, name) is getattr(home, name)
        assert name in dir(tsr_lightning)


def test_editors_and_mypy_see_the_public_names():
    source = (ROOT / "tsr_lightning" / "__init__.py").read_text(encoding="utf-8")
    [block] = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {node.module: tuple(alias.name for alias in node.names) for node in imports}
    assert seen == {f"tsr_lightning.{module}": names for module, names in tsr_lightning.PUBLIC.items()}


def test_a_name_that_is_not_public_is_refused():
    with pytest.raises(AttributeError, match=r"'tsr_lightning' has no attribute 'Agents'"):
        _ = tsr_lightning.Agents


def test_one_public_name_loads_its_own_module_alone():
    code = "import sys; from tsr_lightning import TextEnv, Uniform, check_branchable; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
