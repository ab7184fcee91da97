"""The named objectives of the package, found in it, so that a new one joins every test of all. No tests in here."""

import inspect

from tsr_lightning import objectives
from tsr_lightning.objectives import Objective, PolicyGradient

PRESETS: list[type[Objective]] = [
    kind
    for name in objectives.__all__
    if inspect.isclass(kind := vars(objectives)[name]) and issubclass(kind, Objective)
    if not inspect.isabstract(kind) and kind is not PolicyGradient
]
