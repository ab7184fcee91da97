"""The whole algorithm on one page: rollout, credit, update and evaluation in a plain loop, without Lightning.

    python examples/loop.py

It ends with the weights of `tsr fit` with the same settings, bit for bit: tests/test_loop.py has the two commands that
it is compared with. Left out of it: several devices, checkpoints, asynchronous rollouts, dynamic sampling,
demonstrations, filters of groups, and the checks that refuse a bad configuration before anything runs.

Words: an *instance* is an environment with the seed of its first state (TRL: a prompt). An *epoch* is one rollout and
its updates. A *group* is the trajectories of one instance.
"""

from dataclasses import dataclass
from functools import partial

import torch

from tsr_lightning import (
    GRPO,
    Actor,
    ActorSpec,
    Beam,
    EnvFactory,
    EnvironmentScore,
    EvalProtocol,
    HeldOut,
    ImitateSuccesses,
    Key,
    Objective,
    Optimizer,
    Plan,
    Policy,
    PolicySpec,
    Sampling,
    Transformers,
    Uniform,
    Updates,
)
from tsr_lightning.batching.schedule import schedule
from tsr_lightning.policy.vocabulary import load_tokenizer
from tsr_lightning.rollout.collect import RolloutSpec, collect
from tsr_lightning.rollout.environments import Environments
from tsr_lightning.rollout.evaluate import evaluate_actor
from tsr_lightning.rollout.groups import SingleProcess
from tsr_lightning.rollout.instances import Instances
from tsr_lightning.search.progress import unreported
from tsr_lightning.search.retry import Retrying
from tsr_lightning.training.credit import credited_sequences
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.training.estimates import estimates
from tsr_lightning.training.optimizer import clip_by_group


@dataclass(frozen=True)
class Recipe:
    """The settings of a training run."""

    policy: PolicySpec  # a folder or a name on the hub; PolicySpec(..., adapter=LoRA(rank=16)) trains an adapter alone
    env: EnvFactory  # a gymnasium id with its arguments, or `my_module:MyEnv-v0`
    actor: ActorSpec  # the engine (Transformers(), VLLM()), sampling, and `context`: the past turns that a prompt shows
    plan: Plan  # the search with its scorer, and how many searches of an instance make its group
    objective: Objective  # advantages, and the loss with its KL and entropy terms: GRPO(kl=K3(0.001)), PPO(...)
    updates: Updates  # passes over a rollout (`epochs`, 1), minibatches in a pass, most tokens of a forward pass
    optimizer: Optimizer  # `learning_rate`, `critic_learning_rate`, `warmup_updates`, `decay="cosine"` of the rates
    held_out: HeldOut  # how many instances, and the `seed` that picks them; training draws none of their initial states
    evaluation: EvalProtocol  # EvalProtocol("greedy", temperature=0.0) is another; `tsr fit` takes several
    instances_per_epoch: int
    epochs: int
    evaluate_every: int  # epochs
    clip_norm: float = 1.0  # the largest norm of the policy's gradient, and of the critic's
    seed: int = 1  # every random draw follows from it


FROZEN_LAKE = Recipe(
    policy=PolicySpec("embedded/frozen_lake"),  # a small trained model inside the package
    env=EnvFactory.of("tsr/FrozenLake-v0", {"prompt_style": "bare", "success_rate": 1.0}),  # 1.0: a move never slips
    actor=ActorSpec(engine=Transformers(), sampling=Sampling(temperature=1.0, max_response_tokens=12)),
    # `count` searches of every instance, each of which gives one trajectory; without one: Uniform(Sample(), count=8).
    # A beam keeps 2 prefixes a turn and proposes 4 responses to each. The scorer CriticValue() needs PPO's critic.
    plan=Uniform(Beam(width=2, candidates=4, scorer=EnvironmentScore()), count=1),
    # `searched` is the credit of trajectories that a search selected. ImitateSuccesses(): successes weigh 1, failures
    # nothing; every trajectory is one here, so GRPO's advantages, for plain samples, go unused (expert iteration).
    # Unchanged(): as samples, with count above 1 (the TSR paper). TreeCredit(): each candidate against its siblings.
    objective=GRPO(searched=ImitateSuccesses()),
    updates=Updates(minibatches=2),
    optimizer=Optimizer(learning_rate=1e-3, warmup_updates=5),
    held_out=HeldOut(instances=128),
    evaluation=EvalProtocol("sampled", temperature=1.0, samples=2),
    instances_per_epoch=48,
    epochs=24,
    evaluate_every=4,
)


def train(recipe: Recipe) -> Policy:
    """Trains a policy, and prints its success on held-out instances as it learns."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    temperature, updates = recipe.actor.sampling.temperature, recipe.updates
    needs = recipe.objective.needs  # whether the loss takes a critic's values, a reference, old log-probabilities
    key = Key(0).fold_in("run", recipe.seed)  # as jax.random.fold_in: keys name draws, nothing else is random

    # The learner: one model, with a value head and a reference where the objective needs them, and AdamW.
    tokenizer = load_tokenizer(recipe.policy, recipe.env.texts())  # the task's texts make the vocabulary of a new model
    policy = Policy(
        recipe.policy,
        tokenizer,
        critic=needs.values,
        keep_reference=needs.reference,
        seed=recipe.seed,
        device=device,
    ).train()
    adamw = recipe.optimizer.adamw(policy)
    learning_rates = recipe.optimizer.schedule(adamw)
    estimate = partial(
        estimates, policy, needs=needs, temperature=temperature, micro_batch_tokens=updates.tokens_at_once
    )

    # The actor: plays the policy in environments of its own. A step that fails for the moment is tried again.
    actor = Actor(policy, tokenizer, recipe.actor, Environments(recipe.env), Retrying(recipe.env.retries))
    others = Environments(recipe.env)  # whose initial states tell the instances apart
    instances = Instances(others.envs, key, recipe.held_out)
    rollout_spec = RolloutSpec(recipe.plan, instances, recipe.instances_per_epoch, key)
    evaluate = partial(evaluate_actor, actor, instances.held_out, recipe.evaluation, seed=recipe.held_out.seed)
    print(f"epoch {0:3}  {evaluate()}")

    for epoch in range(recipe.epochs):
        objective, key_of_epoch = recipe.objective.at(epoch), key.fold_in("epoch", epoch)  # coefficients may change

        # Rollout: gives the engine the weights, draws instances, and searches all of them side by side.
        collected = collect(
            actor, rollout_spec, epoch, objective, ranks=SingleProcess(), report=unreported, policy_epochs=epoch
        )
        actor.release()  # the engine's memory is for the updates now

        # Credit: every token's advantage and weight. What is compared shares a baseline: a group, or under tree credit
        # the responses to a state. `estimate` gives old log-probabilities, the critic's values and the reference's
        # log-probabilities, now, because the first step changes the policy that they belong to.
        comparisons = [objective.comparisons(group) for group in collected.rollout.groups]
        credited = credited_sequences(
            comparisons, objective, estimate, ProcessGroup(), updates, key_of_epoch, actor.following
        )

        # Update: shuffled minibatches. Each is one optimizer step over packed micro-batches, whose losses add up.
        for minibatch in schedule(credited.sequences, updates, key_of_epoch):
            for batch in (micro_batch.to(device) for micro_batch in minibatch):
                outputs = policy.outputs(batch.packed, temperature, entropies=True)  # log-probabilities and values now
                objective.loss(batch.targets, outputs).total.backward()  # targets: advantages, old log-probabilities
            clip_by_group(adamw, recipe.clip_norm)  # AdamW's groups of parameters: policy and critic, each by its norm
            adamw.step()
            adamw.zero_grad()
            learning_rates.step()

        # Evaluation: plays the held-out instances, with the same draws each time and without search.
        if (epoch + 1) % recipe.evaluate_every == 0:
            print(f"epoch {epoch + 1:3}  {evaluate()}")

    actor.close()
    others.close()
    return policy


if __name__ == "__main__":
    train(FROZEN_LAKE)
