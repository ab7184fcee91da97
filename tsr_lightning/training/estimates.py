"""Estimates of trajectories before the updates: the policy's, the critic's and the reference's. Knows no Trainer."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from tsr_lightning.batching.packing import Packed
from tsr_lightning.batching.schedule import micro_batches
from tsr_lightning.batching.sequences import ToEstimate, TrainingSequence, sampled_logprobs
from tsr_lightning.batching.tensors import Estimates, Outputs
from tsr_lightning.engines.local_model import inference_mode
from tsr_lightning.objectives.base import Needs
from tsr_lightning.policy.model import Policy
from tsr_lightning.trajectory import Piece

Forward = Callable[[Packed, float], Outputs]  # of packed sequences, at a temperature
Precision = Callable[[], AbstractContextManager[None]]  # the context of a forward pass, such as autocast


def estimates(
    policy: Policy,
    asked: Sequence[ToEstimate],
    needs: Needs,
    temperature: float,
    micro_batch_tokens: int,
    precision: Precision = nullcontext,
) -> list[Estimates]:
    """Returns the estimates of each trajectory. They are computed in training mode and before any update, so that the
    first update's ratio is 1. Those that are not to be computed keep the engine's log-probabilities, without values.

    Args:
        policy: in training mode.
        asked: the trajectories.
        needs: the objective's.
        temperature: of the log-probabilities.
        micro_batch_tokens: the most tokens of a forward pass.
        precision: that of the updates.
    """

    def outputs_of(forward: Forward, sequences: Sequence[TrainingSequence]) -> list[Outputs]:
        with torch.no_grad(), precision():
            return _outputs(forward, sequences, temperature, micro_batch_tokens, next(policy.parameters()).device)

    sequences = [sequence for one in asked if one.computed for sequence in one.sequences]
    truncated = [i for i, one in enumerate(asked) if needs.final_values and one.piece.final_prompt]
    of_policy = partial(policy.outputs, entropies=needs.entropies)
    outputs = iter(outputs_of(of_policy, [*sequences, *(_final_context(asked[i].piece) for i in truncated)]))
    logprobs, values, entropies = [], [], []
    for piece, own, is_computed in asked:
        of_own = [next(outputs) for _ in own] if is_computed else []
        zeros = torch.zeros(piece.trained_tokens)
        logprobs.append(torch.cat([one.logprobs for one in of_own]) if of_own else sampled_logprobs(piece))
        values.append(torch.cat([one.values for one in of_own]) if of_own else zeros)
        entropies.append(torch.cat([one.entropies for one in of_own]) if needs.entropies else torch.empty(0))
    final = {i: float(one.values) for i, one in zip(truncated, outputs, strict=True)}
    reference = [torch.zeros(one.piece.trained_tokens) for one in asked]
    if needs.reference:
        of_reference = iter(
            outputs_of(policy.reference.outputs, [sequence for one in asked for sequence in one.sequences])
        )
        reference = [torch.cat([next(of_reference).logprobs for _ in one.sequences]) for one in asked]
    return [
        Estimates(*columns, final.get(i, 0.0), entropies[i])
        for i, columns in enumerate(zip(logprobs, values, reference, strict=True))
    ]


def logprobs_behind(
    policy: Policy,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    temperature: float,
    micro_batch_tokens: int,
) -> list[torch.Tensor]:
    """The log-probabilities of responses behind prompts: [R] float32 of each pair, without an adapter's dropout, as an
    engine samples them. A pass computes a prompt once.

    Args:
        policy: whose they are.
        pairs: ids of a prompt and of a response.
        temperature: of the log-probabilities.
        micro_batch_tokens: the most tokens of a forward pass.
    """
    sequences = [_behind(prompt, response) for prompt, response in pairs]
    device = next(policy.parameters()).device
    forward = partial(policy.outputs, entropies=False)
    with inference_mode(policy):
        found = _outputs(forward, sequences, temperature, micro_batch_tokens, device)
    return [outputs.logprobs for outputs in found]


def _behind(prompt: Sequence[int], response: Sequence[int]) -> TrainingSequence:
    ids = torch.tensor([*prompt, *response])
    return TrainingSequence(ids, torch.arange(len(ids)) >= len(prompt), torch.zeros(len(response)))


def _outputs(
    forward: Forward,
    sequences: Sequence[TrainingSequence],
    temperature: float,
    micro_batch_tokens: int,
    device: torch.device,
) -> list[Outputs]:
    """The outputs of each sequence, on the CPU."""
    found: dict[int, Outputs] = {}
    for indices, batch in micro_batches(sequences, micro_batch_tokens):
        outputs = forward(batch.packed.to(device), temperature)
        sizes = [sequences[i].trained_tokens for i in indices]
        parts = [figure.cpu().split(sizes) for figure in (outputs.logprobs, outputs.entropies, outputs.values)]
        found.update(zip(indices, map(Outputs, *parts), strict=True))
    return [found[i] for i in range(len(sequences))]


def _final_context(piece: Piece) -> TrainingSequence:
    """A sequence whose one value is the critic's after the last turn: where the next id would have been sampled."""
    ids = torch.tensor([*piece.final_prompt, 0])
    return TrainingSequence(ids, torch.arange(len(ids)) == len(ids) - 1, torch.ones(1))
