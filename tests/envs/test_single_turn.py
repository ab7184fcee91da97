"""Environments from a data set and a reward function."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tsr_lightning.envs.base import HasLegalActions, HasOracle
from tsr_lightning.envs.checker import BranchabilityError, check_branchable
from tsr_lightning.envs.outcome import InvalidOutcome
from tsr_lightning.envs.process import process_env
from tsr_lightning.envs.single_turn import SingleTurnEnv, SolvedSingleTurnEnv
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key
from tsr_lightning.rollout.instances import HeldOut, Instances
from tsr_lightning.trajectory import Message

SUMS = [{"prompt": f"{a} + {b} = ?", "solution": a + b, "id": 10 * a + b} for a in range(4) for b in range(4)]


def exact(response: str, row: dict[str, Any]) -> float:
    return float(response.strip() == str(row["solution"]))


def share(response: str, row: dict[str, Any]) -> float:
    """From -1 to 2."""
    return 2 - 3 * min(1.0, abs(int(response or 99) - row["solution"]) / 6)


def sums(**kwargs: Any) -> SolvedSingleTurnEnv:
    return SolvedSingleTurnEnv(SUMS, exact, **kwargs)


def unsolved() -> SingleTurnEnv:
    return SingleTurnEnv(SUMS, exact)


def chats() -> SolvedSingleTurnEnv:
    told = {"role": "system", "content": "Add."}
    rows = [{**row, "prompt": [told, {"role": "user", "content": row["prompt"]}]} for row in SUMS]
    return SolvedSingleTurnEnv(rows, exact)


def test_they_keep_the_contract() -> None:
    assert check_branchable(sums, noisy=False, seeds=range(2)).skipped == ()
    check_branchable(unsolved, responses=["1", "2"], noisy=False, seeds=range(2))
    check_branchable(chats, noisy=False, seeds=range(2))
    check_branchable(lambda: SolvedSingleTurnEnv(SUMS, share, success_at=2), noisy=False, seeds=range(2))


def test_an_id_whose_reward_is_a_function_is_played_in_another_process_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "salted.py").write_text(
        "import gymnasium\n"
        "from tsr_lightning.envs.single_turn import SingleTurnEnv\n"
        "def reward(response, row):\n    return hash(response) % 7 / 8\n"
        "kwargs = {'rows': [{'prompt': 'a'}], 'reward': reward}\n"
        "gymnasium.register('Salted-v0', SingleTurnEnv, kwargs=kwargs)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BranchabilityError, match=r"another process: reward is .*salted hash"):
        check_branchable("salted:Salted-v0", responses=list("abcdefgh"), seeds=[0, 1, 2])


def test_a_response_ends_the_episode_with_its_reward() -> None:
    env = SingleTurnEnv([{"prompt": "1 + 1 = ?", "solution": 2}], share, instructions="Add.", success_at=2)
    observation, info = env.reset(seed=3)
    assert (observation, env.instructions, env.remaining(), env.score()) == ("1 + 1 = ?", "Add.", 1, 0)
    assert info == {"success": False, "action_is_valid": True, "action_is_effective": False}
    begun = env.get_state()
    # share: |2 - 2| / 6 = 0 gives 2; |4 - 2| / 6 = 1/3 gives 1; |99 - 2| / 6 > 1 gives -1
    for response, reward, score, success in (("2", 2.0, 1.0, True), ("4", 1.0, 0.5, False), ("99", -1.0, 0.0, False)):
        env.set_state(begun)
        _, *rest, info = env.step(response)
        assert rest == [reward, True, False]
        assert (env.score(), info["success"], info["action_is_valid"]) == (score, success, True)
        assert env.remaining() == 0
    env.set_state(begun)
    assert env.step("")[4] == {"success": False, "action_is_valid": False, "action_is_effective": False}


def test_rows_of_an_equal_prompt_are_held_out_together() -> None:
    rows = [{"prompt": f"{number % 5}?", "id": number} for number in range(50)]  # ten rows of each prompt
    env = SingleTurnEnv(rows, exact)

    def prompts(instances: Any) -> set[str]:
        return {str(env.reset(seed=instance[1])[0]) for instance in instances}

    instances = Instances([env], Key(1), HeldOut(2))
    held_out, trained_on = prompts(instances.held_out), prompts(instances.training(0, 40).instances)
    assert len(held_out) == 2
    assert trained_on == {f"{number}?" for number in range(5)} - held_out


def test_every_row_is_drawn_and_about_as_often() -> None:
    env = sums()
    counts = dict.fromkeys((row["id"] for row in SUMS), 0)
    for seed in range(1600):
        env.reset(seed=seed)
        counts[env.row["id"]] += 1
    # a row's count has the mean 100 and the standard deviation sqrt(1600 * 1/16 * 15/16) < 10
    assert all(60 < count < 140 for count in counts.values())


def test_solutions_are_an_oracle_and_answers_of_the_right_form() -> None:
    env = sums()
    env.reset(seed=0)
    solution = str(env.row["solution"])
    assert (env.oracle(), env.oracle(0.0)) == (solution, solution)
    assert env.legal_actions() == [str(number) for number in range(7)]
    noisy = {env.oracle(1.0, Key(seed)) for seed in range(200)}
    assert noisy == set(env.legal_actions())
    assert env.step(env.oracle())[1] == 1
    assert env.legal_actions() == []
    assert not isinstance(unsolved(), HasOracle | HasLegalActions)


def test_a_prompt_may_be_messages() -> None:
    env = chats()
    observation, _ = env.reset(seed=0)
    assert observation == (Message("system", "Add."), Message("user", f"{env.row['prompt'][1]['content']}"))


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_rows_are_read_from_a_file(ending: str, tmp_path: Path) -> None:
    texts = {
        "jsonl": '{"question": "a,\\u2028b", "solution": 1}\n\n{"question": "c", "solution": 2}\n',
        "csv": '\ufeffquestion,solution\n"a,\u2028b",1\nc,2\n',
    }
    path = tmp_path / f"rows.{ending}"
    path.write_text(texts[ending], encoding="utf-8")
    env = SolvedSingleTurnEnv(path, exact, prompt="question")
    shown = {(str(env.reset(seed=seed)[0]), env.oracle()) for seed in range(20)}
    assert shown == {("a,\u2028b", "1"), ("c", "2")}
    path.write_text(texts[ending].replace("2", "30"), encoding="utf-8")  # a file that has changed is read again
    assert SolvedSingleTurnEnv(path, exact, prompt="question").rows[1]["solution"] in (30, "30")


GOOD = '{"prompt": "a"}'


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rows.txt", GOOD, r"rows is '.*rows.txt': give a file whose name ends in one of .jsonl, .csv, or a list"),
        ("gone.jsonl", None, r"rows is '.*gone.jsonl': there is no such file"),
        ("rows.jsonl", "", r"rows is '.*rows.jsonl': it has no row"),
        ("rows.jsonl", f"{GOOD}\n{{", r"rows: line 2 is no JSON"),
        ("rows.jsonl", f"{GOOD}\n[1]", r"rows: row 2 is \[1\]; give an object of columns"),
        ("rows.jsonl", '{"question": "a"}', r"rows: row 1 has no 'prompt', only 'question'; name the column by prompt"),
        ("rows.jsonl", '{"prompt": ""}', r"rows: the 'prompt' of row 1 is ''; give a text, or messages"),
        ("rows.jsonl", '{"prompt": [{"role": "user"}]}', r"rows: the 'prompt' of row 1 is \[.*; give a text, or"),
        ("rows.csv", "prompt,solution\na\n", r"rows: row 1 has not the 2 columns"),
        ("rows.csv", 'prompt\n"a', r"rows: line 1 is no CSV"),
    ],
)
def test_what_is_no_data_set_is_refused_in_a_sentence(
    name: str, text: str | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        SingleTurnEnv(str(path), exact)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(ConfigError, match="it is no UTF-8 text"):
        SingleTurnEnv(path, exact)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SingleTurnEnv([], exact), r"SingleTurnEnv.rows is \(\): it has no row"),
        (lambda: SingleTurnEnv(SUMS, "exact"), r"SingleTurnEnv.reward is 'exact': give a function"),  # type: ignore[arg-type]
        (lambda: SingleTurnEnv(SUMS, exact, success_at=0), r"SingleTurnEnv.success_at is 0: give a reward above 0"),
        (lambda: sums(solution="answer"), r"SolvedSingleTurnEnv.rows: the 'answer' of row 1 is None; give a text"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("value", [None, "1", float("nan"), [1.0]])
def test_a_reward_that_is_no_finite_number_is_named(value: Any) -> None:
    env = SingleTurnEnv(SUMS, lambda response, row: value)
    env.reset(seed=0)
    with pytest.raises(InvalidOutcome, match=r"the reward is .*; give a finite number"):
        env.step("1")


def test_a_reward_cannot_change_a_row() -> None:
    def spoils(response: str, row: dict[str, Any]) -> float:
        return float(row.pop("solution"))

    env = SingleTurnEnv(SUMS[5:6], spoils)  # 1 + 1
    for _ in range(2):
        env.reset(seed=0)
        assert env.step("2")[1] == 2


@pytest.mark.slow
def test_it_plays_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, SUMS)))
    (tmp_path / "sums.py").write_text(
        "import gymnasium\n"
        "from tsr_lightning.envs.single_turn import SolvedSingleTurnEnv\n"
        "def reward(response, row):\n    return float(response == str(row['solution']))\n"
        "gymnasium.register('Sums-v0', SolvedSingleTurnEnv, kwargs={'reward': reward})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    env = process_env("sums:Sums-v0", {"rows": str(tmp_path / "rows.jsonl")})
    env.reset(seed=1)
    assert isinstance(env, HasOracle)
    assert env.step(env.oracle())[1] == 1
    env.close()
