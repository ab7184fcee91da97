"""Environment classes of TRL run as they are."""

import asyncio
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.envs.trl_examples import IncrementEnv, reward_func
from tsr_lightning.envs.checker import check_branchable
from tsr_lightning.envs.global_random import lent
from tsr_lightning.envs.outcome import InvalidOutcome
from tsr_lightning.envs.trl_env import TRLEnv
from tsr_lightning.errors import ConfigError
from tsr_lightning.trajectory import Message

ROWS = [{"prompt": "Count.", "goal": goal} for goal in (3, 4)]
STEP = '<tool_call>\n{"name": "increment", "arguments": {"step": %d}}\n</tool_call>'


def test_an_episode_is_that_of_the_class():
    env = TRLEnv("tests.envs.trl_examples.IncrementEnv", rows=ROWS[:1])
    before = random.getstate()
    [asked], _ = env.reset(seed=0)
    assert asked.content == "Count. Reach 3."
    assert [tool.name for tool in env.offer().tools] == ["increment"]
    [counted], reward, *_ = env.step(STEP % 2)
    assert (counted.role, counted.content, reward) == ("tool", "2", 0.1)
    kept = env.get_state()
    [refused], *_, info = env.step(STEP % 9)
    assert refused.content == "{'error': 'too far'}"
    assert info["action_is_valid"]
    env.set_state(kept)
    _, reward, terminated, _, info = env.step(STEP % 1)
    assert (reward, terminated, info["success"]) == (pytest.approx(0.9), True, True)
    assert random.getstate() == before


SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Count."}


def test_what_reset_returns_follows_the_last_message_of_a_conversational_prompt():
    env = TRLEnv(IncrementEnv, rows=[{"prompt": [SYSTEM, USER], "goal": 3}])
    for _ in range(2):  # the row is left as it is
        messages, _ = env.reset(seed=0)
        assert messages == [Message("system", "Be brief."), Message("user", "Count. Reach 3.")]
    check_branchable(env, seeds=range(2), responses=[STEP % 1, STEP % 2])


@pytest.mark.parametrize("prompt", [[], [{"role": "user"}], [{**USER, "role": "boss"}], ["Count."], 3, None])
def test_a_prompt_that_is_neither_a_text_nor_messages_is_refused(prompt):
    with pytest.raises(ConfigError, match=r"TRLEnv\.rows: the 'prompt' of row 2 is .*; give a text, or messages with"):
        TRLEnv(IncrementEnv, rows=[ROWS[0], {"prompt": prompt}])


class Varied:
    """Methods of every kind."""

    def reset(self, prompt, **columns) -> str:
        self.asked, self.number = prompt, 0
        return f" Row: {sorted(columns)}."

    def add(self, by: int) -> int:
        """Adds.

        Args:
            by: how much.
        """
        self.number += by
        return self.number

    async def wait(self, by: int) -> int:
        """Adds later.

        Args:
            by: how much.
        """
        await asyncio.sleep(0)
        return self.add(by)

    @classmethod
    def named(cls, suffix: str) -> str:
        """Names the class.

        Args:
            suffix: after its name.
        """
        return cls.__name__ + suffix

    @staticmethod
    def helper(by):
        return by

    def get_reward(self) -> float:
        return float(self.number)


def answer_of(env: TRLEnv, name: str, **arguments) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    [message], *_ = env.step(f"<tool_call>\n{call}\n</tool_call>")
    return message.content


def test_the_tools_are_the_bound_methods_as_in_trl():
    env = TRLEnv(Varied, rows=[{"prompt": "Add.", "level": 1}], success_at=9)
    [asked], _ = env.reset(seed=0)
    assert asked.content == "Add. Row: ['level']."
    assert [tool.name for tool in env.offer().tools] == ["add", "named", "wait"]
    assert [tool.schema()["function"]["parameters"]["required"] for tool in env.offer().tools] == [
        ["by"],
        ["suffix"],
        ["by"],
    ]
    assert answer_of(env, "add", by=2) == "2"
    assert answer_of(env, "named", suffix="!") == "Varied!"
    assert answer_of(env, "wait", by=3) == "5"
    assert env.score() == 5 / 9
    assert "no tool 'helper'" in answer_of(env, "helper", by=1)


def test_a_coroutine_runs_where_a_loop_runs_already():
    async def play() -> str:
        env = TRLEnv(Varied)
        env.reset(seed=0)
        return answer_of(env, "wait", by=3)

    assert asyncio.run(play()) == "3"


def test_what_reset_returns_is_a_text():
    class Bare(Varied):
        def reset(self, **row) -> list:
            super().reset(**row)
            return [USER]

    with pytest.raises(InvalidOutcome, match=r"reset\(\) is \[\{'role'.*; give one string"):
        TRLEnv(Bare).reset(seed=0)


def test_a_response_without_a_call_ends_the_episode():
    env = TRLEnv(IncrementEnv, rows=ROWS)
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("Done.")
    assert (reward, terminated, info["success"], info["action_is_valid"]) == (0.0, True, False, True)


def test_a_reward_function_of_trl_takes_the_place_of_get_reward():
    env = TRLEnv(IncrementEnv, reward=reward_func, success_at=5.0)
    env.reset(seed=0)
    assert [env.step(STEP % 2)[1] for _ in range(2)] == [2.0, 2.0]
    assert env.score() == 0.8


class Guess:
    """Guess a number; nothing guessed is worth least."""

    def reset(self, **kwargs) -> None:
        self.found, self.tried = False, set[str]()

    def guess(self, number: int) -> str:
        """Guesses.

        Args:
            number: the guess.
        """
        self.found = number == 7
        self.tried |= {f"guess {number}", "some"}
        return "yes" if self.found else "no"

    def get_reward(self) -> float:
        return 1.0 if self.found else -1.0


GUESS = '<tool_call>\n{"name": "guess", "arguments": {"number": %d}}\n</tool_call>'


@pytest.mark.parametrize(
    ("responses", "value"),
    [(["I give up."], -1), ([GUESS % 1, "I give up."], -1), ([GUESS % 7], 1), (["<tool_call>"] * 3, -1)],
)
def test_the_return_is_trls_reward_but_for_what_all_episodes_have(responses: list[str], value: float):
    """Giving up at once is worth no more than a wrong guess."""
    env = TRLEnv(Guess, max_turns=3)
    env.reset(seed=0)
    assert sum(env.step(response)[1] for response in responses) == value - -1
    check_branchable(lambda: TRLEnv(Guess, max_turns=3), seeds=range(1), responses=[*responses, GUESS % 1])


def test_a_state_is_known_by_its_values():
    """Not by the objects that hold them: a call that changes nothing has no effect, at its first time too."""
    env = TRLEnv(Guess)
    env.reset(seed=0)
    assert [env.step(GUESS % number)[4]["action_is_effective"] for number in (1, 1, 2)] == [True, False, True]


def test_a_reward_function_that_wants_more_is_refused():
    def of_completions(completions, **kwargs):
        return [float(len(completions))]

    with pytest.raises(ConfigError, match=r"TRLEnv\.reward is .*'completions'; it is called with environments and"):
        TRLEnv(IncrementEnv, reward=of_completions)


def test_it_can_be_branched():
    check_branchable(lambda: TRLEnv(IncrementEnv, rows=ROWS), seeds=range(2), responses=[STEP % 1, STEP % 2])


@pytest.mark.parametrize("given", ["nowhere.Env", "random.Nothing", "random.Random"])
def test_a_class_that_is_none_is_refused(given: str):
    with pytest.raises(ConfigError, match=r"TRLEnv\.environment is"):
        TRLEnv(given)


def test_threads_draw_from_the_shared_generators_one_after_the_other():
    """Environments that use `random` step in several threads under `data.env_workers`."""

    def drawn(seed: int) -> list[float]:
        numbers = []
        with lent(seed):
            for _ in range(5):
                numbers.append(random.random())
                time.sleep(1e-4)  # another thread goes on
        return numbers

    seeds = [*range(8)] * 5
    alone = list(map(drawn, seeds))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(drawn, seeds)) == alone
