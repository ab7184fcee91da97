"""`evaluate` plays a policy on held-out instances, as the validation of a fit does."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from commands import in_folder, tsr

from tsr_lightning import (
    ActorSpec,
    ConfigError,
    EnvFactory,
    EvalProtocol,
    HeldOut,
    Policy,
    PolicySpec,
    RunError,
    Scratch,
    evaluate,
)
from tsr_lightning.policy.export import export
from tsr_lightning.policy.vocabulary import load_tokenizer
from tsr_lightning.search.adaptive_tree import AdaptiveTree

LAKE = EnvFactory.of("tsr/FrozenLake-v0", {"prompt_style": "bare"})
HELD_OUT = HeldOut(6)
PROTOCOL = EvalProtocol("sampled", samples=4)


def test_a_policy_and_its_folder_play_the_same_episodes():
    spec = PolicySpec("embedded/frozen_lake")
    policy = Policy(spec, load_tokenizer(spec, ()), critic=False)
    of_policy = evaluate(policy, LAKE, PROTOCOL, held_out=HELD_OUT)
    of_name = evaluate("embedded/frozen_lake", LAKE, PROTOCOL, held_out=HELD_OUT)
    assert of_policy.groups == of_name.groups
    assert len(of_policy.episodes) == 6 * 4


def test_a_new_model_is_played_with_its_own_vocabulary_alone(tmp_path: Path):
    spec = PolicySpec(Scratch(hidden_size=32, num_hidden_layers=1))
    tokenizer = load_tokenizer(spec, LAKE.texts())
    policy = Policy(spec, tokenizer, critic=False)
    assert len(evaluate(policy, LAKE, PROTOCOL, held_out=HELD_OUT).episodes) == 6 * 4
    other = EnvFactory.of("tsr/Sokoban-v0", {"prompt_style": "bare"})
    with pytest.raises(ConfigError, match=r"env is .tsr/Sokoban-v0.*: the policy was trained with another vocabulary"):
        evaluate(policy, other, PROTOCOL, held_out=HELD_OUT)
    export(policy, tokenizer, tmp_path)
    assert len(evaluate(str(tmp_path), other, PROTOCOL, held_out=HeldOut(1)).episodes) == 4


def test_a_result_has_the_figures_of_the_protocol():
    result = evaluate("embedded/frozen_lake", LAKE, PROTOCOL, held_out=HELD_OUT)
    solved = [[one.succeeded for one in group.trajectories] for group in result.groups]
    assert result.success_rate == sum(map(sum, solved)) / 24
    assert result.pass_at(4) == sum(map(any, solved)) / 6
    assert result.pass_at(1) == pytest.approx(result.success_rate)
    assert result.success.low < result.success_rate < result.success.high
    assert result.mean_return == pytest.approx(sum(one.episode_return for one in result.episodes) / 24)
    turns = [turn.valid for one in result.episodes for turn in one.turns]
    assert result.valid_actions == sum(turns) / len(turns)
    assert str(result).startswith(f"sampled: success rate {result.success_rate:.3f} [")
    assert result.costs.tokens_generated > 0


def test_instances_that_lost_episodes_are_left_out_of_pass_at_k():
    result = evaluate("embedded/frozen_lake", LAKE, PROTOCOL, held_out=HELD_OUT)
    first, *others = result.groups
    fewer = replace(result, groups=(replace(first, trajectories=first.trajectories[:3]), *others))
    assert fewer.pass_at(4) == replace(result, groups=tuple(others)).pass_at(4)
    for k in (0, 5):
        with pytest.raises(ConfigError, match=rf"k is {k}: give 1 to 4, the protocol's samples"):
            result.pass_at(k)


def test_an_environment_is_named_by_its_id_alone():
    result = evaluate("embedded/frozen_lake", "tsr/FrozenLake-v0", EvalProtocol(temperature=0.0), held_out=HELD_OUT)
    assert len(result.episodes) == 6


def test_an_environment_that_fails_too_often_ends_the_evaluation():
    broken = EnvFactory.of("spoiled:Spoiled-v0", {"mistake": "step faults"})
    with pytest.raises(RunError, match=r"2 of 2 rollouts failed in the evaluation sampled \(limit 0\): .*no page"):
        evaluate("embedded/frozen_lake", broken, EvalProtocol("sampled"), held_out=HeldOut(2))


@pytest.mark.slow
def test_figures_are_those_of_a_validation(tmp_path: Path):
    flags = ("--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false", "--data.held_out.instances", "6")
    with in_folder(tmp_path):
        cli = tsr("validate", "--config", "frozen_lake.yaml", *flags)
    data = cli.datamodule
    spec = ActorSpec(sampling=data.sampling)
    result = evaluate(cli.model.policy, data.env_factory, data.evaluations[0], held_out=HELD_OUT, actor=spec)
    assert result.protocol.name == "sampled"
    figures = cli.trainer.callback_metrics
    assert float(figures["val/sampled/success_rate"]) == pytest.approx(result.success_rate)
    assert float(figures["val/sampled/return"]) == pytest.approx(result.mean_return)
    assert float(figures["val/sampled/valid_actions"]) == pytest.approx(result.valid_actions)
    assert float(figures["val/sampled/pass@2"]) == pytest.approx(result.pass_at(2))


def test_a_search_by_a_score_that_only_rollouts_teach_is_refused() -> None:
    sentence = r"data\.evaluations\.mine\.search\.scorer is 'ProcessScore': it learns from the rollouts of data\.plan"
    with pytest.raises(ConfigError, match=sentence):
        evaluate("embedded/frozen_lake", LAKE, EvalProtocol("mine", search=AdaptiveTree()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(EvalProtocol, samples=0), r"data\.evaluations\.sampled\.samples is 0: give 1"),
        (partial(EvalProtocol, temperature=-1.0), r"is -1\.0: give 0"),
    ],
)
def test_a_protocol_that_measures_nothing_is_refused(make: Callable[[], EvalProtocol], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
