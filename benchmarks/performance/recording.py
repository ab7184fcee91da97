"""An engine that remembers what it was asked and what it said; everything else is another engine's."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Engine, Prompt, Response

Wave = tuple[Sequence[Prompt], Sequence[Sequence[Response]]]


@dataclass
class Recorder(Engine):
    """Keeps references and copies nothing, so that it costs no time."""

    engine: Engine
    waves: list[Wave] = field(default_factory=list)

    def generate(self, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
        said = self.engine.generate(prompts, temperature)
        self.waves.append((prompts, said))
        return said

    def values(self, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        return self.engine.values(prompts)

    def take_costs(self) -> Costs:
        return self.engine.take_costs()
