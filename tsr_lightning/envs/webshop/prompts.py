"""How the shop is talked to: rules and hints, what a turn shows, and which action a response says."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from tsr_lightning.envs.text import PROMPT_STYLES, SEPARATOR, PromptStyle, find_answer, format_rules
from tsr_lightning.envs.webshop.pages import (
    BACK,
    CLICK,
    DONE,
    INDEX,
    ITEM,
    NEXT,
    PREV,
    RESULTS,
    SEARCH,
    SUB,
    Page,
    clickables,
    has_search_bar,
    listed,
    read,
    sayable,
)
from tsr_lightning.envs.webshop.render import price_tag, strings, text
from tsr_lightning.envs.webshop.shop import Shop

ObservationName = Literal["text", "actions", "compact"]
ShopWordingName = Literal["paper", "brief", "bare", "original"]

# The page and nothing else, and the whole response is the action: the original environment's own way
ORIGINAL = PromptStyle(
    system="",
    turn="{state}",
    reward="",
    marks=(),
    reply="{actions}",
    form="search[...] or click[...]",
    terse=False,
)
SHOP_WORDINGS: dict[str, PromptStyle] = {**PROMPT_STYLES, "original": ORIGINAL}

_ACTIONS = ("search[<keywords>]", "click[<what stands on the page>]")
_END_OF_RESULTS = [f"{CLICK}[{button.lower()}]" for button in (BACK, PREV, NEXT)]
_SHOWN = 40  # characters of a response in a warning


def instructions(prompt_style: PromptStyle, turns: int) -> str:
    """The system message. Rules and hints follow RAGEN's in content (github.com/mll-lab-nu/RAGEN).

    RAGEN repeats the hints in every turn; here they are told once.
    """
    if prompt_style.terse:
        rules = (
            "Buy what is asked for: search[words], then click[what stands there]; choose the options; click[buy now]."
        )
    else:
        rules = (
            "You are shopping online. Read the instruction and buy an article that is close to what it describes: "
            "search, read the results, open an article, choose its size, color and other options, and buy it. Every "
            "page comes with the list of its actions, and only those can be taken. For example, if the instruction is "
            "to find a hand painted pillow cover, 20x20, with ginkgo leaves, a good beginning is "
            "<answer>search[hand painted ginkgo pillow cover]</answer>. A turn plays one action."
        )
    hints = (
        f"You must buy within {turns} actions; the article need not match in everything.\n"
        "Leave size, color and price out of the words that you search for, and search at most twice.\n"
        "Rather open an article of the page in sight than go to the next page, and hardly ever go back a page.\n"
        "Where the options asked for are to be had, choose them one at a time before you buy.\n"
        "With fewer than 3 actions left, buy the first article in sight."
    )
    return format_rules(prompt_style, rules=rules, symbols=hints, actions=_ACTIONS, limit=turns)


@lru_cache(maxsize=8192)
def available(shop: Shop, page: Page) -> Sequence[str]:
    """The actions of a page as RAGEN lists them; there is no next page after one without articles."""
    actions = ["search[<content>]"] if has_search_bar(page) else []
    actions += [f"{CLICK}[{name}]" for name in clickables(shop, page) if name != SEARCH]
    return actions[:-1] if actions == _END_OF_RESULTS else actions


def show(shop: Shop, page: Page, instruction: str, reward: float, observation: ObservationName) -> str:
    """The page as text, with the actions that it has, or in few tokens."""
    if observation == "compact":
        return compact(shop, page, instruction)
    shown = text(shop, page, instruction, reward)
    if observation == "text" or page.kind == DONE:
        return shown
    return f"{shown}.\nYou must choose from these actions: {', '.join(available(shop, page))}."


def compact(shop: Shop, page: Page, instruction: str) -> str:
    """The page in few tokens: a line an article or an option, and the values chosen in brackets.

    The other renderings do not tell which values are chosen.
    """
    return "\n".join([" ".join(instruction.split()), *_compact(shop, page)])


@lru_cache(maxsize=8192)
def _compact(shop: Shop, page: Page) -> Sequence[str]:
    return _COMPACT[page.kind](shop, page)


def _compact_index(shop: Shop, page: Page) -> list[str]:
    return [SEARCH]


def _compact_results(shop: Shop, page: Page) -> list[str]:
    places, total = listed(shop, page)
    products = [shop.product(place) for place in places]
    lines = [f"{product.title} {price_tag(product)} [{product.asin.lower()}]" for product in products]
    return [f"page {page.number}, {total} found", *lines, _buttons(shop, page)]


def _compact_item(shop: Shop, page: Page) -> list[str]:
    if page.place is None:
        raise ValueError("a page of an article has an article")
    product, chosen = shop.product(page.place), set(page.options)
    lines = [f"{product.title} {price_tag(product)}"]
    for name, values in product.options:
        said = [f"[{value}]" if (name, value) in chosen else value for value in values]
        lines.append(f"{name}: {', '.join(said)}")
    return [*lines, _buttons(shop, page)]


def _compact_sub(shop: Shop, page: Page) -> list[str]:
    return [*strings(shop, page)[2:], _buttons(shop, page)]


def _compact_done(shop: Shop, page: Page) -> list[str]:
    return ["bought"]


_COMPACT = {
    INDEX: _compact_index,
    RESULTS: _compact_results,
    ITEM: _compact_item,
    SUB: _compact_sub,
    DONE: _compact_done,
}


def _buttons(shop: Shop, page: Page) -> str:
    targets = clickables(shop, page)
    return ", ".join(name for name, target in targets.items() if target.place is None and target.option is None)


def heard(response: str, prompt_style: PromptStyle) -> tuple[str, str]:
    """The action that a response says, and "" or else what is wrong with it.

    Of several actions the first is played and the others are left, not punished (RAGEN).
    """
    whole = find_answer(response, prompt_style)
    if whole is None:
        return "", f"no {prompt_style.form} in the response"
    if prompt_style is not ORIGINAL:  # which takes what is said as it is
        whole = whole.strip()
        first = whole.split(SEPARATOR)[0].strip()
        if read(first):
            return first, ""
    if read(whole):
        return whole, ""
    return "", f"{whole[:_SHOWN]!a} is no action" if whole else "the answer is empty"


def possible(shop: Shop, page: Page, instruction: str) -> tuple[str, ...]:
    """Actions that can be said on a page and do something: what can be clicked, or searches with the words told."""
    return _searches(instruction) if has_search_bar(page) else _clicks(shop, page)


@lru_cache(maxsize=8192)
def _clicks(shop: Shop, page: Page) -> tuple[str, ...]:
    return tuple(f"{CLICK}[{name}]" for name in clickables(shop, page) if sayable(name))


@lru_cache(maxsize=1024)
def _searches(instruction: str) -> tuple[str, ...]:
    """For all words of the instruction, and for those before options and price."""
    words = " ".join(re.sub(r"[\[\]]", " ", instruction).split()).lower() or "anything"
    first = re.split(r", and price lower than | with ", words)[0]
    return tuple(f"{SEARCH}[{said}]" for said in dict.fromkeys([words, first]))
