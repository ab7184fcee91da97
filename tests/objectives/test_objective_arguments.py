"""Objectives as arguments: built by jsonargparse from short names, and rejected with one sentence."""

from collections.abc import Callable
from pathlib import Path

import pytest
from jsonargparse import ArgumentError, ArgumentParser

from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import (
    GRPO,
    K3,
    PPO,
    RAFT,
    SFT,
    Clipped,
    Constant,
    ConstantSchedule,
    ImitateSuccesses,
    LinearSchedule,
    Objective,
    SequenceMean,
    Supervised,
    TokenGAE,
    TurnGAE,
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
        (lambda: ValueLoss(clip=-1.0), "ValueLoss.clip", -1.0),
        (lambda: ValueLoss(coefficient=-1.0), "ValueLoss.coefficient", -1.0),
        (lambda: PPO(entropy_coefficient=NAN), "PPO.entropy_coefficient", NAN),
        (lambda: GRPO(entropy_coefficient=-0.1), "GRPO.entropy_coefficient", -0.1),
        (lambda: RAFT(entropy_coefficient=NAN), "RAFT.entropy_coefficient", NAN),
        (lambda: K3(float("inf")), "K3.coefficient", float("inf")),
        (lambda: TokenGAE(gamma=1.1), "TokenGAE.gamma", 1.1),
        (lambda: TurnGAE(gae_lambda=-0.1), "TurnGAE.gae_lambda", -0.1),
        (lambda: PPO(critic=None), "PPO.critic", None),
        (lambda: GRPO(critic=ValueLoss()), "GRPO.critic", ValueLoss()),
        (lambda: Constant(0), "Constant.tokens", 0),
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


@pytest.mark.parametrize("kind", [PPO, GRPO, RAFT, SFT])
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


def test_null_disables_the_value_clip():
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
