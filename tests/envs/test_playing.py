"""Calls of an environment before a run: a failure is one sentence, a hang is ended or told."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.spoiled import Spoiled
from tsr_lightning.envs.make import make_env
from tsr_lightning.envs.playing import check_first_reset, valid_response
from tsr_lightning.envs.process import process_env
from tsr_lightning.envs.sample_texts import sample_observations, sample_texts
from tsr_lightning.envs.waiting import told
from tsr_lightning.errors import EnvFault, RunError
from tsr_lightning.estimate.prompt_lengths import TokenCounter, measure

ID = "tests.spoiled:Spoiled-v0"
WAYS: dict[str, Callable[[Any], Any]] = {
    "sample texts": lambda env: list(sample_texts(env)),
    "first observations": lambda env: sample_observations(env, 3),
    "estimate": lambda env: measure(env, TokenCounter(len, 1, 1, 0), range(2)),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        ("reset raises", r"reset of Spoiled \(instance 0\) raised IndexError: .* at tests/spoiled\.py:\d+; fix the"),
        (
            "step raises",
            r"step of Spoiled \(instance 0, response '[rl]*'\) raised KeyError: 'typo' at tests/spoiled\.py",
        ),
        ("step exits", r"step of Spoiled .* raised SystemExit: 0 at tests/spoiled\.py"),
        ("step faults", r"step of Spoiled .* failed: EnvFault: no page at tests/spoiled\.py"),
        (
            "legal actions raise",
            r"legal_actions of Spoiled \(instance \d\) raised AttributeError: no board at tests/spo",
        ),
        ("parts", r"step of Spoiled .* is wrong: the content of the user message is \[.*\]; give one string"),
        ("first parts", r"reset of Spoiled .* is wrong: the content of the user message is \[.*\]; give one string"),
    ],
)
def test_a_failure_is_one_sentence(way: Callable[[Any], Any], mistake: str, sentence: str) -> None:
    with pytest.raises(RunError, match=sentence) as refused:
        way(Spoiled(mistake))
    assert "\n" not in str(refused.value)


class Shaky(Spoiled):
    """Raises EnvFault at the calls with these numbers; resets and steps are counted together."""

    def __init__(self, *failing: int) -> None:
        super().__init__()
        self.calls, self.failing = 0, failing

    def _spoiled(self, method: str, result: Any) -> Any:
        self.calls += method in ("reset", "step")
        if self.calls in self.failing and method in ("reset", "step"):
            raise EnvFault("no page")
        return result


RETRYING: dict[str, Callable[[Any, int], Any]] = {
    "sample texts": lambda env, retries: list(sample_texts(env, retries)),
    "first observations": lambda env, retries: sample_observations(env, 3, retries),
    "estimate": lambda env, retries: measure(env, TokenCounter(len, 1, 1, 0), range(2), retries),
}


@pytest.mark.parametrize("way", RETRYING.values(), ids=RETRYING)
def test_an_episode_that_fails_is_played_again(way: Callable[[Any, int], Any]) -> None:
    """From its beginning, and as it would have gone."""
    assert way(Shaky(1), 1) == way(Shaky(3), 1) == way(Shaky(1, 3), 2) == way(Shaky(), 0)
    with pytest.raises(RunError, match=r"step of Shaky .* failed: EnvFault: no page"):
        way(Shaky(3), 0)
    with pytest.raises(RunError, match=r"reset of Shaky .* failed: EnvFault: no page"):
        way(Shaky(1, 2), 1)


class ShakyListing(Shaky):
    def legal_actions(self) -> list[str]:
        return ["right", "left"]


def test_an_example_of_a_valid_response_ends_no_run() -> None:
    """A notice shows it, and does without where the environment's page is gone for the moment."""
    assert valid_response(ShakyListing()) == "right"
    assert valid_response(ShakyListing(1)) is None
    assert valid_response(Shaky(1)) is None  # lists none, and is not played


def test_a_first_reset_that_fails_is_tried_again() -> None:
    env = Shaky(1)
    check_first_reset(ID, lambda: env, retries=1)
    assert env.calls == 2
    with pytest.raises(RunError, match=r"reset of Shaky \(instance 0\) failed: EnvFault: no page"):
        check_first_reset(ID, lambda: Shaky(1, 2), retries=1)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_process_changes_no_text(way: Callable[[Any], Any]) -> None:
    """With the environment's own legal actions."""
    env = process_env(ID, {})
    assert way(env) == way(Spoiled())
    env.close()


def test_a_first_reset_that_hangs_is_ended_by_the_time_limit() -> None:
    made = []

    def make() -> Any:
        made.append(process_env(ID, {"mistake": "reset hangs"}, timeout=0.2))
        return made[-1]

    started = time.monotonic()
    sentence = r"reset of tests\.spoiled:Spoiled-v0 \(instance 0\) failed: EnvTimedOut: no answer within 0\.2 s; see"
    with pytest.raises(RunError, match=sentence):
        check_first_reset(ID, make)
    assert time.monotonic() - started < 20
    assert made[0]._worker is None


@pytest.mark.parametrize("mistake", ["reset raises", "first parts"])
def test_a_first_reset_that_fails_is_refused(mistake: str) -> None:
    with pytest.raises(RunError, match=r"reset of Spoiled-v0 \(instance 0\) "):
        check_first_reset(ID, partial(make_env, ID, mistake=mistake))


def test_what_cannot_be_made_is_refused() -> None:
    def make() -> Any:
        raise SystemExit(0)

    with pytest.raises(
        RunError, match=r"__init__ of tests\.spoiled:Spoiled-v0 raised SystemExit: 0 at tests/envs/test_pl"
    ):
        check_first_reset(ID, make)


def test_a_long_wait_is_told_and_a_short_one_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with told("a page", first=30):
        pass
    assert capsys.readouterr().err == ""
    with told("a page", first=0.02):
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 4  # after 0.02, 0.04, 0.08, 0.16 s, and later on a busy machine
    assert all(line.startswith("waiting for a page (0 s); with data.env_processes true") for line in lines)
