"""Checks of the contract in `engines/base.py`, on a tiny policy with made-up weights. Public: run them over an engine
of your own; `tsr` does before a model loads."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from tsr_lightning.engines.base import Engine, EngineSpec, Prompt, Response
from tsr_lightning.engines.local_model import inference_mode
from tsr_lightning.errors import ConfigError, describe
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import PolicySpec, Scratch
from tsr_lightning.policy.vocabulary import load_tokenizer
from tsr_lightning.rng import Key

_SPEC = PolicySpec(Scratch(32, 1, 2, 64, 64), kernels="torch")
_END, _ROOM, _SEEDS, _TEMPERATURE = frozenset(range(60)), 4, 8, 0.8
_TOLERANCE = 0.05  # nats: engines may compute in bfloat16


def check_engine(spec: EngineSpec) -> None:
    """Compares what an engine samples with the policy's own distribution, before and after its weights change.

    Raises:
        ConfigError: the engine breaks the contract: which property, and what to do about it.
    """
    policy = Policy(_SPEC, load_tokenizer(_SPEC, ["engine"]), critic=True)
    _change(policy, Key(1))
    try:
        engine = spec.build(policy, _END, 64)
        try:
            _check(spec, engine, policy)
        finally:
            engine.close()
    except ConfigError:
        raise
    except Exception as error:
        name = type(spec).__name__
        raise ConfigError(f"{name} failed in its rehearsal on a tiny policy: {describe(error)}") from error


def _check(spec: EngineSpec, engine: Engine, policy: Policy) -> None:
    name = type(engine).__name__
    prompts = [_prompt(ids, i) for i, ids in enumerate([(1, 2, 3), (1, 2, 3, 4, 5), (7,)])]
    engine.sync()
    sampled = engine.generate(prompts, _TEMPERATURE)
    _check_form(name, prompts, sampled)
    _check_logprobs(name, policy, prompts, sampled, "gives", "return those of the sampled ids at the temperature")
    _check_draws(name, engine, prompts, sampled)
    _check_values(name, engine, policy, prompts)
    _check_costs(name, engine)
    if spec.can_exclude:
        _check_exclusion(name, engine)
    engine.release()
    _change(policy, Key(2))  # as an update does, in place
    engine.sync()
    again = engine.generate(prompts, _TEMPERATURE)
    remedy = "let sync take over the weights, and drop what was computed with those before"
    _check_logprobs(name, policy, prompts, again, "gives, after the weights changed and sync was called,", remedy)


def _check_form(name: str, prompts: Sequence[Prompt], sampled: Sequence[Sequence[Response]]) -> None:
    counts, wanted = [len(group) for group in sampled], [len(prompt.seeds) for prompt in prompts]
    if counts != wanted:
        raise ConfigError(f"{name}.generate gives {counts} responses for {wanted} seeds: give one for each, by prompt")
    for response in (response for group in sampled for response in group):
        ids = response.ids
        if len(ids) != len(response.logprobs):
            raise ConfigError(f"{name} gives {len(response.logprobs)} logprobs for {len(ids)} ids: give one for each")
        if not 0 < len(ids) <= _ROOM:
            raise ConfigError(f"{name} gives {len(ids)} ids: give from 1 to max_new_tokens, here {_ROOM}")
        if _END.intersection(ids[:-1]):
            raise ConfigError(f"{name} samples on after an id of end_ids: end the response with it")
        if response.finished != (ids[-1] in _END):
            is_in = "in" if ids[-1] in _END else "not in"
            raise ConfigError(
                f"{name} gives finished={response.finished} where the last id is {is_in} end_ids: correct it"
            )
        if len(ids) < _ROOM and not response.finished:
            raise ConfigError(f"{name} gives {len(ids)} ids without an end: sample until end_ids or max_new_tokens")


def _check_logprobs(
    name: str,
    policy: Policy,
    prompts: Sequence[Prompt],
    sampled: Sequence[Sequence[Response]],
    gives: str,
    remedy: str,
) -> None:
    for prompt, response in ((prompt, one) for prompt, group in zip(prompts, sampled, strict=True) for one in group):
        expected = _logprobs(policy, prompt.ids, response.ids)
        worst = max(zip(response.logprobs, expected, strict=True), key=lambda pair: abs(pair[0] - pair[1]))
        if not abs(worst[0] - worst[1]) < _TOLERANCE:
            raise ConfigError(f"{name} {gives} the log-probability {worst[0]:.2f} where it is {worst[1]:.2f}: {remedy}")


def _check_draws(name: str, engine: Engine, prompts: Sequence[Prompt], sampled: Sequence[Sequence[Response]]) -> None:
    if all(len({response.ids for response in group}) == 1 for group in sampled):
        raise ConfigError(f"{name} gives one response for all seeds: draw each with its own")
    alone = [engine.generate([prompt], _TEMPERATURE)[0] for prompt in reversed(prompts)][::-1]
    if [[one.ids for one in group] for group in alone] != [[one.ids for one in group] for group in sampled]:
        raise ConfigError(
            f"{name} gives other responses when prompts come alone and in another order: draw from Prompt.seeds alone, "
            "with no generator or state that responses share"
        )
    for prompt, group in zip(prompts, sampled, strict=True):
        [rest] = engine.generate([replace(prompt, seeds=prompt.seeds[1:])], _TEMPERATURE)
        if [one.ids for one in rest] != [one.ids for one in group[1:]]:
            raise ConfigError(
                f"{name} gives a seed of Prompt.seeds another response when it stands elsewhere: keep their order"
            )
    first, second = ([one.ids for one in group] for group in engine.generate([prompts[0], prompts[0]], 0.0))
    if len({*first, *second}) > 1:
        raise ConfigError(f"{name} gives several responses at temperature 0: take the most likely token")


def _check_values(name: str, engine: Engine, policy: Policy, prompts: Sequence[Prompt]) -> None:
    given, expected = engine.values([prompt.ids for prompt in prompts]), []
    with inference_mode(policy):
        for prompt in prompts:
            states = policy.causal_lm(torch.tensor([prompt.ids]), output_hidden_states=True).hidden_states
            expected.append(float(policy.values(states[-1][0, -1:])))
    if len(given) != len(expected) or not all(abs(a - b) < _TOLERANCE for a, b in zip(given, expected, strict=True)):
        raise ConfigError(f"{name}.values gives {given} where the critic gives {expected} at the end of the prompts")


def _check_costs(name: str, engine: Engine) -> None:
    spent, after = engine.take_costs(), engine.take_costs()
    if spent.tokens_generated == 0 or after.tokens_generated > 0:
        counts = f"{spent.tokens_generated}, and then {after.tokens_generated}, tokens_generated"
        raise ConfigError(f"{name}.take_costs gives {counts}: count the sampled ids since the last call")


def _check_exclusion(name: str, engine: Engine) -> None:
    prompt = replace(_prompt((1, 2, 3), 9), max_new_tokens=1, seeds=tuple(range(64)))
    [before] = engine.generate([prompt], _TEMPERATURE)
    excluded = tuple({response.ids: response for response in before[:4]}.values())
    [after] = engine.generate([replace(prompt, excluded=excluded)], _TEMPERATURE)
    if {response.ids for response in excluded} & {response.ids for response in after}:
        raise ConfigError(
            f"{name} samples what Prompt.excluded names: leave it out, or set EngineSpec.can_exclude False"
        )


def _prompt(ids: tuple[int, ...], number: int) -> Prompt:
    return Prompt(ids, tuple(Key(number).fold_in(i).bits() for i in range(_SEEDS)), _ROOM)


def _logprobs(policy: Policy, prompt: Sequence[int], response: Sequence[int]) -> list[float]:
    with inference_mode(policy):
        logits = policy.causal_lm(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    logprobs = torch.log_softmax(logits.float() / _TEMPERATURE, -1)
    return logprobs.gather(1, torch.tensor(response).unsqueeze(1)).squeeze(1).tolist()


@torch.no_grad()
def _change(policy: Policy, key: Key) -> None:
    """Moves every weight in place, far enough that all distributions change."""
    draws = torch.Generator().manual_seed(key.bits() % 2**31)
    for weight in policy.parameters():
        weight.add_(torch.randn(weight.shape, generator=draws), alpha=0.3)
