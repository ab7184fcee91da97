"""Objectives as arguments: built by jsonargparse from short names, and rejected with one sentence."""

from collections.abc import Callable
from pathlib import Path

import pytest
from jsonargparse import ArgumentError, ArgumentParser

from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import (
    GRPO,
    PPO,
    RAFT,
    SFT,
    Constant,
    ImitateSuccesses,
    Objective,
    SequenceMean,
    Unchanged,
)

NAN = float("nan")


@pytest.mark.parametrize(
    ("build", "key", "value"),
    [
        (lambda: PPO(clip_low=-0.2), "PPO.clip_low", -0.2),
        (lambda: PPO(clip_low=NAN), "PPO.clip_low", NAN),
        (lambda: PPO(clip_high=0.0), "PPO.clip_high", 0.0),
        (lambda: PPO(value_clip=-1.0), "PPO.value_clip", -1.0),
        (lambda: PPO(value_coefficient=-1.0), "PPO.value_coefficient", -1.0),
        (lambda: PPO(entropy_coefficient=NAN), "PPO.entropy_coefficient", NAN),
        (lambda: PPO(kl_coefficient=float("inf")), "PPO.kl_coefficient", float("inf")),
        (lambda: PPO(gamma=1.1), "PPO.gamma", 1.1),
        (lambda: PPO(gae_lambda=-0.1), "PPO.gae_lambda", -0.1),
        (lambda: PPO(gae="word"), "PPO.gae", "word"),
        (lambda: GRPO(clip_low=0.0), "GRPO.clip_low", 0.0),
        (lambda: GRPO(clip_high=-0.28), "GRPO.clip_high", -0.28),
        (lambda: GRPO(kl_coefficient=-0.1), "GRPO.kl_coefficient", -0.1),
        (lambda: GRPO(entropy_coefficient=-0.1), "GRPO.entropy_coefficient", -0.1),
        (lambda: RAFT(clip_high=0.0), "RAFT.clip_high", 0.0),
        (lambda: RAFT(kl_coefficient=-0.1), "RAFT.kl_coefficient", -0.1),
        (lambda: RAFT(entropy_coefficient=NAN), "RAFT.entropy_coefficient", NAN),
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
        PPO(clip_low=-0.2)
    assert str(error.value) == "PPO.clip_low is -0.2: a clip is a positive width around a ratio of 1; use e.g. 0.2"


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
    assert parsed("--objective", "PPO", "--objective.gae", "turn", *flags) == PPO(gae="turn", aggregation=Constant(64))
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
            clip_high: 0.4
            aggregation: {class_path: Constant, init_args: {tokens: 9}}
            searched: {class_path: ImitateSuccesses, init_args: {advantage: 0.5}}
        """
    )
    base = ("--config", str(path))
    assert parsed(*base) == GRPO(clip_high=0.4, aggregation=Constant(9), searched=ImitateSuccesses(0.5))
    assert parsed(*base, "--objective.aggregation.tokens", "5", "--objective.searched", "Unchanged") == GRPO(
        clip_high=0.4, aggregation=Constant(5), searched=Unchanged()
    )
    assert parsed(*base, "--objective.aggregation", "SequenceMean") == GRPO(
        clip_high=0.4, aggregation=SequenceMean(), searched=ImitateSuccesses(0.5)
    )


def test_null_disables_the_value_clip():
    assert parsed("--objective", "PPO", "--objective.value_clip", "null") == PPO(value_clip=None)


def test_a_misspelt_key_is_rejected():
    with pytest.raises(ArgumentError, match="clip_lo"):
        parsed("--objective", "PPO", "--objective.clip_lo", "0.1")


def test_help_shows_the_docstring(capsys: pytest.CaptureFixture[str]):
    parser = ArgumentParser()
    parser.add_subclass_arguments(Objective, "objective")
    with pytest.raises(SystemExit):
        parser.parse_args(["--objective.help", "PPO"])
    shown = " ".join(capsys.readouterr().out.split())
    for phrase in (
        "1 - clip_low",
        "critic's loss",
        "GAE's lambda",
        "a limit truncated",
        "How the tokens",
        "that search selected",
    ):
        assert phrase in shown
