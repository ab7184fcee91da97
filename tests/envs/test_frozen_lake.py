"""The lake: maps, gymnasium's dynamics under keyed draws, values, and the oracle."""

import json
import math
from collections import Counter, deque
from functools import cache

import pytest
from commands import python_output
from gymnasium.envs.toy_text.frozen_lake import MAPS, FrozenLakeEnv
from hypothesis import given
from hypothesis import strategies as st

from tsr_lightning.envs.frozen_lake import TextFrozenLake
from tsr_lightning.envs.frozen_lake.dynamics import ACTIONS, best_actions, chances, dynamics, land, likeliest
from tsr_lightning.envs.frozen_lake.maps import Rows, given_lake, random_lake, shortest_solution, start_cell
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key

CLASSIC = tuple(MAPS["4x4"])
# chi-square, upper 0.1% points by degrees of freedom; the keys are fixed, so that nothing here is a lottery
CHI_SQUARE = {1: 10.83, 2: 13.82, 6: 22.46}


def distribution(rows: Rows, success_rate: float, cell: int, action: int) -> dict[int, float]:
    """gymnasium's own: the probability of ending on a cell, by cell."""
    table = FrozenLakeEnv(desc=list(rows), is_slippery=True, success_rate=success_rate).P
    chance: Counter[int] = Counter()
    for probability, then, _, _ in table[cell][action]:
        chance[then] += probability
    return {then: probability for then, probability in chance.items() if probability > 0}


def chi_square(counts: Counter[int], expected: dict[int, float]) -> float:
    n = counts.total()
    assert set(counts) <= set(expected)
    return sum((counts[place] - n * p) ** 2 / (n * p) for place, p in expected.items())


def steps_to_goal(rows: Rows) -> int:
    """Breadth-first, without slip."""
    frontier = deque([(start_cell(rows), 0)])
    seen = {start_cell(rows)}
    while frontier:
        cell, steps = frontier.popleft()
        if "".join(rows)[cell] == "G":
            return steps
        for action in range(4):
            (then,) = distribution(rows, 1.0, cell, action)
            if then not in seen and "".join(rows)[then] != "H":
                seen.add(then)
                frontier.append((then, steps + 1))
    raise AssertionError("no path")


class TestMaps:
    @given(value=st.integers(0, 2**64 - 1), size=st.integers(2, 7), frozen=st.floats(0.6, 1.0))
    def test_a_lake_has_one_start_one_goal_and_a_path(self, value: int, size: int, frozen: float) -> None:
        rows = random_lake(Key(value), size=size, frozen=frozen)
        letters = "".join(rows)
        assert len(rows) == size
        assert len(letters) == size * size
        assert (letters.count("S"), letters.count("G")) == (1, 1)
        assert shortest_solution(rows) == steps_to_goal(rows)
        assert rows == random_lake(Key(value), size=size, frozen=frozen)

    @given(value=st.integers(0, 2**64 - 1), least=st.integers(1, 5))
    def test_far_lakes_are_those_of_the_drawn_whose_goal_is_far(self, value: int, least: int) -> None:
        far = random_lake(Key(value), size=4, frozen=0.8, min_solution=least)
        assert steps_to_goal(far) >= least
        near = random_lake(Key(value), size=4, frozen=0.8)
        assert far == near or steps_to_goal(near) < least

    def test_holes_starts_and_goals_have_the_stated_distribution(self) -> None:
        lakes = [random_lake(Key(i), size=4, frozen=0.9) for i in range(2000)]
        letters = "".join("".join(rows) for rows in lakes)
        # 14 cells of 16 can be holes, a tenth of them; lakes without a path, which have more holes, are left out
        assert 0.09 * 14 / 16 < letters.count("H") / len(letters) < 0.1 * 14 / 16
        starts = Counter(start_cell(rows) for rows in lakes)
        goals = Counter("".join(rows).index("G") for rows in lakes)
        # 2000 / 16 = 125 each, sd 11; corners are cut off a little more often
        assert set(starts) == set(goals) == set(range(16))
        assert all(85 < count < 165 for count in (starts | goals).values())

    def test_another_process_draws_the_same_lakes(self) -> None:
        code = (
            "import json; from tsr_lightning.rng import Key; "
            "from tsr_lightning.envs.frozen_lake.maps import random_lake; "
            "print(json.dumps([random_lake(Key(i), size=6, frozen=0.8) for i in range(20)]))"
        )
        here = [list(random_lake(Key(i), size=6, frozen=0.8)) for i in range(20)]
        assert json.loads(python_output(code, hash_seed="77")) == here

    def test_a_lake_that_hardly_ever_has_a_path_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tsr_lightning.envs.frozen_lake.maps.TRIES", 3)
        with pytest.raises(ConfigError, match=r"frozen is 0\.05: none of 3 random lakes of size 12"):
            random_lake(Key(0), size=12, frozen=0.05)
        with pytest.raises(
            ConfigError, match=r"min_solution is 9: none of 3 random lakes of size 3 had .* lower it or raise size"
        ):
            random_lake(Key(0), size=3, frozen=1.0, min_solution=9)

    @pytest.mark.parametrize(
        ("desc", "remedy"),
        [
            (["SF", "G"], "rows of one length"),
            ([], "rows of one length"),
            (["SF", "XG"], "use the letters S start"),
            (["FF", "FG"], "one start S"),
            (["SS", "FG"], "one start S"),
            (["SF", "FF"], "a goal G"),
            (["SH", "HG"], "cannot be reached"),
        ],
    )
    def test_a_given_lake_is_validated(self, desc: list[str], remedy: str) -> None:
        with pytest.raises(ConfigError, match=remedy):
            given_lake(desc)


class TestSlip:
    @pytest.mark.parametrize("success_rate", [0.8, 1 / 3, 0.0])
    @pytest.mark.parametrize("cell", [0, 8, 10], ids=["corner", "edge", "inner"])
    @pytest.mark.parametrize("action", range(4), ids=ACTIONS)
    def test_frequencies_over_keys_are_gymnasiums_probabilities(
        self, cell: int, action: int, success_rate: float
    ) -> None:
        env = TextFrozenLake(desc=list(CLASSIC), success_rate=success_rate, prompt_style="brief")
        env.reset(seed=0)
        episode = env.get_state()
        state = episode._replace(state=episode.state._replace(cell=cell))
        counts: Counter[int] = Counter()
        for index in range(4000):
            env.set_state(state)
            env.reseed(Key(action).fold_in("slip", cell, index))
            env.step(env.legal_actions()[action])
            counts[env.state.cell] += 1
        expected = distribution(CLASSIC, success_rate, cell, action)
        assert chi_square(counts, expected) < CHI_SQUARE.get(len(expected) - 1, 1e-9)

    def test_each_action_of_a_turn_slips_independently(self) -> None:
        open_lake = ("FFFFF", "FFFFF", "FFSFF", "FFFFF", "FFFFG")
        env = TextFrozenLake(desc=list(open_lake), prompt_style="brief")
        env.reset(seed=0)
        state = env.get_state()
        counts: Counter[int] = Counter()
        for index in range(4000):
            env.set_state(state)
            env.reseed(Key(index))
            env.step("<answer>Up || Left</answer>")
            counts[env.state.cell] += 1
        joint: Counter[int] = Counter()
        for then, p in distribution(open_lake, 0.8, 12, 3).items():
            for last, q in distribution(open_lake, 0.8, then, 0).items():
                joint[last] += p * q
        assert len(joint) == 7  # 3 × 3 ways; up then down, left then right and right then left all come back
        assert chi_square(counts, dict(joint)) < CHI_SQUARE[6]

    def test_a_branch_slips_independently_of_the_real_episode(self) -> None:
        env = TextFrozenLake(desc=["FFF", "FSF", "FFG"], prompt_style="brief")
        left = env.legal_actions() if env.reset(seed=0) else []
        table: Counter[tuple[bool, bool]] = Counter()
        for seed in range(4000):
            env.reset(seed=seed)
            state = env.get_state()
            env.step(left[0])
            real = env.state.cell == 3
            env.set_state(state)
            env.reseed(Key(seed))
            env.step(left[0])
            table[real, env.state.cell == 3] += 1
        n = table.total()
        kept = {side: sum(count for pair, count in table.items() if pair[side]) / n for side in (0, 1)}
        chi = 0.0
        for real in (False, True):
            for branch in (False, True):
                p = (kept[0] if real else 1 - kept[0]) * (kept[1] if branch else 1 - kept[1])
                chi += (table[real, branch] - n * p) ** 2 / (n * p)
        assert chi < CHI_SQUARE[1]
        assert kept == pytest.approx({0: 0.8, 1: 0.8}, abs=0.02)

    def test_every_number_below_one_gives_a_cell(self) -> None:
        lake = dynamics(CLASSIC, 1 / 3)
        assert land(lake.outcomes[6][2], 0.0) == 10  # Right slips down first, in gymnasium's order
        assert land(lake.outcomes[6][2], 1 - 2**-53) == 2  # and up last
        with pytest.raises(ValueError, match="no number"):
            land(lake.outcomes[6][2], 1.0)


class TestValues:
    @pytest.mark.parametrize("success_rate", [1.0, 0.8, 1 / 3])
    @pytest.mark.parametrize("seed", range(4))
    def test_chances_equal_the_recursion(self, seed: int, success_rate: float) -> None:
        rows = random_lake(Key(seed), size=4, frozen=0.8)
        table = FrozenLakeEnv(desc=list(rows), is_slippery=True, success_rate=success_rate).P

        @cache
        def value(cell: int, left: int) -> float:
            letter = "".join(rows)[cell]
            if letter in "GH" or left == 0:
                return float(letter == "G")
            return max(sum(p * value(then, left - 1) for p, then, _, _ in table[cell][a]) for a in range(4))

        known = chances(rows, success_rate, 10)
        assert known == [pytest.approx([value(cell, left) for cell in range(16)], abs=1e-12) for left in range(11)]

    def test_chances_by_hand(self) -> None:
        # S G in a row of two, slip 0.8/0.1/0.1: up and down stay. One action 0.8, two 0.8 + 0.2 × 0.8.
        known = chances(("SG",), 0.8, 2)
        assert known == [[0.0, 1.0], [pytest.approx(0.8), 1.0], [pytest.approx(0.96), 1.0]]

    def test_the_score_is_the_chance_with_the_budget_left(self) -> None:
        env = TextFrozenLake(desc=["SG"], max_actions=2, max_turns=2, actions_per_turn=1, prompt_style="brief")
        env.reset(seed=0)
        assert env.score() == pytest.approx(0.96)
        env.step("nothing")
        assert env.score() == pytest.approx(0.8)  # the turn is used up, and its action with it

    def test_a_hole_scores_0_and_the_goal_1(self) -> None:
        env = TextFrozenLake(desc=["HSG"], success_rate=1.0, prompt_style="brief")
        env.reset(seed=0)
        state = env.get_state()
        assert env.step("<answer>Left</answer>")[1:4] == (0.0, True, False)
        assert env.score() == 0.0
        env.set_state(state)
        assert env.step("<answer>Right</answer>")[1:4] == (1.0, True, False)
        assert env.score() == 1.0


def play_oracle(env: TextFrozenLake, noise: float = 0.0, key: Key | None = None) -> tuple[bool, int]:
    """Whether it succeeded, and the number of actions."""
    done = False
    while not done:
        turn = env.get_state().turns
        _, _, terminated, truncated, info = env.step(env.oracle(noise, None if key is None else key.fold_in(turn)))
        done = terminated or truncated
    return info["success"], env.get_state().actions


class TestOracle:
    @pytest.mark.parametrize("desc", [CLASSIC, ("HFFG", "SFHF", "FFFF")], ids=["classic", "short"])
    def test_its_success_rate_is_the_chance(self, desc: Rows) -> None:
        env = TextFrozenLake(desc=list(desc), max_turns=10, actions_per_turn=1, prompt_style="brief")
        env.reset(seed=0)
        state, value, n = env.get_state(), env.score(), 3000
        wins = 0
        for index in range(n):
            env.set_state(state)
            env.reseed(Key(index))
            wins += play_oracle(env)[0]
        assert wins / n == pytest.approx(value, abs=2.6 * math.sqrt(value * (1 - value) / n))

    @pytest.mark.parametrize("seed", range(12))
    def test_without_slip_it_takes_a_shortest_path(self, seed: int) -> None:
        env = TextFrozenLake(success_rate=1.0, frozen=0.8)
        env.reset(seed=seed)
        assert play_oracle(env) == (True, steps_to_goal(env.state.rows))

    def test_it_goes_to_the_goal_even_if_the_actions_left_cannot_reach_it(self) -> None:
        env = TextFrozenLake(desc=["SFFFG"], max_actions=2, success_rate=1.0, prompt_style="brief")
        env.reset(seed=0)
        assert env.oracle() == "<answer>Right || Right</answer>"

    def test_the_second_action_is_planned_from_the_most_probable_cell(self) -> None:
        env = TextFrozenLake(desc=["SF", "FG"], prompt_style="brief")
        env.reset(seed=0)
        assert env.oracle() == "<answer>Down || Right</answer>"
        # with success 0.2 a move goes to its sides, 0.4 each; in a corridor both sides of Up and Down stay in it
        assert likeliest(dynamics(("SFF", "FFG"), 0.8), 1, 1) == 4
        assert likeliest(dynamics(("SFF", "FFG"), 0.2), 0, 1) == 0  # Down: to the left is the edge

    def test_noise_is_the_probability_of_a_random_action(self) -> None:
        env = TextFrozenLake(desc=["SG"], actions_per_turn=1, prompt_style="brief")
        env.reset(seed=0)
        responses = Counter(env.oracle(0.4, Key(index)) for index in range(4000))
        rates = {action: responses[f"<answer>{action}</answer>"] / 4000 for action in ACTIONS}
        # 0.6 + 0.4 / 4 for the best, 0.1 for each other one; sd below 0.008
        assert rates == pytest.approx({"Left": 0.1, "Down": 0.1, "Right": 0.7, "Up": 0.1}, abs=0.02)
        assert env.oracle(0.4, Key(3)) == env.oracle(0.4, Key(3))

    def test_noise_needs_a_key(self) -> None:
        env = TextFrozenLake()
        env.reset(seed=0)
        with pytest.raises(ConfigError, match=r"noise is 0\.1: give a key"):
            env.oracle(0.1)

    def test_among_equal_values_the_action_towards_the_goal_is_best(self) -> None:
        # without slip and with time to spare, every action of row k keeps the value at 1
        assert best_actions(("SFG",), 1.0, 10)[10][:2] == [2, 2]
