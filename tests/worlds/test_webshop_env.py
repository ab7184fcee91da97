"""The environment: prompts, budgets, both measures of success, states, and the contracts of gymnasium and search."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from commands import python_output
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from tests.webshop_fakes import GOAL, MUGS, PRODUCTS, SHIRT, SingleTask, shop_of
from tests.webshop_files import publish
from tsr_lightning.envs.base import Branchable, HasOracle, fingerprint
from tsr_lightning.envs.checker import check_branchable
from tsr_lightning.envs.turns import Draws
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key
from tsr_lightning.worlds.webshop.env import AS_ORIGINAL, WebShopEnv
from tsr_lightning.worlds.webshop.score import CLICK_DISCOUNT

PUBLISHED = Path(__file__).parents[2] / ".." / "shared" / "data" / "webshop"
SETTINGS: list[dict[str, Any]] = [
    {},
    {"observation": "compact", "prompt_style": "brief", "reward": "raw"},
    {"observation": "text", "prompt_style": "bare", "max_turns": 4},
    {"shops": 2, "shows_attributes": True, "observation": "compact"},
    {"difficulty": {"products": 40, "look_alikes": 20, "options": 0}, "catalogue_seed": 3},
    {"difficulty": [{"products": 24}, {"products": 40, "options": 0}]},
    {**AS_ORIGINAL, "nouns": "alphabetic", "max_turns": 30},
]
PATH = ("search[shirt]", "click[b0shirt001]", "click[navy]", "click[xx-large]", "click[buy now]")


def brief(**settings: Any) -> WebShopEnv:
    tasks = settings.pop("tasks", SingleTask(shop_of(*PRODUCTS)))
    env = WebShopEnv(**{"prompt_style": "brief", "tasks": tasks, **settings})
    env.reset(seed=0)
    return env


def answer(action: str) -> str:
    return f"<answer>{action}</answer>"


def play(env: WebShopEnv, *actions: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
    for action in actions[:-1]:
        env.step(answer(action))
    return env.step(answer(actions[-1]))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_gymnasiums_checker_passes(settings: dict[str, Any]) -> None:
    check_env(gymnasium.make("tsr/WebShop-v0", **settings).unwrapped)


@pytest.mark.parametrize("settings", [SETTINGS[0], SETTINGS[3]], ids=str)
def test_it_is_branchable(settings: dict[str, Any]) -> None:
    report = check_branchable("tsr/WebShop-v0", kwargs=settings, noisy=False, seeds=range(2))
    assert report.skipped == ()


@pytest.mark.exhaustive
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_it_is_branchable_at_length(settings: dict[str, Any]) -> None:
    assert check_branchable("tsr/WebShop-v0", kwargs=settings, noisy=False).skipped == ()


@pytest.mark.skipif(not PUBLISHED.exists(), reason=f"no published data in {PUBLISHED}")
@pytest.mark.parametrize("goals", ["synthetic", "human"])
def test_it_is_branchable_with_the_published_data(goals: str) -> None:
    split = "train" if goals == "synthetic" else "all"
    kwargs = {"data": str(PUBLISHED), "goals": goals, "split": split}
    assert check_branchable("tsr/WebShop-v0", kwargs=kwargs, seeds=range(2), noisy=False).skipped == ()


def test_it_is_registered_and_implements_the_contracts() -> None:
    env = gymnasium.make("tsr/WebShop-v0").unwrapped
    assert isinstance(env, WebShopEnv)
    assert isinstance(env, Branchable)
    assert isinstance(env, HasOracle)
    assert gymnasium.spec("tsr/WebShop-v0").max_episode_steps is None


def test_the_papers_prompt() -> None:
    env = WebShopEnv(tasks=SingleTask(shop_of(*PRODUCTS)))
    observation, info = env.reset(seed=0)
    assert env.instructions.startswith("You're a helpful assistant. You are shopping online. Read the instruction and")
    assert "<answer>search[hand painted ginkgo pillow cover]</answer>" in env.instructions
    assert "\nYou must buy within 9 actions; the article need not match in everything.\n" in env.instructions
    assert "\nsearch[<keywords>], click[<what stands on the page>]\nYou can make up to 9 actions" in env.instructions
    assert observation == (
        f"Turn 1:\nState:\nWebShop [SEP] Instruction: [SEP] {GOAL.instruction} [SEP] Search.\n"
        "You must choose from these actions: search[<content>].\n"
        "You have 9 actions left. Always output: <think> [Your thoughts] </think> <answer> [your answer] </answer> "
        "with no extra text. Strictly follow this format."
    )
    assert info == {
        "success": False,
        "score": 0.0,
        "bought": False,
        "detail": {},
        "action_is_valid": True,
        "action_is_effective": False,
    }
    observation, *_ = env.step("<think>a shirt</think><answer>search[shirt]</answer>")
    assert observation.startswith("Reward:\n0.0\nTurn 2:\nState:\nInstruction: [SEP] Find me")
    assert (
        "[SEP] $19.5 to $24.0.\nYou must choose from these actions: click[back to search], click[next >], click[b0"
        in (observation)
    )
    assert "You have 8 actions left." in observation


def test_the_prompt_tells_the_actions_that_can_be_played() -> None:
    assert "within 9 actions" in WebShopEnv().instructions
    assert "within 3 actions" in WebShopEnv(max_actions=3).instructions


def test_an_empty_page_offers_no_next_page() -> None:
    env = WebShopEnv(tasks=SingleTask(shop_of(*PRODUCTS)))
    env.reset(seed=0)
    for action in ("search[mug]", "click[next >]", "click[next >]"):
        observation = env.step(f"<think></think><answer>{action}</answer>")[0]
    assert "from these actions: click[back to search], click[< prev].\n" in observation
    assert env.step("<think></think><answer>click[next >]</answer>")[4]["action_is_valid"]  # though it can be taken


def test_the_compact_rendering() -> None:
    env = brief(observation="compact")
    goal = GOAL.instruction
    assert env.reset(seed=0)[0] == f"{goal}\nsearch\n9 left"
    assert env.step(answer("search[shirt]"))[0] == (
        f"{goal}\npage 1, 1 found\nMen's Linen Shirt $19.5 to $24.0 [b0shirt001]\nback to search, next >\n8 left"
    )
    assert play(env, "click[b0shirt001]", "click[xx-large]")[0] == (
        f"{goal}\nMen's Linen Shirt $19.5 to $24.0\ncolor: navy, dark navy x, white\nsize: large, [xx-large], x[l]\n"
        "back to search, < prev, description, features, reviews, buy now\n6 left"
    )
    assert play(env, "click[description]")[0] == (f"{goal}\nA shirt for warm days.\nback to search, < prev\n5 left")
    assert play(env, "click[nonsense]")[0].startswith(
        "No valid action provided previously: 'click[nonsense]' is not on this page.\n"
    )
    assert play(env, "click[< prev]", "click[buy now]")[0] == f"{goal}\nbought\n2 left"


def test_the_originals_prompt_and_rewards() -> None:
    env = WebShopEnv(**{**AS_ORIGINAL, "nouns": "alphabetic"}, tasks=SingleTask(shop_of(*PRODUCTS)))
    observation, _ = env.reset(seed=0)
    assert env.instructions == ""
    assert observation == f"WebShop [SEP] Instruction: [SEP] {GOAL.instruction} [SEP] Search"
    for action in (" search[shirt]", "Search[shirt]", "", "search[]", "click[search]", "look around"):
        assert env.step(action)[:4] == (observation, 0.0, False, False)
    *_, last = [env.step(action) for action in ("search[Shirt] please", *PATH[1:3], "click[BUY NOW]")]
    assert last[0].startswith("Thank you for shopping with us!")
    assert last[1:4] == (4 / 5, True, False)


@pytest.mark.parametrize(("kind", "half", "full"), [("raw", 4 / 5, 1.0), ("binary", 0.0, 1.0)])
def test_rewards_and_both_measures_of_success(kind: str, half: float, full: float) -> None:
    env = brief(reward=kind)
    _, reward, terminated, truncated, info = play(env, *PATH)
    assert (reward, terminated, truncated) == (full, True, False)
    assert (info["success"], info["score"], info["bought"], env.score()) == (True, 1.0, True, 1.0)
    env = brief(reward=kind)
    _, reward, terminated, _, info = play(env, *PATH[:3], PATH[4])
    assert (reward, terminated) == (half, True)
    assert (info["success"], info["score"], info["bought"], env.score()) == (False, 4 / 5, True, half)
    assert info["detail"]["r_option"] == 1 / 2
    with pytest.raises(ResetNeeded, match="the episode has ended"):
        env.step(answer("search[shirt]"))
    assert env.legal_actions() == []


def test_an_unreadable_response_costs_a_penalty_and_an_absent_action_a_turn() -> None:
    env = brief(max_turns=3)
    observation, reward, *_, info = env.step("I want a shirt.")
    assert observation.startswith("No valid action provided previously: no <answer>...</answer> in the response.\n")
    assert (reward, info["action_is_valid"], info["action_is_effective"]) == (-0.1, False, False)
    observation, reward, *_, info = env.step(answer("buy"))
    assert observation.startswith("No valid action provided previously: 'buy' is no action.\n")
    assert (reward, info["action_is_valid"]) == (-0.1, False)
    _, reward, terminated, truncated, info = env.step(answer("click[buy now]"))  # as in the original: nothing happens
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["action_is_valid"], info["action_is_effective"]) == (False, False)
    with pytest.raises(ResetNeeded):
        env.step(answer("search[shirt]"))


def test_the_first_of_several_actions_is_played() -> None:
    env = brief()
    assert env.step(answer("search[mug] || click[b0mug00000]"))[4]["action_is_valid"]
    assert env.state.page.kind == "search_results"
    # a value may hold the separator itself
    env = brief(tasks=SingleTask(shop_of(replace(SHIRT, options=(("color", ("red || blue",)),)))))
    play(env, *PATH[:2], "click[red || blue]")
    assert env.state.page.options == (("color", "red || blue"),)
    assert answer("click[red || blue]") in env.legal_actions()


def test_choosing_an_option_twice_is_not_effective() -> None:
    env = brief()
    assert play(env, *PATH[:3])[4]["action_is_effective"]
    assert not play(env, PATH[2])[4]["action_is_effective"]


def test_legal_actions_click_or_search() -> None:
    env = brief()
    assert env.legal_actions() == [
        answer(f"search[{GOAL.instruction.lower()}]"),
        answer("search[find me machine wash men's shirts]"),
    ]
    play(env, *PATH[:2])
    buttons = ["back to search", "< prev", "description", "features", "reviews", "buy now"]
    values = ["navy", "dark navy x", "white", "large", "xx-large"]  # and no x[l], which no response can name
    assert env.legal_actions() == [answer(f"click[{name}]") for name in buttons + values]


def test_searches_leave_out_brackets_and_line_breaks_of_the_instruction() -> None:
    env = brief(tasks=SingleTask(shop_of(*PRODUCTS), replace(GOAL, instruction="a [red]\nshirt with color: [x]")))
    assert env.legal_actions() == [answer("search[a red shirt with color: x]"), answer("search[a red shirt]")]
    env = brief(tasks=SingleTask(shop_of(*PRODUCTS), replace(GOAL, instruction="[]")))
    assert env.legal_actions() == [answer("search[anything]")]


def test_a_state_is_small_exact_and_can_be_pickled() -> None:
    env = WebShopEnv()
    env.reset(seed=7)
    for _ in range(3):
        env.step(env.oracle())
    state = env.get_state()
    assert len(pickle.dumps(state)) < 500
    after = [env.step(env.oracle()) for _ in range(2)]
    env.set_state(state)
    assert [env.step(env.oracle()) for _ in range(2)] == after
    other = WebShopEnv()
    other.set_state(pickle.loads(pickle.dumps(state)))
    assert [other.step(other.oracle()) for _ in range(2)] == after


def test_random_listings_are_drawn_from_the_branchs_key() -> None:
    env = brief()
    state = env.get_state()

    def listed(key: int | None) -> str:
        env.set_state(state)
        if key is not None:
            env.reseed(Key(key))
        return env.step(answer("search[<r>]"))[0]

    assert listed(1) == listed(1) != listed(2)
    assert listed(None) == listed(None)
    first = listed(1)
    env.reseed(Key(2))  # what is shown stays
    assert answer("click[next >]") in env.legal_actions()
    assert all(
        name in env.legal_actions() for name in (answer(f"click[{m.asin.lower()}]") for m in MUGS if m.asin in first)
    )


def test_a_random_listing_counts_as_chance() -> None:
    """So that random play does not take the first listing that it met for the only one."""
    env = brief()
    for action, chance in (("search[<r>]", True), ("search[shirt]", False)):
        noise = Draws(Key(1))
        env.play(env.state, (action,), noise)
        assert (noise.count > 0) == chance


def test_the_state_key_leaves_out_the_budget() -> None:
    env = brief()
    play(env, "search[shirt]")
    key, left, score = env.state_key(), env.remaining(), env.score()
    assert score == CLICK_DISCOUNT**4
    play(env, "click[back to search]", "search[shirt]")
    assert (env.state_key(), env.remaining()) == (key, left - 2)
    assert fingerprint(env.state_key()) == fingerprint(key)
    play(env, "click[next >]")
    assert env.state_key() != key


def test_seeds_name_goals_and_shops() -> None:
    env = WebShopEnv()
    first = {env.reset(seed=seed)[0] for seed in range(20)}
    assert len(first) == 20
    assert env.reset(seed=3)[0] == WebShopEnv().reset(seed=3)[0] != WebShopEnv(catalogue_seed=1).reset(seed=3)[0]
    observation, _ = env.reset(seed=19)
    assert env.task.goal.instruction in observation
    assert env.reset()[0] != env.reset()[0]  # unseeded resets go on


def test_the_oracle_succeeds() -> None:
    env = WebShopEnv(observation="compact", prompt_style="brief")
    for seed in range(30):
        env.reset(seed=seed)
        while True:
            *_, terminated, truncated, info = env.step(env.oracle())
            if terminated or truncated:
                break
        assert info["success"], seed
    env.reset(seed=0)
    with pytest.raises(ConfigError, match=r"noise is 0\.5: give a key"):
        env.oracle(0.5)
    assert {env.oracle(1.0, Key(seed)) for seed in range(20)} == set(env.legal_actions())


# ---- published files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    publish(tmp_path, PRODUCTS, [GOAL])
    return tmp_path


def test_published_files_by_folder_or_by_name(folder: Path) -> None:
    env = WebShopEnv(data=folder, split="all", prompt_style="brief")
    assert (
        env.reset(seed=0)[0]
        == WebShopEnv(data=folder / "items_shuffle.json", split="all", prompt_style="brief").reset(seed=0)[0]
    )
    goals = {env.reset(seed=seed)[0] for seed in range(100)}
    assert len(goals) > 10
    human = WebShopEnv(data=str(folder), goals="human", split="all", prompt_style="brief")
    assert GOAL.instruction.split(",")[0] in human.reset(seed=5)[0]
    one = WebShopEnv(data=folder, products=1, split="all")
    one.reset(seed=0)
    assert len(one.task.shop.catalogue) == 1


def test_the_price_limit_is_the_same_in_every_process(folder: Path) -> None:
    code = (
        "import sys; from tsr_lightning.worlds.webshop.env import WebShopEnv\n"
        "env = WebShopEnv(data=sys.argv[1], split='all')\n"
        "for seed in range(20):\n"
        "    env.reset(seed=seed)\n"
        "    print(env.task.goal.price_limit, env.task.goal.instruction)"
    )
    printed = {python_output(code, folder, hash_seed=salt) for salt in ("1", "2")}
    assert len(printed) == 1
    assert printed.pop().count("dollars") == 20


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_turns": 0}, "WebShopEnv.max_turns is 0: give a whole number of at least 1."),
        ({"actions_per_turn": 2}, "WebShopEnv.actions_per_turn is 2: a turn plays one action, so leave it out;"),
        ({"reward": "dense"}, "WebShopEnv.reward is 'dense': take one of raw, binary."),
        ({"observation": "html"}, "WebShopEnv.observation is 'html': take one of text, actions, compact."),
        (
            {"prompt_style": "loud"},
            "WebShopEnv.prompt_style is 'loud': take one of paper, instruct, brief, bare, original.",
        ),
        ({"nouns": "all"}, "WebShopEnv.nouns is 'all': take one of rule, alphabetic, spacy, auto."),
        ({"format_penalty": 0.1}, "WebShopEnv.format_penalty is 0.1: it is a reward, so give 0 or less, such as -0.1."),
        ({"render_mode": "human"}, "WebShopEnv.render_mode is 'human': take one of ansi."),
        ({"goals": "both"}, "WebShopEnv.goals is 'both': take one of synthetic, human."),
        ({"split": "dev"}, "WebShopEnv.split is 'dev': take one of train, validation, test, all."),
        ({"goal_order": "mine"}, "WebShopEnv.goal_order is 'mine': take one of ragen, original."),
        ({"products": 0}, "WebShopEnv.products is 0: give a whole number of at least 1."),
        ({"difficulty": {"product": 9}}, "WebShopEnv.difficulty has no 'product': did you mean 'products'?"),
        ({"difficulty": {"xyz": 9}}, "WebShopEnv.difficulty has no 'xyz': it takes products, look_alikes"),
        ({"difficulty": {"options": 99}}, "WebShopEnv.difficulty.options is 99: generated products have at most"),
        ({"difficulty": []}, "WebShopEnv.difficulty is []: give a mapping such as {products: 40}, a list of one"),
        ({"difficulty": ["easy"]}, "WebShopEnv.difficulty is ['easy']: give a mapping such as {products: 40}"),
        ({"difficulty": "easy"}, "WebShopEnv.difficulty is 'easy': give a mapping such as {products: 40}"),
        ({"difficulty": [{}, {"options": 99}]}, "WebShopEnv.difficulty.options is 99: generated products have at most"),
        ({"data": "no/such/place"}, "WebShopEnv.data is 'no/such/place': there is no such file; give the path"),
    ],
)
def test_bad_arguments(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        WebShopEnv(**settings)
    assert str(raised.value).startswith(message)


def test_ambiguous_folders_are_refused(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(ConfigError, match=r"the folder has 0 files items_shuffle\*\.json \(none\), so give the path"):
        WebShopEnv(data=empty)
    (folder / "items_shuffle_1000.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"2 files items_shuffle\*\.json \(items_shuffle\.json, items_shuffle_1000"):
        WebShopEnv(data=folder)
    (folder / "items_human_ins.json").unlink()
    with pytest.raises(ConfigError, match=r"WebShopEnv\.goals is 'human': there is no items_human_ins\*\.json beside"):
        WebShopEnv(data=folder / "items_shuffle.json", goals="human", split="all")


def test_rendering() -> None:
    env = brief(render_mode="ansi", observation="text")
    assert env.render() == f"WebShop [SEP] Instruction: [SEP] {GOAL.instruction} [SEP] Search"
    assert brief().render() is None
    with pytest.raises(ResetNeeded, match="call reset"):
        WebShopEnv(tasks=SingleTask(shop_of(*PRODUCTS))).score()
