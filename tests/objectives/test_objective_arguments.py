"""Objectives as arguments: built by jsonargparse from short names, and rejected with one sentence."""

from collections.abc import Callable
from pathlib import Path

import pytest
from jsonargparse import ArgumentError, ArgumentParser
from presets import PRESETS

from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import (
    CISPO,
    DAPO,
    GRPO,
    K2,
    K3,
    PPO,
    RAFT,
    BilevelGAE,
    Clipped,
    ClippedWeight,
    Constant,
    ConstantSchedule,
    CorrectedK3,
    Discount,
    GroupInGroup,
    GroupNormalised,
    ImitateSuccesses,
    K1Reward,
    LinearSchedule,
    Objective,
    OverlongPenalty,
    ReturnAtEnd,
    ReturnToGo,
    RolloutScaled,
    Scale,
    SequenceMean,
    Supervised,
    TokenGAE,
    TurnClipped,
    TurnGAE,
    UnbiasedK3,
    Unchanged,
    ValueLoss,
)

NAN = float("nan")


@pytest.mark.parametrize(
    ("build", "key", "value"),
    [
        (lambda: Clipped(low=-0.2), "Clipped.low", -0.2),
        (lambda: Clipped(low=NAN), "Clipped.low", NAN),
        (lambda: Clipped(high=0.0), "Clipped.high", 0.0),
        (lambda: Clipped(dual=1.0), "Clipped.dual", 1.0),
        (lambda: Clipped(dual=NAN), "Clipped.dual", NAN),
        (lambda: ClippedWeight(low=0.0), "ClippedWeight.low", 0.0),
        (lambda: ClippedWeight(high=-1.0), "ClippedWeight.high", -1.0),
        (lambda: TurnClipped(low=0.0), "TurnClipped.low", 0.0),
        (lambda: TurnClipped(high=NAN), "TurnClipped.high", NAN),
        (lambda: ValueLoss(clip=-1.0), "ValueLoss.clip", -1.0),
        (lambda: ValueLoss(coefficient=-1.0), "ValueLoss.coefficient", -1.0),
        (lambda: PPO(entropy_coefficient=NAN), "PPO.entropy_coefficient", NAN),
        (lambda: GRPO(entropy_coefficient=-0.1), "GRPO.entropy_coefficient", -0.1),
        (lambda: RAFT(entropy_coefficient=NAN), "RAFT.entropy_coefficient", NAN),
        (lambda: K3(float("inf")), "K3.coefficient", float("inf")),
        (lambda: K2(-0.1), "K2.coefficient", -0.1),
        (lambda: CorrectedK3(-0.1), "CorrectedK3.coefficient", -0.1),
        (lambda: UnbiasedK3(NAN), "UnbiasedK3.coefficient", NAN),
        (lambda: K1Reward(-1.0), "K1Reward.coefficient", -1.0),
        (lambda: RAFT(kl=K1Reward(0.1)), "RAFT.kl", K1Reward(0.1)),
        (lambda: TokenGAE(gamma=1.1), "TokenGAE.gamma", 1.1),
        (lambda: TurnGAE(gae_lambda=-0.1), "TurnGAE.gae_lambda", -0.1),
        (lambda: ReturnToGo(gamma=-0.1), "ReturnToGo.gamma", -0.1),
        (lambda: BilevelGAE(gae_lambda=1.1), "BilevelGAE.gae_lambda", 1.1),
        (lambda: BilevelGAE(turn_gamma=1.1), "BilevelGAE.turn_gamma", 1.1),
        (lambda: BilevelGAE(turn_gae_lambda=NAN), "BilevelGAE.turn_gae_lambda", NAN),
        (lambda: GroupInGroup(step_weight=-1.0), "GroupInGroup.step_weight", -1.0),
        (lambda: GroupInGroup(gamma=1.5), "GroupInGroup.gamma", 1.5),
        (lambda: GRPO(top_entropy_quantile=0.0), "GRPO.top_entropy_quantile", 0.0),
        (lambda: PPO(critic=None), "PPO.critic", None),
        (lambda: GRPO(critic=ValueLoss()), "GRPO.critic", ValueLoss()),
        (lambda: Constant(0), "Constant.tokens", 0),
        (lambda: GRPO(format_penalty=-0.1), "GRPO.format_penalty", -0.1),
        (lambda: PPO(format_penalty=NAN), "PPO.format_penalty", NAN),
        (lambda: Discount(1.1), "Discount.gamma", 1.1),
        (lambda: Scale(0.0), "Scale.factor", 0.0),
        (lambda: OverlongPenalty(0, 1), "OverlongPenalty.limit", 0),
        (lambda: OverlongPenalty(8, 9), "OverlongPenalty.buffer", 9),
        (lambda: OverlongPenalty(8, 0), "OverlongPenalty.buffer", 0),
        (lambda: OverlongPenalty(8, 4, -1.0), "OverlongPenalty.penalty", -1.0),
        (lambda: ImitateSuccesses(advantage=0.0), "ImitateSuccesses.advantage", 0.0),
    ],
)
def test_a_bad_argument_raises_one_sentence_with_key_value_and_remedy(
    build: Callable[[], object], key: str, value: object
):
    with pytest.raises(ConfigError) as error:
        build()
    message = str(error.value)
    assert message.startswith(f"{key} is {value!r}: ")
    assert "use " in message
    assert "\n" not in message


def test_the_message_for_a_negative_clip():
    with pytest.raises(ConfigError) as error:
        Clipped(low=-0.2)
    assert str(error.value) == "Clipped.low is -0.2: a clip is a positive width around a ratio of 1; use e.g. 0.2"


def parsed(*arguments: str) -> Objective:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_subclass_arguments(Objective, "objective")
    return parser.instantiate(parser.parse_args(list(arguments))).objective


@pytest.mark.parametrize("kind", PRESETS)
def test_a_short_name_alone_gives_the_defaults(kind: type[Objective]):
    assert parsed("--objective", kind.__name__) == kind()


def test_nested_strategies_by_flags():
    flags = ("--objective.aggregation", "Constant", "--objective.aggregation.tokens", "64")
    assert parsed("--objective", "PPO", "--objective.advantage", "TurnGAE", *flags) == PPO(
        advantage=TurnGAE(), aggregation=Constant(64)
    )
    assert parsed("--objective", "GRPO", "--objective.searched", "ImitateSuccesses") == GRPO(
        searched=ImitateSuccesses()
    )


def test_a_file_overridden_key_by_key_and_by_class(tmp_path: Path):
    path = tmp_path / "grpo.yaml"
    path.write_text(
        """
        objective:
          class_path: GRPO
          init_args:
            surrogate: {class_path: Clipped, init_args: {high: 0.4}}
            aggregation: {class_path: Constant, init_args: {tokens: 9}}
            searched: {class_path: ImitateSuccesses, init_args: {advantage: 0.5}}
        """
    )
    base = ("--config", str(path))
    assert parsed(*base) == GRPO(surrogate=Clipped(high=0.4), aggregation=Constant(9), searched=ImitateSuccesses(0.5))
    assert parsed(*base, "--objective.aggregation.tokens", "5", "--objective.searched", "Unchanged") == GRPO(
        surrogate=Clipped(high=0.4), aggregation=Constant(5), searched=Unchanged()
    )
    assert parsed(*base, "--objective.aggregation", "SequenceMean") == GRPO(
        surrogate=Clipped(high=0.4), aggregation=SequenceMean(), searched=ImitateSuccesses(0.5)
    )


def test_shaping_is_a_list_of_steps(tmp_path: Path):
    path = tmp_path / "dapo.yaml"
    path.write_text(
        """
        objective:
          class_path: DAPO
          init_args:
            advantage:
              class_path: RolloutScaled
              init_args: {estimator: {class_path: GroupNormalised, init_args: {divide_by_std: true}}}
            format_penalty: 0.1
            shaping:
              - class_path: ReturnAtEnd
              - {class_path: OverlongPenalty, init_args: {limit: 60, buffer: 20}}
        """
    )
    assert parsed("--config", str(path)) == DAPO(
        advantage=RolloutScaled(GroupNormalised(divide_by_std=True)),
        format_penalty=0.1,
        shaping=[ReturnAtEnd(), OverlongPenalty(60, 20, 1.0)],
    )


def test_null_disables_a_clip():
    def with_surrogate(objective: str, kind: str, argument: str, value: str) -> Objective:
        given = f'{{"class_path": "{kind}", "init_args": {{"{argument}": {value}}}}}'
        return parsed("--objective", objective, "--objective.surrogate", given)

    assert with_surrogate("CISPO", "ClippedWeight", "low", "0.5") == CISPO(surrogate=ClippedWeight(low=0.5))
    assert with_surrogate("CISPO", "ClippedWeight", "low", "null") == CISPO()
    assert with_surrogate("GRPO", "Clipped", "dual", "3") == GRPO(surrogate=Clipped(dual=3.0))
    assert with_surrogate("GRPO", "Clipped", "dual", "null") == GRPO()
    assert parsed("--objective", "PPO", "--objective.critic", '{"clip": null}') == PPO(critic=ValueLoss(clip=None))


def test_a_supervised_term_and_its_schedule():
    coefficient = "--objective.supervised.coefficient"
    assert parsed("--objective", "GRPO", coefficient, "ConstantSchedule", f"{coefficient}.value", "0.3") == GRPO(
        supervised=Supervised(ConstantSchedule(0.3))
    )
    flags = (coefficient, "LinearSchedule", f"{coefficient}.end", "0.1", f"{coefficient}.epochs", "9")
    assert parsed("--objective", "PPO", *flags) == PPO(supervised=Supervised(LinearSchedule(1.0, 0.1, epochs=9)))


def test_a_misspelt_key_is_rejected():
    with pytest.raises(ArgumentError, match="whitten"):
        parsed("--objective", "PPO", "--objective.whitten", "true")


def test_help_shows_the_docstring(capsys: pytest.CaptureFixture[str]):
    parser = ArgumentParser()
    parser.add_subclass_arguments(Objective, "objective")
    with pytest.raises(SystemExit):
        parser.parse_args(["--objective.help", "PPO"])
    shown = " ".join(capsys.readouterr().out.split())
    for phrase in (
        "advantages of their tokens",
        "importance ratio and advantage",
        "entropy bonus",
        "how the tokens",
        "that search selected",
    ):
        assert phrase in shown
