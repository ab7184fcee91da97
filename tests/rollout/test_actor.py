"""An actor owns its engine and plays without a Trainer; evaluation is a function of an actor."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from tsr_lightning.engines.base import Engine
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.objectives import GRPO
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import PolicySpec, Scratch
from tsr_lightning.policy.vocabulary import load_tokenizer
from tsr_lightning.rng import Key
from tsr_lightning.rollout.actor import Actor, ActorSpec
from tsr_lightning.rollout.collect import RolloutSpec, collect
from tsr_lightning.rollout.environments import EnvFactory, Environments
from tsr_lightning.rollout.evaluate import EvalResult, evaluate_actor
from tsr_lightning.rollout.groups import SingleProcess
from tsr_lightning.rollout.instances import HeldOut, Instances
from tsr_lightning.rollout.mixture import mixture_of
from tsr_lightning.rollout.protocol import EvalProtocol
from tsr_lightning.search.plan import Uniform
from tsr_lightning.search.progress import Progress, unreported
from tsr_lightning.search.retry import Retrying
from tsr_lightning.search.strategies import Sample
from tsr_lightning.trajectory import Turn, to_messages

MODEL = Scratch(
    hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, max_position_embeddings=256
)
FACTORY = EnvFactory(mixture_of("two_turns:TwoTurns-v0", None))
KEY = Key(3)
PROTOCOL = EvalProtocol("sampled", samples=4)


@pytest.fixture(scope="module")
def policy() -> Policy:
    spec = PolicySpec(MODEL)
    return Policy(spec, load_tokenizer(spec, FACTORY.texts()), critic=False, seed=1)


def actor(policy: Policy, engine: Transformers | None = None, context_tokens: int | None = None) -> Actor:
    tokenizer = load_tokenizer(policy.spec, FACTORY.texts())
    spec = ActorSpec(engine or Transformers(), context_tokens=context_tokens)
    return Actor(policy, tokenizer, spec, Environments(FACTORY), Retrying(0))


def instances(held_out: int = 6) -> Instances:
    return Instances(FACTORY.make_all(), KEY, HeldOut(held_out))


@dataclass(frozen=True)
class Named(Transformers):
    """The default engine's settings, which record what was built with them."""

    name: str = ""

    def build(self, model: object, end_ids: frozenset[int], context_tokens: int) -> Engine:
        built = super().build(model, end_ids, context_tokens)  # type: ignore[arg-type]
        BUILT.append((self.name, context_tokens))
        return built


BUILT: list[tuple[str, int]] = []


def test_every_actor_has_the_engine_of_its_own_spec(policy: Policy):
    """Two actors of one policy and one context: a cache of engines by context would give both the first engine."""
    BUILT.clear()
    first, second = actor(policy, Named(name="first")), actor(policy, Named(name="second"), context_tokens=64)
    assert first.engine is not second.engine
    assert BUILT == [("first", 256), ("second", 64)]
    assert first.engine is first.engine
    first.close()
    assert second.engine is second.engine
    assert len(BUILT) == 2


def test_an_actor_that_was_never_used_builds_no_engine(policy: Policy):
    BUILT.clear()
    idle = actor(policy, Named(name="idle"))
    idle.release()
    idle.close()
    assert BUILT == []


def played(result: EvalResult) -> Sequence[object]:
    return [[trajectory.turns for trajectory in group.trajectories] for group in result.groups]


def test_evaluation_needs_no_trainer(policy: Policy):
    player, held_out, seen = actor(policy), instances().held_out, []
    whole = evaluate_actor(player, held_out, PROTOCOL, seed=123, report=seen.append)
    assert [len(group.trajectories) for group in whole.groups] == [4] * 6
    assert 0 <= whole.success_rate <= 1
    assert whole.costs.tokens_generated > 0
    last: Progress = seen[-1]
    assert (last.phase, last.done, last.total, last.spent) == ("sampled", 24, 24, 1)
    assert len({progress.began for progress in seen}) == 1
    half = evaluate_actor(player, held_out[3:], PROTOCOL, seed=123, places=range(3, 6))
    assert [[turn.response for turns in group for turn in turns[:1]] for group in played(half)] == [
        [turn.response for turns in group for turn in turns[:1]] for group in played(whole)[3:]
    ]


def test_a_copy_keeps_its_weights_while_the_policy_is_trained(policy: Policy):
    player, held_out = actor(policy), instances().held_out
    copied = player.copy(Retrying(0))
    before = evaluate_actor(player, held_out, PROTOCOL, seed=1)
    weights = policy.snapshot()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    assert played(evaluate_actor(copied, held_out, PROTOCOL, seed=1)) == played(before)
    assert played(evaluate_actor(player, held_out, PROTOCOL, seed=1)) != played(before)
    copied.load(policy.snapshot())
    moved = evaluate_actor(copied, held_out, PROTOCOL, seed=1)
    assert played(moved) == played(evaluate_actor(player, held_out, PROTOCOL, seed=1))
    player.load(weights)


def test_a_rollout_needs_no_trainer(policy: Policy):
    spec = RolloutSpec(Uniform(Sample(), 3), instances(), count=4, key=KEY)
    collected = collect(actor(policy), spec, 0, GRPO(), SingleProcess(), unreported, policy_epochs=5)
    groups = collected.rollout.groups
    assert [len(group.trajectories) for group in groups] == [3] * 4
    assert {t.policy_epochs for group in groups for t in group.trajectories} == {5}
    again = collect(actor(policy), spec, 0, GRPO(), SingleProcess(), unreported, policy_epochs=5)
    assert again.rollout.groups == groups


def test_what_follows_a_response_is_left_out_where_the_context_has_no_room(policy: Policy):
    player = actor(policy)
    prompt = player.chat.prompt((), to_messages("even 1"))
    response = player.chat.write("b")
    turn = Turn(prompt, response, (-1.0,) * len(response), True, to_messages("even 1"), "b", 0.0, True, True, "b")
    answer = to_messages("odd 1")
    ids = player.following([turn], answer)
    assert player.chat.tokenizer.decode(ids).count("odd 1") == 1
    room = len(prompt) + len(response) + len(ids)
    assert actor(policy, context_tokens=room).following([turn], answer) == ids
    assert actor(policy, context_tokens=room - 1).following([turn], answer) == ()
