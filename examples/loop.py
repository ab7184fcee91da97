"""The whole algorithm on one page: rollout, credit, update and evaluation in a plain loop, without Lightning.

    python examples/loop.py

It ends with the weights of `tsr fit` with the same settings, bit for bit (tests/test_loop.py). Left out of it: several
devices, checkpoints, asynchronous rollouts, dynamic sampling, demonstrations, filters of groups, and checks.
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
from tsr_lightning.rollout.instances import Instances
from tsr_lightning.rollout.ranks import SingleProcess
from tsr_lightning.search.progress import unreported
from tsr_lightning.search.retry import Retrying
from tsr_lightning.training.credit import credited_sequences
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.training.estimates import estimates
from tsr_lightning.training.optimizer import clip_by_group


@dataclass(frozen=True)
class Recipe:
    """What is trained, on what and how."""

    policy: PolicySpec  # the model: a folder or a name on the hub, with or without a LoRA adapter
    env: EnvFactory  # the environment: a gymnasium id with its arguments, or `my_module:MyEnv-v0`
    actor: ActorSpec  # the engine that samples responses, how it samples, and what it sees of the past
    plan: Plan  # the search with its scorer, and how many searches of an instance make a group
    objective: Objective  # the credit of trajectories, and the loss
    updates: Updates  # passes over a rollout, minibatches, tokens of a forward pass
    optimizer: Optimizer  # AdamW's learning rates, warm-up and decay
    held_out: HeldOut  # the instances of evaluation, whose initial states are kept from training
    evaluation: EvalProtocol  # temperature, and episodes per held-out instance
    instances: int  # per rollout
    epochs: int  # rollouts, each with its updates
    evaluate_every: int  # epochs
    clip_norm: float = 1.0  # of the gradients of policy and critic, each
    seed: int = 1  # of every random draw


FROZEN_LAKE = Recipe(
    policy=PolicySpec("embedded/frozen_lake"),
    env=EnvFactory.of("tsr/FrozenLake-v0", {"prompt_style": "bare", "success_rate": 1.0}),
    actor=ActorSpec(engine=Transformers(), sampling=Sampling(temperature=1.0, max_response_tokens=12)),
    plan=Uniform(Beam(width=2, candidates=4, scorer=EnvironmentScore()), count=1),  # plain: Uniform(Sample(), count=8)
    objective=GRPO(searched=ImitateSuccesses()),  # `searched` is the credit of searched trajectories: or TreeCredit()
    updates=Updates(minibatches=2),
    optimizer=Optimizer(learning_rate=1e-3, warmup_updates=5),
    held_out=HeldOut(instances=128),
    evaluation=EvalProtocol("sampled", temperature=1.0, samples=2),
    instances=48,
    epochs=24,
    evaluate_every=4,
)


def train(recipe: Recipe) -> Policy:
    """Trains a policy, and prints its success on held-out instances as it learns."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    temperature, updates, needs = recipe.actor.sampling.temperature, recipe.updates, recipe.objective.needs
    key = Key(0).fold_in("run", recipe.seed)  # names the run's draws: nothing else is random

    # The learner: one model with a critic and a reference where the objective needs them, and AdamW.
    tokenizer = load_tokenizer(recipe.policy, recipe.env.texts())  # the texts are for the vocabulary of a new model
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

    # The actor: plays the policy in environments of its own.
    actor = Actor(policy, tokenizer, recipe.actor, Environments(recipe.env), Retrying(recipe.env.retries))
    instances = Instances(recipe.env.make_all(), key, recipe.held_out)
    rollouts = RolloutSpec(recipe.plan, instances, recipe.instances, key)
    evaluate = partial(evaluate_actor, actor, instances.held_out, recipe.evaluation, seed=recipe.held_out.seed)
    print(f"epoch {0:3}  {evaluate()}")

    for epoch in range(recipe.epochs):
        objective, key_of_epoch = recipe.objective.at(epoch), key.fold_in("epoch", epoch)  # coefficients may change

        # Rollout: draws instances and searches all of them side by side, with the policy as it is now.
        groups = collect(actor, rollouts, epoch, objective, SingleProcess(), unreported, epoch).rollout.groups
        actor.release()  # the engine's memory is for the updates now

        # Credit: each token's advantage and weight, from the returns of what is compared and the policy's estimates.
        comparisons = [objective.comparisons(group) for group in groups]
        credited = credited_sequences(comparisons, objective, estimate, ProcessGroup(), updates, key_of_epoch)

        # Update: shuffled minibatches, each one optimizer step over packed micro-batches, whose losses add up.
        for minibatch in schedule(credited.sequences, updates, key_of_epoch):
            for batch in (micro_batch.to(device) for micro_batch in minibatch):
                outputs = policy.outputs(batch.packed, temperature, entropies=True)  # of the sampled tokens
                objective.loss(batch.targets, outputs).total.backward()
            clip_by_group(adamw, recipe.clip_norm)
            adamw.step()
            adamw.zero_grad()
            learning_rates.step()

        # Evaluation: plays the held-out instances, with the same draws each time and without search.
        if (epoch + 1) % recipe.evaluate_every == 0:
            print(f"epoch {epoch + 1:3}  {evaluate()}")

    actor.close()
    return policy


if __name__ == "__main__":
    train(FROZEN_LAKE)
