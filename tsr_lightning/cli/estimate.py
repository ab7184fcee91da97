"""`tsr estimate`: memory by part and hours that a configuration is expected to need. No model is loaded."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch

from tsr_lightning.cli.config_files import names_config
from tsr_lightning.cli.room import check_prompt_room, check_response_room
from tsr_lightning.cli.subcommands import PLAIN, PlainParser, at_least_one, refuse_checkpoint
from tsr_lightning.cli.trainer_keys import callbacks_of
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.errors import ConfigError, require
from tsr_lightning.estimate.cards import CARDS, DEFAULT, HERE, Machine, machine_of
from tsr_lightning.estimate.chosen_sizes import sized
from tsr_lightning.estimate.here import measured_card
from tsr_lightning.estimate.lookup import find_shape, find_tokenizer
from tsr_lightning.estimate.markdown import page
from tsr_lightning.estimate.prompt_lengths import EpisodeTokens, average, counter_of, longest, measure
from tsr_lightning.estimate.setup import Case, Evaluation, Setup
from tsr_lightning.estimate.weights import adapter_parameters
from tsr_lightning.estimate.workload import Episode
from tsr_lightning.policy.sharding import check_not_quantised
from tsr_lightning.rollout.protocol import EvalProtocol
from tsr_lightning.search.rehearsal import rehearse
from tsr_lightning.search.strategies import Sample
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.fsdp2 import FSDP2
from tsr_lightning.training.hooks import LimitsGroups
from tsr_lightning.training.number_checks import check_held_out, check_numbers

_SEEDS = range(4)  # of the episodes that are played to see how long prompts are
_EXPECTED = 3  # an expected response is this part of the longest that is allowed, unless told otherwise

# The configuration of `tsr fit` by its flags: the agent, the data module, and the keys and callbacks of the Trainer
Parse = Callable[[Sequence[str]], "tuple[Agent, RolloutDataModule, Mapping[str, Any]]"]


@dataclass(frozen=True)
class Assumed:
    """What is known of episodes that have not been played.

    Args:
        response_tokens: of an expected response; None for a third of the limit.
        turns: of an expected episode; None for the most.
        characters_per_token: of prompts, where the model's tokenizer is not on this machine.
    """

    response_tokens: int | None = None
    turns: int | None = None
    characters_per_token: float = 3.0


def make_parser() -> PlainParser:
    parser = PlainParser(
        prog="tsr estimate",
        description=PLAIN["estimate"],
        epilog="All other flags are those of tsr fit, --config first of all.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--machine",
        action="append",
        metavar="NAME",
        help=f"one of {', '.join(CARDS)}, several as 8xa100, or {HERE}, whose speeds are measured; may be repeated; "
        f"{', '.join(DEFAULT)} if not given",
    )
    parser.add_argument(
        "--response_tokens",
        type=at_least_one,
        help="tokens of an expected response, as rollout/response_tokens of a run; if not given, a third of the limit",
    )
    parser.add_argument(
        "--turns", type=at_least_one, help="turns of an expected episode, such as rollout/turns; the most if not given"
    )
    parser.add_argument(
        "--characters_per_token",
        type=_positive,
        default=Assumed.characters_per_token,
        help="of prompts, where the model's tokenizer is not on this machine",
    )
    return parser


def estimate(args: Sequence[str], parse: Parse) -> int:
    """Runs the subcommand and returns the exit status.

    Args:
        args: the command line after `tsr estimate`.
        parse: reads all flags that are not its own.
    """
    given, others = make_parser().parse_known_args(args)
    refuse_checkpoint("tsr estimate", others, "counts whole runs")
    if not names_config(others):
        raise ConfigError("tsr estimate needs a configuration: give --config FILE, such as --config paper/sokoban.yaml")
    machines = [_machine(name) for name in given.machine or DEFAULT]
    assumed = Assumed(given.response_tokens, given.turns, given.characters_per_token)
    agent, data, trainer = parse(others)
    with closing(data):
        setup, notes = setup_of(agent, data, trainer, assumed)
    if None in (setup.engine.kv_cache_mib, setup.updates.micro_batch_tokens):
        smallest = min(machines, key=lambda machine: machine.card.memory_gib)
        setup = sized(setup, smallest.card, smallest.count)
        notes.append(f"micro_batch_tokens and kv_cache_mib, where they are null, are chosen for {smallest.name}")
    print(page(setup, machines, notes), end="")
    return 0


def _machine(name: str) -> Machine:
    if name != HERE:
        return machine_of(name)
    return Machine(measured_card(torch.device("cuda" if torch.cuda.is_available() else "cpu")))


def setup_of(
    agent: Agent, data: RolloutDataModule, trainer: Mapping[str, Any], given: Assumed = Assumed()
) -> tuple[Setup, list[str]]:
    """What the estimate depends on, and where it comes from, a sentence each."""
    spec, needs = agent.spec, agent.objective.needs
    check_numbers(data)
    check_held_out(data.held_out.instances)
    for strategy in data.plan.strategies:
        rehearse(strategy)
    engine = data.engine
    name = type(engine).__name__
    is_sharded = trainer.get("strategy") == "fsdp2" or isinstance(trainer.get("strategy"), FSDP2)
    if is_sharded:
        check_not_quantised(spec)
    require(isinstance(engine, Transformers), "data.engine", name, "estimates know the engine Transformers alone")
    assert isinstance(engine, Transformers)
    tokenizer = find_tokenizer(spec, data.texts)
    shape, source = find_shape(spec, tokenizer)
    limit = min(shape.max_position_embeddings, data.context_tokens or shape.max_position_embeddings)
    counter = counter_of(tokenizer, given.characters_per_token, spec)
    allowed = data.sampling.max_response_tokens
    check_response_room(allowed, limit)
    played: list[EpisodeTokens] = []
    for entry, env in zip(data.mixture, data.envs, strict=True):
        own = measure(env, counter, _SEEDS, data.faults.retries)
        check_prompt_room(entry.env, Episode(longest(own), data.context, allowed).prompt(0), limit)
        played += own
    response = min(allowed, given.response_tokens or -(-allowed // _EXPECTED))
    mean = average(played)

    def case(name: str, episode: Episode, longest: int) -> Case:
        return Case(name, episode.within(limit, data.episode_tokens), longest)

    worst = case("worst", Episode(longest(played), data.context, allowed), allowed)
    turns = given.turns or mean.turns
    most = min(allowed, 2 * response)
    expected = case("expected", Episode(mean.first(turns), data.context, response), most)
    epochs = _epochs(trainer)
    limits = [callback for callback in callbacks_of(trainer) if isinstance(callback, LimitsGroups)]

    def kept(groups: int) -> int:
        return min([groups, *(callback.kept_at_most(groups) for callback in limits)])

    setup = Setup(
        shape=shape,
        spec=spec,
        autocast="mixed" in str(trainer.get("precision")),
        has_critic=needs.values,
        keeps_reference=needs.reference,
        estimates=int((needs.logprobs or needs.values) and data.updates.reuse_logprobs is not True)
        + int(needs.reference),
        scores_demonstrations=needs.demonstrated_logprobs or needs.values or needs.reference,
        scores_baselines=needs.estimates_in_credit,
        trains_trees=needs.tree,
        trains_observations=needs.observations,
        plan=data.plan,
        epochs=epochs,
        instances=data.instances_per_epoch,
        kept=kept,
        evaluations=()
        if trainer.get("limit_val_batches") == 0
        else tuple(_evaluation(one, epochs, trainer) for one in data.evaluations),
        held_out=data.held_out.instances,
        worst=worst,
        expected=expected,
        updates=data.updates,
        engine=engine,
        concurrency=data.concurrency,
        max_response_tokens=allowed,
        context_tokens=limit,
        is_sharded=is_sharded,
        is_deterministic=trainer.get("deterministic") not in (None, False),
    )
    counted = "the model's tokenizer" if tokenizer else f"{given.characters_per_token:g} characters a token"
    notes = [
        f"its shape is that of {source}",
        f"prompts are those of {len(played)} episodes played here, counted by {counted}",
        f"worst: every response has {allowed} tokens; expected: {response}, and {most} at most"
        + _origin(given.response_tokens, allowed),
    ]
    if data.dynamic_sampling is not None:
        notes.append("data.dynamic_sampling may draw further rounds, which are not counted")
    return setup, notes


def _origin(given: int | None, allowed: int) -> str:
    """Where the tokens of an expected response come from, where that is not the flag itself."""
    if given is None:
        return " (assumed: give --response_tokens)"
    cut = f" (--response_tokens {given} is cut to data.sampling.max_response_tokens)"
    return cut if given > allowed else ""


def known_setup(agent: Agent, data: RolloutDataModule, trainer: Mapping[str, Any]) -> Setup | None:
    """Returns the setup of a run, or None where the shape of its model or adapter is unknown. An epoch limit that an
    estimate does not take counts as one epoch. Arguments as of `setup_of`."""
    epochs = trainer.get("max_epochs")
    try:
        known = {**trainer, "max_epochs": max(1, epochs) if isinstance(epochs, int) else 1}
        setup, _ = setup_of(agent, data, known)
        adapter_parameters(setup.shape, setup.spec.adapter)
        return setup
    except ConfigError:  # an estimate does not know every model; what else is wrong was refused before
        return None


def _evaluation(protocol: EvalProtocol, epochs: int, trainer: Mapping[str, Any]) -> Evaluation:
    """The evaluation, and how often it is made: before training, unless the sanity check is off, and after every so
    many epochs."""
    interval = int(trainer.get("check_val_every_n_epoch") or epochs)
    validations = epochs // max(1, interval)
    every = protocol.every_n_validations or max(1, validations)
    times = int(trainer.get("num_sanity_val_steps") != 0) + -(-validations // every)
    return Evaluation(protocol.search or Sample(), protocol.samples, times)


def _epochs(trainer: Mapping[str, Any]) -> int:
    epochs = trainer.get("max_epochs")
    known = isinstance(epochs, int) and epochs >= 1
    require(known, "trainer.max_epochs", epochs, "give the number of epochs to estimate")
    return int(str(epochs))


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number above 0")
    return value
