"""Validates a run before any model loads: each mistake is one sentence."""

import re
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from tsr_lightning.cli.room import check_prompt_room, check_response_room
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.engines.vllm.spec import VLLM
from tsr_lightning.envs.first_turns import check_first_turns
from tsr_lightning.envs.playing import check_first_reset, first_demonstration
from tsr_lightning.envs.sample_texts import sample_observations
from tsr_lightning.envs.text_env import TextEnv
from tsr_lightning.errors import ConfigError, require
from tsr_lightning.objectives.rehearsal import rehearse as rehearse_objective
from tsr_lightning.policy.chat import Chat
from tsr_lightning.policy.checks import check as check_policy
from tsr_lightning.policy.checks import check_tokenizer
from tsr_lightning.policy.exact_length import exact_length
from tsr_lightning.policy.model_files import EMBEDDED, load_config, was_trained_here
from tsr_lightning.policy.spec import Scratch, context_length
from tsr_lightning.policy.vocabulary import load_tokenizer
from tsr_lightning.rollout.engine_check import check_engine
from tsr_lightning.search.rehearsal import rehearse
from tsr_lightning.search.strategies import Expert, RandomActions
from tsr_lightning.training import checkpoints
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.checkpoint_identity import check_identity
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.learners import load_learners
from tsr_lightning.training.mismatch import check_updates
from tsr_lightning.training.number_checks import check_held_out, check_numbers
from tsr_lightning.training.plan_check import check_plan
from tsr_lightning.training.setting_checks import (
    check_environments,
    check_template,
    check_void,
)
from tsr_lightning.training.validation import check_names


def check_run(agent: Agent, data: RolloutDataModule, ckpt_path: str | None, subcommand: str = "fit") -> None:
    """Raises the first ConfigError that the run would meet."""
    for entry in data.mixture:
        check_first_reset(entry.env, partial(data.env_factory.make, entry), data.faults.retries)
    for env in data.envs:
        check_first_turns(env)
    _check_new_model(agent.spec.model)
    check_policy(agent.spec)
    if subcommand != "export":  # which generates nothing
        data.engine.check()
        remedy = f"data.engine {type(data.engine).__name__} takes weights of 16 or 32 bits; use null, or Transformers"
        quantised = agent.spec.quantisation is not None
        require(data.engine.takes_quantised or not quantised, "model.policy.quantisation", "NF4", remedy)
    check_numbers(data)
    _check_strategies(agent, data)
    if subcommand not in ("rollout", "play"):  # which train nothing
        _check_plan(agent, data)
    _check_context(agent, data, trains=subcommand == "fit")
    if ckpt_path is None:
        _tell_of_unsaid_form(agent.spec.model, data)
        _tell_of_another_task(agent.spec.model, data)
    check_held_out(len(data.instances.held_out))  # drawn here, so that too few initial states are refused early
    if ckpt_path is not None:
        check_checkpoint(agent, data, ckpt_path, resumes=subcommand == "fit")
    # Tests hold the shipped ones, and to start vLLM takes a minute.
    is_shipped = type(data.engine) is Transformers or isinstance(data.engine, VLLM)
    if subcommand != "export" and not is_shipped:
        check_engine(data.engine)


def _check_new_model(model: str | Scratch) -> None:
    """The parser takes a mapping with an unknown size for the name of a model."""
    if not isinstance(model, str) or not model.startswith("{"):
        return
    sizes = [field.name for field in fields(Scratch)]
    for size in re.findall(r"(\w+)[\"']?\s*:", model):
        if size not in sizes:
            key = f"model.policy.model.{size}"
            raise ConfigError(f"{key} is no key that can be set: choose from {', '.join(sizes)}")


def _check_strategies(agent: Agent, data: RolloutDataModule) -> None:
    objective = type(agent.objective).__name__
    for strategy in data.strategies:
        rehearse(strategy)
        remedy = f"data.engine {type(data.engine).__name__} samples each response alone; use false, or Transformers"
        excludes = data.engine.can_exclude or not strategy.traits.without_replacement
        require(excludes, f"{type(strategy).__name__}.without_replacement", True, remedy)
        scorer = strategy.traits.scored_by
        if scorer is not None and scorer.needs_critic and not agent.objective.needs.values:
            raise ConfigError(
                f"{type(strategy).__name__}.scorer is {type(scorer).__name__}, which needs a critic, and {objective} "
                "trains none: use EnvironmentScore, or the objective PPO"
            )
    check_names(data.evaluations)
    for protocol in data.evaluations:
        protocol.check()
    check_environments(agent.objective, data.strategies, data.environments)


def _check_plan(agent: Agent, data: RolloutDataModule) -> None:
    rehearse_objective(agent.objective)
    check_plan(agent.objective, data.plan, data.demonstrations)
    check_updates(agent.objective, data.updates)
    check_void(agent.objective, data.plan, data.updates)
    if data.learnability is not None:
        data.learnability.check(data.plan, data.instances_per_epoch, data.replay)
    if data.dynamic_sampling is not None:
        data.dynamic_sampling.check(data.plan)


def _check_context(agent: Agent, data: RolloutDataModule, *, trains: bool) -> None:
    model_limit = context_length(agent.spec)
    limit = data.context_tokens or model_limit
    if limit > model_limit:
        raise ConfigError(
            f"data.context_tokens is {limit}, but the model {agent.spec.model} sees at most {model_limit} tokens"
            f"{_why(agent.spec.model, model_limit)}: set it to {model_limit} or less, or to null for the model's own "
            "limit"
        )
    check_response_room(data.sampling.max_response_tokens, limit)
    tokenizer = load_tokenizer(agent.spec, data.texts())
    check_tokenizer(agent.spec, tokenizer)
    if not tokenizer.chat_template:
        rank_zero_info(
            f"{agent.spec.model} has no chat template, so its prompts are written with User: and Assistant:. An "
            "instruct model whose chat_template.jinja is missing answers worse so; a base model has to learn the form"
        )
    chat = Chat.of(agent.spec, tokenizer, data.context)
    check_template(agent.objective, chat.template)
    demonstrators = [one.demonstrator for one in data.plan.strategies if isinstance(one, Expert | RandomActions)]
    for entry, env in zip(data.mixture, data.envs, strict=True):
        history = env.repeated_turns if isinstance(env, TextEnv) else 0
        observations = sample_observations(env, history, data.faults.retries, chat.call_format)
        for turn, observed in enumerate(observations):
            check_prompt_room(entry.env, len(chat.prompt((), observed)), limit, turn, history)
        for demonstrator in demonstrators if trains else ():  # whose text has to begin with the response prefix
            text = first_demonstration(
                env, demonstrator.method, demonstrator.respond, data.faults.retries, chat.call_format
            )
            chat.write(text, chat.prompt((), observations[0]))
    if data.demonstrations is not None and trains:
        data.demonstrations.check(chat, limit)


def _why(model: str | Scratch, limit: int) -> str:
    """The reason of a limit that is not that of the model's positions."""
    exact = None if isinstance(model, Scratch) else exact_length(load_config(model).get_text_config())
    return f" here ({exact.reason})" if exact is not None and exact.tokens == limit else ""


def _tell_of_another_task(model: str | Scratch, data: RolloutDataModule) -> None:
    """Says that a policy of this package was trained on another of its tasks."""
    if isinstance(model, Scratch) or not model.startswith(EMBEDDED):
        return
    own = model.removeprefix(EMBEDDED).replace("_", "")
    for entry in data.mixture:
        namespace, _, name = entry.env.rpartition("/")
        if namespace == "tsr" and not own.startswith(name.partition("-")[0].lower()):
            rank_zero_info(
                f"model.policy.model is {model}, which was trained on another task than {entry.env} and has that one's "
                "words alone: give the policy of the task, such as embedded/frozen_lake, or a pretrained model"
            )


def _tell_of_unsaid_form(model: str | Scratch, data: RolloutDataModule) -> None:
    """Says that a model from elsewhere will not be told what an answer looks like."""
    if isinstance(model, Scratch) or was_trained_here(model):
        return
    for entry, env in zip(data.mixture, data.envs, strict=True):
        if isinstance(env, TextEnv) and not env.prompt_style.says_form:
            style = entry.env_kwargs.get("prompt_style", "its default")
            rank_zero_info(
                f"data.env_kwargs.prompt_style of {entry.env} is {style}, which does not say what an answer looks "
                f"like: {model} knows it only if it was trained with this style, so give a pretrained model instruct"
            )


def check_checkpoint(agent: Agent, data: RolloutDataModule, ckpt_path: str, *, resumes: bool) -> None:
    """Refuses a checkpoint that is damaged, or of another model, objective or seed."""
    if ckpt_path == "last":
        return  # looked up once there is a Trainer, and checked then
    path = Path(ckpt_path)
    remedy = "give a file of this machine, since who can change what is downloaded can change what is run"
    require("://" not in ckpt_path, "ckpt_path", ckpt_path, remedy)
    checkpoint = checkpoints.load(path, mmap=True)
    check_identity(checkpoint, agent.spec)
    _check_critic(checkpoint["state_dict"], agent, ckpt_path)
    if resumes:
        state = checkpoint[type(data).__qualname__]
        data.check_seed(state)
        load_learners(data.plan, state)  # by trying: the fit loads them again


def _check_critic(state: dict[str, Any], agent: Agent, ckpt_path: str) -> None:
    has, needs = any(name.startswith("value_head") for name in state), agent.objective.needs.values
    if has != needs:
        raise ConfigError(
            f"ckpt_path is {ckpt_path}, which holds {'a' if has else 'no'} critic, and model.objective is "
            f"{type(agent.objective).__name__}, which trains {'one' if needs else 'none'}: "
            "give the objective that the checkpoint was trained with"
        )
