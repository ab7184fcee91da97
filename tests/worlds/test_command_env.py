"""`CommandEnv` and its prompts with a small game: a key, a door and a treasure."""

from collections.abc import Sequence
from typing import Any, NamedTuple, get_type_hints

import pytest

from tsr_lightning.envs.checker import check_branchable
from tsr_lightning.envs.reading import READERS, ReaderName
from tsr_lightning.envs.text_env import TextEnvOptions
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key
from tsr_lightning.worlds.command_env import CommandEnv, CommandEnvOptions, Reply
from tsr_lightning.worlds.command_prompts import COMMAND_PROMPT_STYLES, GAME, GUIDE, LONGEST_COMMAND, parse_command

STEPS = ("take key", "open door", "go in")  # the winning plan; each is admissible once the one before is done
PASSWORDS = ("jump", "sing")


class Vault(NamedTuple):
    done: int  # steps of the plan
    password: int  # said first of all, by seed
    looks: int = 0  # decides nothing


class VaultEnv(CommandEnv[Vault]):
    verbs = ("take <thing>", "open <thing>", "go in", "look")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"max_turns": 8, **kwargs})

    def begin(self, seed: int) -> tuple[Vault, str]:
        return Vault(0, seed % 2), "A door."

    def obey(self, game: Vault, command: str) -> Reply[Vault]:
        if command == "look":
            return Reply(game._replace(looks=game.looks + 1), "A door.")
        if command == "burn key":
            return Reply(game._replace(done=-1), "It is gone.", lost=True)
        if command != self._next(game):
            return Reply(game, "Nothing happens.", problem="it is not admissible")
        after = game._replace(done=game.done + 1)
        return Reply(after, f"Done: {command}.", won=after.done == 4)

    def commands(self, game: Vault) -> Sequence[str]:
        return ("burn key", "look", self._next(game))

    def goal(self, game: Vault) -> str:
        return f"Say {PASSWORDS[game.password]} and go in."

    def progress(self, game: Vault) -> float:
        return max(0, game.done) / 4

    def plan(self, game: Vault) -> Sequence[str] | None:
        return None if game.done < 0 else (PASSWORDS[game.password], *STEPS)[game.done :]

    def game_key(self, game: Vault) -> tuple[int, int]:
        return game.done, game.password

    def _next(self, game: Vault) -> str:
        return (PASSWORDS[game.password], *STEPS, "look")[game.done]


def play(env: VaultEnv, responses: Sequence[str]) -> list[tuple[str, float, bool, bool, dict[str, Any]]]:
    return [env.step(response) for response in responses]


def test_the_guides_prompt_has_goal_state_and_no_actions():
    env = VaultEnv()
    observation, _ = env.reset(seed=1)
    assert observation == "current state: A door.\n\nyour action: "
    assert env.instructions.endswith("Here is how to win the game:\nSay sing and go in.")
    assert "sing" not in observation
    assert env.reset(seed=0)
    assert env.instructions.endswith("Say jump and go in.")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("style", COMMAND_PROMPT_STYLES)
def test_a_reader_of_ones_own_leaves_the_prompt_as_it_is(style: str, reader: ReaderName):
    env, plain = VaultEnv(prompt_style=style, reader=reader), VaultEnv(prompt_style=style)
    assert env.reset(seed=0) == plain.reset(seed=0)
    assert env.instructions == plain.instructions
    assert all(env.step(env.oracle())[4]["action_is_valid"] for _ in range(4))
    assert env.has_ended()


def test_the_prompt_tells_the_commands_that_can_be_played():
    for limits, told in (({}, 8), ({"max_actions": 3}, 3), ({"max_actions": 30}, 8)):
        env = VaultEnv(prompt_style="paper", **limits)
        env.reset(seed=0)
        assert f"up to {told} actions" in env.instructions
        assert env.remaining() == told


def test_several_actions_a_turn_are_refused():
    with pytest.raises(ConfigError, match=r"VaultEnv\.actions_per_turn is 2: a turn plays one action, so leave it out"):
        VaultEnv(actions_per_turn=2)


def test_history_and_admissible_commands_make_an_observation_stand_alone():
    env = VaultEnv(prompt_style="game", history=2, admissible=True)
    assert env.reset(seed=0)[0] == "Say jump and go in.\nA door.\nAdmissible commands: burn key, look, jump."
    observation = play(env, ["jump", "", "look", "take key"])[-1][0]
    assert observation == (  # the two turns before the last; an unreadable response leaves no trace
        "Say jump and go in.\nDone: jump.\n> look\nA door.\n> take key\nDone: take key.\n"
        "Admissible commands: burn key, look, open door."
    )


@pytest.mark.parametrize("reward", ["sparse", "dense"])
def test_rewards(reward: str):
    env = VaultEnv(reward=reward, format_penalty=-0.5)
    env.reset(seed=0)
    steps = play(env, ["jump", "fly", "", "look", *STEPS])
    expected = [0.25, 0, -0.5, 0, 0.25, 0.25, 0.25] if reward == "dense" else [0, 0, -0.5, 0, 0, 0, 1]
    assert [step[1] for step in steps] == expected
    assert [step[2] for step in steps] == [False] * 6 + [True]
    assert [step[4]["action_is_valid"] for step in steps] == [True, False, False, True, True, True, True]
    assert [step[4]["action_is_effective"] for step in steps] == [True, False, False, False, True, True, True]
    assert steps[-1][4]["success"]
    assert steps[-1][4]["progress"] == 1.0


def test_a_dense_reward_is_paid_once_and_a_lost_game_ends():
    env = VaultEnv(reward="dense")
    env.reset(seed=0)
    begun = env.get_state()
    env.set_state(begun._replace(state=begun.state._replace(game=Vault(1, 0), begun=0.2, best=0.5)))
    assert env.step("take key")[1] == 0  # progress 1/2, as before
    assert env.step("open door")[1] == pytest.approx(0.25 / 0.8)
    _, reward, terminated, truncated, info = env.step("burn key")
    assert (reward, terminated, truncated, info["success"]) == (0, True, False, False)


def test_scores():
    env, by_plan = VaultEnv(), VaultEnv(score="oracle")
    for one in (env, by_plan):
        one.reset(seed=0)
        one.step("jump")
    assert (env.score(), by_plan.score()) == (1 / 4, 1 / 4)  # one of four; three commands left
    play(by_plan, STEPS)
    assert by_plan.score() == 1
    by_plan.reset(seed=0)
    by_plan.step("burn key")
    assert by_plan.score() == 0  # no plan


@pytest.mark.parametrize("style", COMMAND_PROMPT_STYLES)
def test_the_oracle_wins_in_every_style_and_errs_by_key(style: str):
    env = VaultEnv(prompt_style=style)
    env.reset(seed=0)
    assert [env.step(env.oracle())[4]["success"] for _ in range(4)] == [False, False, False, True]
    env.reset(seed=0)
    drawn = {env.oracle(1.0, Key(draw)) for draw in range(40)}
    assert drawn == set(env.legal_actions())


@pytest.mark.parametrize("style", COMMAND_PROMPT_STYLES)
@pytest.mark.parametrize("reward", ["sparse", "dense"])
def test_it_is_branchable(style: str, reward: str):
    kwargs = {"prompt_style": style, "reward": reward, "history": 2}
    check_branchable(lambda: VaultEnv(**kwargs), seeds=range(2), turns=6, keys=2, noisy=False)


def test_parsing():
    assert parse_command("I think so.\n\n  open door \n", GUIDE).actions == ("open door",)
    assert parse_command("<answer> open door || go in </answer>", COMMAND_PROMPT_STYLES["brief"]).actions == (
        "open door",
    )
    for text in ("", " \n\t ", "||", " || go"):
        assert parse_command(text, GAME).problem == "the command is empty"
    assert "257 characters" in parse_command("x" * (LONGEST_COMMAND + 1), GAME).problem
    assert parse_command("open door", COMMAND_PROMPT_STYLES["bare"]).problem.startswith("no <answer>")


def test_options_are_the_arguments_of_the_class():
    arguments = get_type_hints(CommandEnv.__init__)
    del arguments["return"], arguments["options"]  # those of `TextEnv`
    assert get_type_hints(CommandEnvOptions) == {**get_type_hints(TextEnvOptions), **arguments}


@pytest.mark.parametrize(
    ("argument", "value"),
    [("reward", "rich"), ("score", "luck"), ("history", -1), ("prompt_style", "loud"), ("format_penalty", 1.0)],
)
def test_bad_arguments_are_named(argument: str, value: object):
    with pytest.raises(ConfigError, match=rf"VaultEnv\.{argument} is {value!r}: "):
        VaultEnv(**{argument: value})
