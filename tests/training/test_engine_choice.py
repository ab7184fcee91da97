"""`data.engine` chooses the engine, and the run tells it when weights, memory and the run itself change."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from commands import QUICK, tsr

from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Engine, Prompt, Response
from tsr_lightning.engines.transformers.spec import Transformers

CALLS: list[str] = []


class RecordingEngine:
    """The default engine, whose calls are recorded.

    Args:
        engine: does the work.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def generate(self, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
        CALLS.append("generate")
        return self._engine.generate(prompts, temperature)

    def values(self, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        return self._engine.values(prompts)

    def take_costs(self) -> Costs:
        return self._engine.take_costs()

    def sync(self) -> None:
        CALLS.append("sync")
        self._engine.sync()

    def release(self) -> None:
        CALLS.append("release")
        self._engine.release()

    def close(self) -> None:
        CALLS.append("close")
        self._engine.close()


@dataclass(frozen=True)
class Recording(Transformers):
    """The default engine's spec, with the same arguments."""

    def build(self, model: Any, end_ids: frozenset[int], context_tokens: int) -> Any:
        CALLS.append(f"build with {self.max_num_seqs} sequences")
        return RecordingEngine(super().build(model, end_ids, context_tokens))


def test_an_engine_is_built_once_synced_before_use_released_before_updates_and_closed(tiny_model, empty_folder):
    CALLS.clear()
    engine = f'{{"class_path": "{__name__}.Recording", "init_args": {{"max_num_seqs": 7}}}}'
    model = ("--model.policy.model", tiny_model("sokoban"))
    tsr(
        "fit",
        "--config",
        "sokoban.yaml",
        *QUICK,
        *model,
        "--data.engine",
        engine,
        "--trainer.check_val_every_n_epoch",
        1,
    )
    rollout = ["sync", "generate", "release"]
    evaluation = 2 * ["sync", "generate"]  # one batch of each protocol
    of_run = CALLS[CALLS.index("close") + 1 :]  # after the rehearsal before the run
    assert [call for call, _ in groupby(of_run)] == [
        *("build with 7 sequences", *rollout, *evaluation, *rollout, *evaluation, "close")
    ]
