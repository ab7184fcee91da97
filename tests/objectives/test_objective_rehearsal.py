"""What a rehearsal on made-up trajectories refuses, each in one sentence with class and property."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests import broken_objectives as broken
from tests.presets import PRESETS
from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives import (
    GRPO,
    K3,
    PPO,
    RAFT,
    BilevelGAE,
    GreedyBaseline,
    ImitateSuccesses,
    K1Reward,
    Objective,
    PolicyGradient,
    RolloutScaled,
    Supervised,
    TokenGAE,
    TreeCredit,
    TurnGAE,
)
from tsr_lightning.objectives.rehearsal import rehearse

ROOT = Path(__file__).resolve().parents[2]
LINE = r"broken_objectives\.py:\d+"


@pytest.mark.parametrize(
    "objective",
    [
        *(preset() for preset in PRESETS),
        GRPO(kl=K3(0.1)),
        GRPO(kl=K1Reward(0.1)),
        GRPO(searched=TreeCredit()),
        GRPO(searched=ImitateSuccesses()),
        GRPO(supervised=Supervised()),
        GRPO(advantage=RolloutScaled()),
        GRPO(advantage=GreedyBaseline()),
        GRPO(top_entropy_quantile=0.2),
        PolicyGradient(whiten=True),
        PPO(advantage=TokenGAE(bootstrap_truncated=True)),
        PPO(advantage=TurnGAE(bootstrap_truncated=True)),
        PPO(advantage=BilevelGAE()),
        PPO(searched=TreeCredit()),
        RAFT(kl=K3(0.1)),
    ],
    ids=lambda objective: type(objective).__name__,
)
def test_what_is_shipped_is_as_it_says(objective: Objective) -> None:
    rehearse(objective)


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (
            broken.ForgetsMinimum(),
            r"ForgetsMinimum\.minimum_compared is 1, and groups of 1 get the advantage 0 whatever",
        ),
        (
            broken.DividesByTheSpreadOfOne(),
            r"DividesByTheSpreadOfOne gives an advantage in groups of 1 \(minimum_compared\) that is not f",
        ),
        (
            broken.ForgetsValues(),
            r"ForgetsValues\.needs has values=False, and its advantage .* reads the critic's values",
        ),
        (broken.ForgetsLogprobs(), r"ForgetsLogprobs\.needs has logprobs_in_credit=False, and its .* reads log-prob"),
        (broken.ForgetsStateKeys(), rf"ForgetsStateKeys failed .*: IndexError: tuple index out of range at .*{LINE}"),
        (
            broken.LooksAtSuccess(),
            r"LooksAtSuccess\.uses_rewards is True, and no reward changes its advantages: let it",
        ),
        (
            broken.LooksAtRewards(),
            r"LooksAtRewards\.uses_rewards is False, and its advantages change with them: let it",
        ),
        (broken.ReturnsRewards(), r"ReturnsRewards\.return_of changes with the rewards, and its advantages do not"),
        (broken.OneForEachTurn(), r"OneForEachTurn gives advantages of shape \(2,\) for 6 trained tokens"),
        (
            broken.LossOfReference(),
            r"LossOfReference\.needs has reference=False, and its loss reads the log-probabilities",
        ),
        (broken.LossOfRatios(), r"LossOfRatios\.needs has logprobs=False, and its loss reads the log-probabilities of"),
        (broken.LossTypo(), rf"LossTypo failed .*: AttributeError: .*'advantage' at .*{LINE}"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_a_mistake_is_one_sentence(part: Any, sentence: str) -> None:
    objective = part if isinstance(part, Objective) else PolicyGradient(advantage=part)
    with pytest.raises(ConfigError, match=sentence) as refused:
        rehearse(objective)
    assert "\n" not in str(refused.value)


def test_the_readmes_baseline_is_as_it_says() -> None:
    [source] = re.findall(r"```python\n# median\.py\n(.*?)```", (ROOT / "docs/extend.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {"__name__": "median"}
    exec(compile(source, "median.py", "exec"), names)
    rehearse(PolicyGradient(advantage=names["MedianBaseline"]()))
