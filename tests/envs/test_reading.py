"""What each reader makes of the answers of instruct models: a table of 66, of which the last third was written after
the lenient reader was finished. Of those 22 it read 20 as expected; since then verbs reach one word further.
"""

import re
import signal
import string
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsr_lightning.envs.base import HasLegalActions, HasOracle
from tsr_lightning.envs.frozen_lake.env import TextFrozenLake
from tsr_lightning.envs.make import make_env
from tsr_lightning.envs.reading import LENIENT, READERS, STRICT
from tsr_lightning.worlds.command_prompts import COMMAND_PROMPT_STYLES, parse_command
from tsr_lightning.worlds.webshop.pages import verb_and_argument

MOVES = ("Left", "Down", "Right", "Up")
TAGS = (re.compile("<answer>"), re.compile("</answer>"))
VERBS = ("look", "go", "open", "take", "examine")

# response -> the actions of the lenient reader; the strict one, with tags, reads those with a True
MOVES_TABLE = [
    ("<answer>Up</answer>", "Up", True),
    ("<answer>Up || Left</answer>", "Up Left", True),
    ("<think>I must go up.</think><answer>Up</answer>", "Up", True),
    ("Up", "Up", False),
    ("up.", "Up", False),
    ("**Up**", "Up", False),
    ("`Up`", "Up", False),
    ('"Left"', "Left", False),
    ("I would move up", "Up", False),
    ("I would move up because the goal is above.", "Up", False),
    ("Action: Up", "Up", False),
    ("Action: up.", "Up", False),
    ("First action: Right\nSecond action: Up", "Right Up", False),
    ("Action: Right\nAction: Up", "Right Up", False),
    ("Action 1: Right\n\nAction 2: Up", "Right Up", False),
    ("Action: Right\nWait, a hole.\nAction: Up", "Up", False),
    ("Action 1: Right\nAction 2: Up", "Right Up", False),
    ("Move 1 is Right.", "Right", False),
    ("Action: Right\nThe better action: Up", "Up", False),
    ("Direction: Right\nAnswer: Right", "Right", False),
    ("**Action:** Down", "Down", False),
    ("The next action is Right.", "Right", False),
    ("Answer: Left", "Left", False),
    ("My answer is: Left", "Left", False),
    ("<answer>Up.</answer>", "Up", False),
    ("<answer>[Up]</answer>", "Up", False),
    ("<answer>Up, Left</answer>", "Up Left", False),
    ("<answer>Move Up</answer>", "Up", False),
    ("<answer>Up", "Up", False),  # cut at the end token
    ("<ANSWER>Up</ANSWER>", "Up", False),
    ("Up</answer>", "Up", False),
    ("<think>Holes are left.</think>Down", "Down", False),
    ("<think>I could go left", "", False),  # cut while it was thinking
    (r"\boxed{Right}", "Right", False),
    ("Up, Right", "Up Right", False),
    ("Up || Right", "Up Right", False),
    ("Up and then right.", "Up Right", False),
    ("1. Up\n2. Right", "Up Right", False),
    ("Go down, then go right!", "Down Right", False),
    ("Left or Right", "", False),
    ("Left, Down, Right or Up", "", False),
    ("I can't move left.", "", False),
    ("Do not go up.", "", False),
    ("The goal is down there.", "", False),
    ("You could go left, but the goal is reached when you go right.", "", False),
    ("", "", False),
    ("   \n", "", False),
    ("<answer></answer>", "", True),  # both find nothing to play
    ("Sure! Here is a poem about ice.", "", False),
    ("North", "", False),
    ("Upwards", "", False),
    ("Player: (3, 2)", "", False),
    # from here on written after the reader
    ("I'd go Down.", "Down", False),
    ("Let's move right", "Right", False),
    ("Next move: LEFT", "Left", False),
    ("I choose to walk to the right side.", "Right", False),
    ("Response: <answer> down </answer> Thank you!", "Down", True),
    ("Final Answer: **Down**\nBecause the hole is on the left.", "Down", False),
    ("- Up", "Up", False),
    ("> Right", "Right", False),
    ("right right right", "Right Right Right", False),
    ("→ Right", "Right", False),
    ("{'action': 'Up'}", "Up", False),
    ('{"move": "Left"}', "Left", False),
    ("(Down)", "Down", False),
    ("Down 👍", "Down", False),
    ("Up the hill", "", False),
    ("I give up.", "", False),
    ("Should I go left?", "Left", False),
    ("Either up or down works.", "", False),
    ("Move the player one cell down", "Down", False),
    ("To avoid the hole, go up.", "", False),  # excluding words make a sentence ambiguous, even here
    ("move:up", "Up", False),
    ("Déplacez-vous: Up", "", False),
    # found by a review
    ("Up\n\nMoving down would lead into a hole.", "Up", False),
    ("Up. Moving down leads to a hole.", "Up", False),
    ("**Up**\n\nExplanation: If you go down, you fall into the hole.", "Up", False),
    ("Up, then right. That reaches the goal.", "Up Right", False),
    ("1. Up\n2. Right\nThis reaches the goal.", "Up Right", False),
    ("Up is best, since moving down leads into a hole.", "", False),
    ("Down? Moving down leads to a hole.", "", False),
    ("Right. Wait, down is better.", "", False),
    ("Left. No, right.", "", False),
    ("There is a hole on the left, so I would move down.", "Down", False),
    ("I wouldn't go up.", "", False),
    ("You mustn't move up.", "", False),
    ("It doesn't make sense to move up", "", False),
    ("We couldn’t move left", "", False),
    ("It is impossible to go up", "", False),
    ("The correct action isn't to move up", "", False),
    ("I have two moves left.", "", False),
    (r"\boxed{\text{Up}}", "Up", False),
    ("The answer is $\\boxed{\\textbf{Left}}$.", "Left", False),
]


@pytest.mark.parametrize(("response", "expected", "is_strict"), MOVES_TABLE)
def test_moves(response: str, expected: str, is_strict: bool):
    found = LENIENT.find(response, TAGS)
    read = () if found is None else LENIENT.actions(found, MOVES, 9).actions
    assert " ".join(read) == expected
    strictly = STRICT.find(response, TAGS)
    assert (strictly is not None and STRICT.actions(strictly, MOVES, 9).actions == read) is is_strict


COMMANDS_TABLE = [
    ("open the wooden door", "open the wooden door"),
    ("Open door.", "Open door"),
    ("> go east", "go east"),
    ("`take key`", "take key"),
    ("Action: take old key from chest", "take old key from chest"),
    ("I would open the chest drawer.", "open the chest drawer"),
    ("First, I will go east.", "go east"),
    ("Let's look", "look"),
    ("open chest\n\nThis gives us the key.", "open chest"),
    ("Thinking about it, the key is inside.\nopen chest", "open chest"),
    ("1. open chest\n2. take key", "take key"),  # the last, as the Guide's prompt has it
    ("My next move is to go east.", "go east"),
    ("I would like to go east", "go east"),
    ("I'd like to open the chest.", "open the chest"),
    ("Action 1: open chest\nAction 2: take key", "take key"),
    ("to", "to"),
    ("<answer>go north</answer>", "go north"),
    ("<answer>go north", "go north"),
    ("**Command:** examine table", "examine table"),
    ("open door || go east", "open door"),
    ("move island 1", "move island 1"),  # no label
    ("take area rug", "take area rug"),
    ("dance", "dance"),  # any text is a command, and the game says what it thinks of it
]


@pytest.mark.parametrize(("response", "expected"), COMMANDS_TABLE)
def test_commands(response: str, expected: str):
    forms = ("look", "go <way>", "open <thing>", "take <thing>", "examine <thing>")
    assert parse_command(response, COMMAND_PROMPT_STYLES["instruct"], forms).actions == (expected,)


CALLS_TABLE = [
    ("search[red shoes]", "search[red shoes]"),
    ("Search[red shoes]", "search[red shoes]"),
    ("Action: click[buy now]", "click[buy now]"),
    ("I would click [ buy now ].", "click[buy now]"),
    ("search for red shoes", "search[red shoes]"),
    ('search: "red shoes"', "search[red shoes]"),
    ("Click on Buy Now.", "click[Buy Now]"),
    ("search[red] or search[blue]", "search[red]"),  # the first (RAGEN)
    ("I need red shoes.", "I need red shoes."),
    ("click[output: 5v]", "click[output: 5v]"),  # a label within an option
    ("Action: click[output: 5v]", "click[output: 5v]"),
]


@pytest.mark.parametrize(("response", "expected"), CALLS_TABLE)
def test_calls(response: str, expected: str):
    found = LENIENT.find(response, ())
    assert found is not None
    assert LENIENT.call(found, ("search", "click")) == expected
    if verb_and_argument(expected):
        assert verb_and_argument(LENIENT.call(expected, ("search", "click"))) == verb_and_argument(expected)


def test_the_reader_is_the_styles_unless_the_environment_is_given_one():
    natural = "I would move right."
    for style, reader, is_valid in (
        ("instruct", None, True),
        ("instruct", "strict", False),
        ("bare", None, False),
        ("bare", "lenient", True),
        ("paper", "lenient", True),
    ):
        env = TextFrozenLake(prompt_style=style, reader=reader)  # type: ignore[arg-type]
        env.reset(seed=0)
        assert env.step(natural)[-1]["action_is_valid"] is is_valid, (style, reader)


@pytest.mark.parametrize("reader", list(READERS))
@pytest.mark.parametrize("style", ["instruct", "brief", "bare", "paper"])
@pytest.mark.parametrize("task", ["tsr/FrozenLake-v0", "tsr/Sokoban-v0"])
def test_every_reader_reads_the_example_and_the_oracle_of_every_style(task: str, style: str, reader: str):
    env = make_env(task, prompt_style=style, reader=reader, actions_per_turn=2)
    observation, _ = env.reset(seed=2)
    assert isinstance(env.unwrapped, HasOracle)
    answer = env.unwrapped.oracle()
    asked = re.search(r"such as: (\w+)(.*) (\w+)\.", str(observation))
    assert (asked is not None) is (style == "instruct")
    if asked is not None:
        assert asked[2] == (" ||" if reader == "strict" else ",")
    assert env.step(answer)[-1]["action_is_valid"], answer


PIECES = [
    "<answer>",
    "</answer>",
    "<think>",
    "</think>",
    "Action: ",
    "move ",
    "up",
    "I would ",
    "\\boxed{",
    "}",
    "search[",
]


@given(st.lists(st.sampled_from([*PIECES, *string.printable]), max_size=60).map("".join))
def test_any_text_is_read_without_an_error(text: str):
    for reader in READERS.values():
        found = reader.find(text, TAGS)
        if found is not None:
            read = reader.actions(found, MOVES, 3)
            assert len(read.actions) <= 3
            assert bool(read.problem) is not bool(read.actions)
            assert "\n" not in reader.command(found, VERBS)
            reader.call(found, ("search", "click"))


@pytest.mark.parametrize(
    "piece", [*PIECES, "I ", "1. ", "* ", "answer ", "answer:", "search ", "- ", "\n", "(", "not "]
)
def test_long_responses_are_read_in_linear_time(piece: str):
    text = piece * (400_000 // len(piece))

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"{piece!r} is read in more than linear time")

    previous = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, 30)  # CPU seconds; it takes a tenth of one
    try:
        found = LENIENT.find(text, TAGS) or ""
        LENIENT.actions(found, MOVES, 9)
        LENIENT.command(text, VERBS)
        LENIENT.call(text, ("search", "click"))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


@pytest.mark.parametrize("task", ["FrozenLake", "Sokoban", "WebShop", "ALFWorld"])
@pytest.mark.parametrize("reader", ["strict", "lenient"])
def test_each_tasks_own_responses_are_read(task: str, reader: str):
    style = "instruct" if reader == "lenient" else "brief"
    env = make_env(f"tsr/{task}-v0", prompt_style=style, reader=reader)
    observation, _ = env.reset(seed=1)
    assert isinstance(observation, str)
    assert style != "instruct" or "Answer with" in observation.splitlines()[-1]
    assert isinstance(env, HasOracle)
    assert isinstance(env, HasLegalActions)
    state = env.get_state()
    for response in [*env.legal_actions(), env.oracle()]:
        env.set_state(state)
        assert env.step(response)[-1]["action_is_valid"], response
