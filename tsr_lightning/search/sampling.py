"""Samples the responses that a wave of searches requests, by as few engine calls as there can be."""

import math
import time
from collections.abc import Sequence

from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Engine, Prompt, Response
from tsr_lightning.errors import RunError
from tsr_lightning.rng import Stream
from tsr_lightning.search.simulator import TurnSimulator
from tsr_lightning.search.tree import Expand, Node, Request


def sample_responses(
    wave: Sequence[Request], engine: Engine, simulator: TurnSimulator, temperature: float
) -> tuple[list[list[Response]], Costs]:
    """Samples the responses to each node of every `Expand` of a wave, in order, and says what it took.

    One engine call samples them all; each further response without replacement takes another, and so do the greedy
    ones together.

    Args:
        wave: requests of searches, of which only `Expand`s are sampled for.
        engine: samples.
        simulator: knows the prompts of nodes and the tokens that are left.
        temperature: of all responses that are not greedy.

    Raises:
        RunError: a log-probability is not finite.
    """
    asked = [(node, request) for request in wave if isinstance(request, Expand) for node in request.nodes]
    groups: list[list[Response]] = [[] for _ in asked]
    costs = Costs()
    while wanted := [i for i, (_, expand) in enumerate(asked) if len(groups[i]) < expand.count]:
        started = time.perf_counter()
        greedy = all(asked[i][1].greedy for i in wanted)  # these are left to the last
        wanted = [i for i in wanted if asked[i][1].greedy == greedy]
        prompts = [_prompt(*asked[i], len(groups[i]), simulator) for i in wanted]
        sampled = engine.generate(prompts, 0.0 if greedy else temperature)
        costs += Costs(waves=1, seconds_generation=time.perf_counter() - started)
        _require_finite(sampled)
        for i, responses in zip(wanted, sampled, strict=True):
            groups[i] += responses
            node, expand = asked[i]
            if expand.without_replacement:
                node.driver.excluded += tuple(responses)
    return groups, costs


def _prompt(node: Node, expand: Expand, sampled: int, simulator: TurnSimulator) -> Prompt:
    """For the responses that follow those sampled: all others, or the next one, which differs from them."""
    count = 1 if expand.without_replacement else expand.count
    keys = [node.driver.key.fold_in(node.driver.children + sampled + i) for i in range(count)]
    return Prompt(
        simulator.prompt(node),
        seeds=tuple(key.fold_in(Stream.POLICY).value for key in keys),
        max_new_tokens=simulator.token_budget(node),
        excluded=node.driver.excluded if expand.without_replacement else (),
    )


def _require_finite(sampled: Sequence[Sequence[Response]]) -> None:
    """Ends the run where the policy's log-probabilities are not finite: samples and figures then mean nothing."""
    if not all(math.isfinite(sum(response.logprobs)) for responses in sampled for response in responses):
        raise RunError(
            "the policy's log-probabilities are not finite, so an update has destroyed its weights, or they came so: "
            "begin from an earlier checkpoint with a lower model.optimizer.learning_rate or trainer.gradient_clip_val"
        )
