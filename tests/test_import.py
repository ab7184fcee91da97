"""`import tsr_lightning` registers the environments, without loading them or PyTorch."""

import subprocess
import sys

from commands import ROOT

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
    names = ("ALFWorld", "FrozenLake", "Sokoban", "TextWorld", "WebShop")
    assert ids.split() == [f"tsr/{name}-v0" for name in names]
    assert libraries == ""
    assert modules == "tsr_lightning.envs tsr_lightning.worlds"
