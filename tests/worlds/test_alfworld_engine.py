"""ALFWorld's engine on a small game, for machines without the recorded episodes: its rules, and its oddities."""

from dataclasses import replace

import pytest

from tests.alfworld_games import GOALS, small
from tsr_lightning.worlds.alfworld.actions import admissible, answer, apply
from tsr_lightning.worlds.alfworld.effort import IMPOSSIBLE
from tsr_lightning.worlds.alfworld.level import Level
from tsr_lightning.worlds.alfworld.oracle import Planner, shortest_plan
from tsr_lightning.worlds.alfworld.scene import bits, mask_of, numbered
from tsr_lightning.worlds.alfworld.state import State
from tsr_lightning.worlds.alfworld.text import listed, look_around, opening

APPLE_TO_SINK = "go to cabinet 1; open cabinet 1; take apple 1 from cabinet 1; go to sinkbasin 1"


def play(level: Level, commands: str) -> tuple[State, str]:
    """The state after the commands, all admissible, and the last answer."""
    state, text = level.start, ""
    for command in commands.split("; "):
        action = admissible(level.scene, state)[command]
        state = apply(level.scene, state, action)
        text = answer(level.scene, state, action)
    return state, text


def shortest_by_breadth(level: Level) -> int | None:
    """The length of a shortest plan, by breadth-first search over all admissible actions."""
    frontier, seen = [level.start], {level.start.key()}
    for length in range(12):
        if any(level.is_solved(state) for state in frontier):
            return length
        following = []
        for state in frontier:
            for action in admissible(level.scene, state).values():
                after = apply(level.scene, state, action)
                if after.key() not in seen:
                    seen.add(after.key())
                    following.append(after)
        frontier = following
    return None


def test_opening_lists_receptacles_in_order_of_their_ids_so_that_numbers_fall():
    assert opening(small("put a mug in cabinet.").scene) == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see "
        "a cabinet 1, a shelf 2, a shelf 1, and a sinkbasin 1.\n\nYour task is to: put a mug in cabinet."
    )


def test_names_and_lists():
    assert numbered(["mug_bar_b", "mug_bar_a", "sink_bar_x_bar_sinkbasin"]) == {
        "mug_bar_a": "mug 2",
        "mug_bar_b": "mug 1",
        "sink_bar_x_bar_sinkbasin": "sinkbasin 1",
    }
    assert [listed(["a b"] * count) for count in range(4)] == [
        "nothing",
        "a a b",
        "a a b, and a a b",
        "a a b, a a b, and a a b",
    ]
    assert list(bits(mask_of([70, 0, 3]))) == [0, 3, 70]


LOOK_BY_SHELVES = "You are facing the shelf 2, and shelf 1. Next to it, you see"


@pytest.mark.parametrize(
    ("commands", "text"),
    [
        ("look", "You are in the middle of a room. Looking quickly around you, you see nothing."),
        ("inventory", "You are not carrying anything."),
        ("go to cabinet 1", "You arrive at loc 4. The cabinet 1 is closed."),
        ("go to cabinet 1; open cabinet 1", "You open the cabinet 1. The cabinet 1 is open. In it, you see {inside}."),
        ("go to cabinet 1; open cabinet 1; close cabinet 1", "You close the cabinet 1."),
        ("go to shelf 2; look", f"{LOOK_BY_SHELVES} nothing."),
        # mug 1 is listed on both shelves: taken from one, it stays on the other while it is carried
        (
            "go to shelf 2; take mug 1 from shelf 2; examine shelf 1",
            "On the shelf 1, you see a knife 1, and a mug 1.",
        ),
        ("go to shelf 2; take mug 1 from shelf 2; inventory", "You are carrying: a mug 1."),
        # the knife in the mug is there for good, wherever the knife is
        (
            "go to shelf 2; take mug 1 from shelf 2; examine mug 1",
            "This is a normal mug 1. In it, you see a knife 1.",
        ),
        # what was taken out of a receptacle here and put into another one here lies beside them too
        (
            "go to shelf 2; take knife 1 from shelf 1; put knife 1 in/on shelf 2; look",
            f"{LOOK_BY_SHELVES} a knife 1.",
        ),
        ("go to shelf 2; use desklamp 1", "You turn on the desklamp 1."),
        ("go to shelf 2; use desklamp 1; use desklamp 1", "You turn on the desklamp 1."),
        ("go to shelf 2; take knife 1 from shelf 1; examine knife 1", "There's nothing special about knife 1."),
        # slicing goes by location, so also behind a closed door
        (
            "go to shelf 2; take knife 1 from shelf 1; go to cabinet 1; slice apple 1 with knife 1",
            "You sliced the apple 1 with the knife 1.",
        ),
        (f"{APPLE_TO_SINK}; clean apple 1 with sinkbasin 1", "You clean the apple 1 using the sinkbasin 1."),
        (f"{APPLE_TO_SINK}; clean apple 1 with sinkbasin 1; examine apple 1", "This is a clean apple 1."),
    ],
)
def test_answers(commands: str, text: str):
    found = play(small("put a mug in cabinet."), commands)[1]
    assert found == text.format(inside="a apple 1, and a mug 2")


def test_a_thing_beside_is_named_for_each_receptacle_here_that_it_was_taken_out_of():
    level = small("put a mug in cabinet.")
    state, _ = play(level, "go to shelf 1")
    knife = 1 << level.scene.things.index("knife 1")
    here = level.scene.here[state.place]
    lifted = tuple(knife if receptacle in here else 0 for receptacle in range(len(level.scene.receptacles)))
    emptied = state._replace(lifted=lifted, inside=(0,) * len(lifted))
    assert look_around(level.scene, emptied) == f"{LOOK_BY_SHELVES} a knife 1, and a knife 1."


def test_admissible_commands_are_sorted_as_strings_and_leave_out_what_cannot_be_done():
    level = small("put a mug in cabinet.")
    state, _ = play(level, "go to shelf 1")
    assert list(admissible(level.scene, state)) == [
        "examine shelf 1",
        "examine shelf 2",
        "go to cabinet 1",
        "go to sinkbasin 1",
        "inventory",
        "look",
        "take knife 1 from shelf 1",
        "take mug 1 from shelf 1",
        "take mug 1 from shelf 2",
        "use desklamp 1",
    ]
    state, _ = play(level, "go to shelf 1; take knife 1 from shelf 1; go to sinkbasin 1")
    commands = list(admissible(level.scene, state))
    assert not [command for command in commands if command.startswith(("put", "clean", "take"))]


@pytest.mark.parametrize("task", GOALS)
def test_plans_are_shortest_and_the_bound_is_one(task: str):
    level = small(task)
    plan = shortest_plan(level.scene, level.start, level.goal)
    best = shortest_by_breadth(level)
    assert (None if plan is None else len(plan)) == best
    assert level.goal.commands_left(level.scene, level.start) == (IMPOSSIBLE if best is None else best)


@pytest.mark.parametrize("task", GOALS)
def test_the_bound_never_exceeds_the_plan_on_random_walks(task: str):
    """Also with a thing in hand that is in the way, which the bound counts as one command."""
    level = small(task)
    planner, state = Planner(), level.start
    for step in range(60):
        actions = list(admissible(level.scene, state).values())
        state = apply(level.scene, state, actions[(step * 7 + len(actions)) % len(actions)])
        plan = planner.plan(level, state)
        walked = Level("walked", level.scene, state, level.goal, f"{level.digest}, step {step}")
        if step % 6 == 0:
            assert (None if plan is None else len(plan)) == shortest_by_breadth(walked)
        assert level.goal.commands_left(level.scene, state) <= (IMPOSSIBLE if plan is None else len(plan))


@pytest.mark.parametrize(
    ("task", "commands", "met", "of"),
    [
        (
            "put a mug in sinkbasin.",
            "go to shelf 1; take mug 1 from shelf 1; go to sinkbasin 1; put mug 1 in/on sinkbasin 1",
            [0, 1, 1, 2],
            2,
        ),
        # the mug is listed on two shelves, so it stays where it has to be: only cleaning it is left
        (
            "put a clean mug in shelf.",
            "go to shelf 1; take mug 1 from shelf 1; go to sinkbasin 1; clean mug 1 with sinkbasin 1",
            [2, 2, 2, 3],
            3,
        ),
        (
            "put two mug in shelf.",
            "go to cabinet 1; open cabinet 1; take mug 2 from cabinet 1; go to shelf 1; put mug 2 in/on shelf 1",
            [2, 2, 3, 3, 4],
            4,
        ),
        (
            "look at apple under the desklamp.",
            "go to shelf 1; use desklamp 1; go to cabinet 1; open cabinet 1; take apple 1 from cabinet 1; "
            "go to shelf 1",
            [0, 2, 1, 1, 2, 3],
            3,
        ),
    ],
)
def test_progress_is_the_share_of_the_goals_conditions(task: str, commands: str, met: list[int], of: int):
    level, parts = small(task), commands.split("; ")
    reached = [play(level, "; ".join(parts[: count + 1]))[0] for count in range(len(parts))]
    assert [level.goal.conditions(level.scene, state) for state in reached] == [(count, of) for count in met]


def test_without_a_sink_nothing_gets_clean():
    level = small("put a clean apple in cabinet.")
    types = tuple("shelftype" if kind == "sinkbasintype" else kind for kind in level.scene.receptacle_types)
    without = replace(level.scene, receptacle_types=types)
    assert shortest_plan(level.scene, level.start, level.goal)
    assert shortest_plan(without, level.start, level.goal) is None
