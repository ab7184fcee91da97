"""Seconds of an epoch and of an evaluation, and hours of a run. Pure functions of a setup and a machine.

A collective over R ranks moves (R - 1) / R of its bytes over each card's link (nccl-tests, doc/PERFORMANCE.md);
latencies are left out. Environments are too: theirs is the CPU's time. So are checkpoints and starting up.
"""

from dataclasses import dataclass
from math import ceil

from tsr_lightning.estimate.caches import buffer_tokens, slots, state_counts
from tsr_lightning.estimate.card_memory import pass_size
from tsr_lightning.estimate.cards import Machine
from tsr_lightning.estimate.decode_steps import decode_seconds, flop_seconds, host_seconds
from tsr_lightning.estimate.flops import forward_flops, update_flops
from tsr_lightning.estimate.recurrent_activations import activations_of
from tsr_lightning.estimate.setup import Case, Setup
from tsr_lightning.estimate.units import Units, shard_bytes
from tsr_lightning.estimate.workload import RolloutTokens, TrainedTokens, Wave

# An update's operators for each of a decoding step's: forward and backward pass
_UPDATE_FACTOR = 3


@dataclass(frozen=True)
class RolloutSeconds:
    """A rollout or an evaluation."""

    prefill: float
    decode: float
    at_once: int  # responses, in the largest wave

    @property
    def total(self) -> float:
        return self.prefill + self.decode


@dataclass(frozen=True)
class EpochSeconds:
    """An epoch: its rollout, the passes before the updates, the updates, and the gathering of whole weights."""

    rollout: RolloutSeconds
    estimates: float
    updates: float  # with their collectives, which run beside them
    collectives: float  # of these, FSDP2's all-gathers and reduce-scatters
    gathering: float  # FSDP2's whole weights, once

    @property
    def total(self) -> float:
        return self.rollout.total + self.estimates + self.updates + self.gathering


@dataclass(frozen=True)
class Hours:
    """Hours of a whole run."""

    epoch: EpochSeconds  # the first, as a sample
    training: float  # hours of all epochs
    evaluation: float  # hours of all evaluations

    @property
    def total(self) -> float:
        return self.training + self.evaluation


def hours(setup: Setup, case: Case, machine: Machine) -> Hours:
    """Returns the hours of all epochs and evaluations. Cards share the groups of a rollout and the tokens of an
    update."""
    epochs: list[EpochSeconds] = []
    seconds = 0.0
    for entries, count in setup.distinct_entries:
        searches = setup.instances * sum(entry.count for entry in entries)
        trained = setup.trained(entries, case)
        epoch = EpochSeconds(
            rollout_seconds(setup, case, setup.rollout(entries, case), searches, setup.instances, machine),
            estimate_seconds(setup, setup.estimated(entries, case), machine),
            update_seconds(setup, trained, machine),
            update_collective_seconds(setup, trained, machine),
            gathering_seconds(setup, trained, machine),
        )
        epochs.append(epoch)
        seconds += count * epoch.total
    evaluations = sum(
        one.times
        * rollout_seconds(
            setup, case, setup.evaluation(one, case), setup.held_out * one.samples, setup.held_out, machine
        ).total
        for one in setup.evaluations
    )
    return Hours(epochs[0], seconds / 3600, evaluations / 3600)


def rollout_seconds(
    setup: Setup, case: Case, tokens: RolloutTokens, searches: int, instances: int, machine: Machine
) -> RolloutSeconds:
    """Prompts by their FLOPs, then as many decoding steps as the longest response has, batch after batch.

    A card has the groups of ceil(instances / cards) instances, of which `concurrency` searches run side by side. Where
    the cache cannot hold what a wave leaves behind, the next one computes its whole prompts again.
    """
    card = machine.card
    share = ceil(instances / machine.count) / instances
    rounds = max(1, ceil(share * searches / setup.concurrency))
    part = share / rounds
    prefill = decode = 0.0
    most = 0
    states = state_counts(setup)
    is_cached = True
    for wave in tokens.waves:
        prompts, new = (wave.new_prompts, wave.new_tokens) if is_cached else (wave.prompts, wave.prompt_tokens)
        # so that the next wave finds its prefixes
        is_cached = part * wave.held(tokens.response) <= slots(setup)
        is_cached &= states is None or part * wave.ends <= states.prefixes
        scores = part * prompts * new * (wave.prompt_tokens - new / 2)
        flops = forward_flops(setup.shape, setup.spec, part * prompts * new, part * wave.prompts, scores)
        prefill += rounds * flop_seconds(flops, setup, card)
        responses = ceil(part * wave.responses)
        at_once = min(responses, responses_at_once(setup, wave))
        most = max(most, at_once)
        batches = ceil(responses / at_once)
        mean = at_once * case.episode.response / max(case.longest, 1)
        decode += decode_seconds(setup, wave, mean, case.longest, rounds * batches, card)
    return RolloutSeconds(prefill, decode, most)


def responses_at_once(setup: Setup, wave: Wave) -> int:
    """Responses that `max_num_seqs`, the decode buffer and the states allow: a prompt's row has its tokens and as many
    as all of its responses may have (`TransformersEngine._chunks`)."""
    room, limit = buffer_tokens(setup), setup.max_response_tokens
    siblings = max(1, wave.responses // wave.prompts)
    prompts = room // (wave.prompt_tokens + siblings * limit)
    fitting = prompts * siblings if prompts else (room - wave.prompt_tokens) // limit
    states = state_counts(setup)
    if states is not None:
        fitting = min(fitting, states.rows, states.groups * siblings)
    return max(1, min(setup.engine.max_num_seqs, fitting))


def estimate_seconds(setup: Setup, scored: TrainedTokens, machine: Machine) -> float:
    """Forward passes before the updates: the policy's, and the reference's if there is one."""
    flops = forward_flops(setup.shape, setup.spec, scored.packed, scored.outputs, scored.scores)
    return setup.estimates * flop_seconds(flops, setup, machine.card) / machine.count


def update_seconds(setup: Setup, trained: TrainedTokens, machine: Machine) -> float:
    """Forward and backward passes of all epochs of the updates; the largest of what the card, the host, and FSDP2's
    collectives take, which run side by side."""
    size = pass_size(setup, machine.count)
    chunked = size.outputs > activations_of(setup.shape, setup.spec).rows_at_once
    flops = update_flops(setup.shape, setup.spec, trained.packed, trained.outputs, trained.scores, chunked=chunked)
    passes = setup.updates.epochs * max(setup.updates.minibatches, ceil(trained.packed / max(1, size.tokens)))
    host = passes / machine.count * _UPDATE_FACTOR * host_seconds(setup.shape, setup.spec, machine.card)
    device = setup.updates.epochs * flop_seconds(flops, setup, machine.card) / machine.count
    return max(device, host, update_collective_seconds(setup, trained, machine)) if trained.packed else 0.0


def update_collective_seconds(setup: Setup, trained: TrainedTokens, machine: Machine) -> float:
    """Seconds of the collectives of all micro-batches, as many on every card; 0 without FSDP2."""
    if not setup.is_sharded or not trained.packed:
        return 0.0
    tokens = trained.packed / setup.updates.minibatches / machine.count
    micro_batches = ceil(tokens / max(1, pass_size(setup, machine.count).tokens))
    passes = setup.updates.epochs * setup.updates.minibatches * micro_batches
    return passes * collective_seconds(traffic(setup.units, machine.count).micro_batch, machine)


def gathering_seconds(setup: Setup, trained: TrainedTokens, machine: Machine) -> float:
    """Seconds of gathering the whole weights after an epoch's updates; 0 without FSDP2."""
    if not setup.is_sharded or not trained.packed:
        return 0.0
    return collective_seconds(traffic(setup.units, machine.count).whole, machine)


@dataclass(frozen=True)
class Traffic:
    """Bytes of the collectives, as large as what they gather or reduce."""

    forward: int  # all-gathers of a forward pass
    backward: int  # of a backward pass
    gradients: int  # reduce-scatters
    whole: int  # all-gathers of the whole policy, once an epoch

    @property
    def micro_batch(self) -> int:
        """Bytes of one forward and backward pass; each micro-batch of an update reduces its own gradients."""
        return self.forward + self.backward + self.gradients


def traffic(units: Units, ranks: int) -> Traffic:
    """Layers and value head are gathered for the forward pass and again for the backward pass, the root's unit once."""
    gathered = ranks * shard_bytes(units.passes, ranks)
    return Traffic(
        forward=gathered,
        backward=gathered - units.rest.gathered_bytes(ranks),
        gradients=sum(count * unit.trained.gathered_bytes(ranks) for unit, count in units.passes),
        whole=ranks * shard_bytes(units.all, ranks),
    )


def collective_seconds(size: float, machine: Machine) -> float:
    """Seconds of an all-gather or reduce-scatter of this many bytes; 0 on one card."""
    card = machine.card
    return size * (machine.count - 1) / machine.count / (card.interconnect * card.interconnect_share)
