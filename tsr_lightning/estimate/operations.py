"""Floating-point operations of an epoch, all cards together. Pure functions of a setup."""

from dataclasses import dataclass

from tsr_lightning.estimate.activations import Activations
from tsr_lightning.estimate.card_memory import pass_size
from tsr_lightning.estimate.flops import forward_flops, update_flops
from tsr_lightning.estimate.setup import Case, Setup
from tsr_lightning.search.plan import PlanEntry


@dataclass(frozen=True)
class Operations:
    """FLOP by part."""

    unshared_prompts: float  # if every response had its whole prompt computed
    prompts: float  # with shared prefixes
    responses: float
    estimates: float  # passes before the updates
    updates: float


def operations(setup: Setup, entries: list[PlanEntry], case: Case) -> Operations:
    """Counts the operations of an epoch with these entries.

    A prompt of P tokens, of which n are new, has n · (P - n/2) scores; a response of R tokens R · (P + R/2).
    """
    shape, spec = setup.shape, setup.spec
    rollout, trained = setup.rollout(entries, case), setup.trained(entries, case)
    count, waves = rollout.response, rollout.waves
    whole = sum(wave.responses * wave.prompt_tokens**2 / 2 for wave in waves)
    new = sum(wave.new_prompts * wave.new_tokens * (wave.prompt_tokens - wave.new_tokens / 2) for wave in waves)
    decoded = sum(wave.responses * count * (wave.prompt_tokens + count / 2) for wave in waves)
    size = (trained.packed, trained.outputs, trained.scores)
    chunked = pass_size(setup).outputs > Activations(shape, spec).rows_at_once
    return Operations(
        unshared_prompts=forward_flops(shape, spec, rollout.prompt_tokens, 0, whole).total,
        prompts=forward_flops(shape, spec, rollout.prefilled, 0, new).total,
        responses=forward_flops(shape, spec, rollout.decoded, rollout.generated, decoded).total,
        estimates=setup.estimates * forward_flops(shape, spec, *size).total,
        updates=setup.updates.epochs * update_flops(shape, spec, *size, chunked=chunked).total,
    )
