"""All that can be wrong with a run and seen before a model is loaded, each as one sentence."""

from pathlib import Path
from typing import Any

import torch

from tsr_lightning.envs.base import HasOracle
from tsr_lightning.envs.make import check_env_spec
from tsr_lightning.errors import ConfigError
from tsr_lightning.policy.chat import Chat
from tsr_lightning.policy.checks import check as check_policy
from tsr_lightning.policy.spec import context_length
from tsr_lightning.policy.vocabulary import load_tokenizer
from tsr_lightning.search.strategies import Expert
from tsr_lightning.training.agent import Agent, check_identity
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.plan_check import check_plan


def check_run(agent: Agent, data: RolloutDataModule, ckpt_path: str | None, subcommand: str = "fit") -> None:
    """Raises the first ConfigError that the run would meet."""
    check_env_spec(data.env_id, data.env_kwargs)
    check_policy(agent.spec)
    _check_numbers(data)
    _check_plan(agent, data)
    _check_context(agent, data)
    if not data.instances.held_out:  # drawn here, where too few initial states are refused in time
        raise ConfigError(
            "data.held_out.instances is 0: hold out at least 1, and set data.evaluations to [] to skip evaluation"
        )
    if ckpt_path is not None:
        _check_checkpoint(agent, data, ckpt_path, resumes=subcommand == "fit")


def _check_numbers(data: RolloutDataModule) -> None:
    """Counts of which zero would divide, hang or silently do nothing."""
    counts = {
        "instances": data.instances_per_epoch,
        "concurrency": data.concurrency,
        "sampling.max_response_tokens": data.sampling.max_response_tokens,
        "updates.epochs": data.updates.epochs,
        "updates.minibatches": data.updates.minibatches,
        "updates.micro_batch_tokens": data.updates.micro_batch_tokens,
        **{f"trials.{protocol.name}.samples": protocol.samples for protocol in data.evaluations},
    }
    for name, count in counts.items():
        if count < 1:
            raise ConfigError(f"data.{name} is {count}: give 1 or more")
    if data.env_workers < 0:
        raise ConfigError(
            f"data.env_workers is {data.env_workers}: give 0 to step environments in turn with generation, or the "
            "number of them that step beside it"
        )
    if data.sampling.temperature <= 0:
        raise ConfigError(
            f"data.sampling.temperature is {data.sampling.temperature}, at which nothing is sampled and no "
            "log-probability is defined: give more than 0 for training, and 0 to a protocol for greedy play"
        )
    for protocol in data.evaluations:
        if protocol.temperature < 0:
            raise ConfigError(
                f"data.evaluations.{protocol.name}.temperature is {protocol.temperature}: give 0 (greedy) or more"
            )


def _check_plan(agent: Agent, data: RolloutDataModule) -> None:
    name = type(agent.objective).__name__
    strategies = [*data.plan.strategies, *(protocol.search for protocol in data.evaluations if protocol.search)]
    for strategy in strategies:
        scorer = strategy.scored_by
        if scorer is not None and scorer.needs_critic and not agent.objective.needs.values:
            raise ConfigError(
                f"{type(strategy).__name__}.scorer asks a critic, and {name} trains none: "
                "use EnvironmentScore, or the objective PPO"
            )
        if isinstance(strategy, Expert) and not isinstance(data.env, HasOracle):
            raise ConfigError(f"data.plan uses Expert, but {data.env_id} has no oracle: choose another strategy")
    check_plan(agent.objective, data.plan)


def _check_context(agent: Agent, data: RolloutDataModule) -> None:
    own = context_length(agent.spec)
    if data.context_tokens is not None and data.context_tokens > own:
        raise ConfigError(
            f"data.context_tokens is {data.context_tokens}, but the model {agent.spec.model} sees at most {own} "
            f"tokens: set it to {own} or less, or to null for the model's own limit"
        )
    if data.sampling.max_response_tokens >= (data.context_tokens or own):
        raise ConfigError(
            f"data.sampling.max_response_tokens is {data.sampling.max_response_tokens}, which fills the context of "
            f"{data.context_tokens or own} tokens: lower it to leave room for the prompt"
        )
    observation, _ = data.env.reset(seed=0)
    chat = Chat(load_tokenizer(agent.spec, data.texts()), data.context)
    prompt = len(chat.prompt(data.env.instructions, (), observation))
    if prompt >= (data.context_tokens or own):
        raise ConfigError(
            f"data.env is {data.env_id}, whose first prompt has {prompt} tokens, which leaves no room for a response "
            f"within {data.context_tokens or own}: use a model or data.context_tokens with a longer context"
        )


def _check_checkpoint(agent: Agent, data: RolloutDataModule, ckpt_path: str, *, resumes: bool) -> None:
    path = Path(ckpt_path)
    if path.suffix != ".ckpt":
        return  # "last", "best" and the like, which Lightning looks up
    if not path.is_file():
        raise ConfigError(f"ckpt_path is {ckpt_path}, and there is no such file: give a checkpoint of an earlier run")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise ConfigError(f"ckpt_path is {ckpt_path}, which is no readable checkpoint: give another") from error
    check_identity(checkpoint, agent.spec)
    _check_critic(checkpoint["state_dict"], agent, ckpt_path)
    if resumes:
        data.check_seed(checkpoint[type(data).__qualname__])


def _check_critic(state: dict[str, Any], agent: Agent, ckpt_path: str) -> None:
    has, needs = any(name.startswith("value_head") for name in state), agent.objective.needs.values
    if has != needs:
        raise ConfigError(
            f"ckpt_path is {ckpt_path}, which holds {'a' if has else 'no'} critic, and model.objective is "
            f"{type(agent.objective).__name__}, which trains {'one' if needs else 'none'}: "
            "give the objective that the checkpoint was trained with"
        )
