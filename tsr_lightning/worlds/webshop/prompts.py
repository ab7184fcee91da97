"""Prompts of the shop: rules and hints, the observation of a turn, and the action in a response."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from tsr_lightning.envs.reading import SEPARATOR, STRICT
from tsr_lightning.envs.text import PROMPT_STYLES, PromptStyle, format_rules
from tsr_lightning.worlds.webshop.pages import (
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
    is_expressible,
    listed,
    product_on,
    verb_and_argument,
)
from tsr_lightning.worlds.webshop.render import price_tag, strings, text
from tsr_lightning.worlds.webshop.shop import Shop

ObservationName = Literal["text", "actions", "compact"]

# The original environment's interface: the page and nothing else, and the whole response is the action
ORIGINAL = PromptStyle(
    system="",
    turn="{state}",
    reward="",
    marks=(),
    reply="{actions}",
    form="search[...] or click[...]",
    terse=False,
    says_form=False,
)
SHOP_PROMPT_STYLES: dict[str, PromptStyle] = {**PROMPT_STYLES, "original": ORIGINAL}

_EXAMPLE = "search[hand painted ginkgo pillow cover]"
_ACTIONS = ("search[<keywords>]", "click[<what stands on the page>]")
_END_OF_RESULTS = [f"{CLICK}[{button.lower()}]" for button in (BACK, PREV, NEXT)]
_QUOTED = 40  # characters of a response in a warning


def instructions(prompt_style: PromptStyle, limit: int) -> str:
    """The system message. Rules and hints follow RAGEN's in content (github.com/mll-lab-nu/RAGEN).

    RAGEN repeats the hints in every turn; here they stand once.

    Args:
        limit: the most actions of an episode.
    """
    if prompt_style.terse:
        rules = (
            "Buy what is asked for: search[words], then click[what stands there]; choose the options; click[buy now]."
        )
    else:
        example = _EXAMPLE if not prompt_style.marks else f"<answer>{_EXAMPLE}</answer>"
        rules = (
            "You are shopping online. Read the instruction and buy an article that is close to what it describes: "
            "search, read the results, open an article, choose its size, color and other options, and buy it. Every "
            "page comes with the list of its actions, and only those can be taken. For example, if the instruction is "
            f"to find a hand painted pillow cover, 20x20, with ginkgo leaves, a good beginning is {example}. A turn "
            "plays one action."
        )
    hints = (
        f"You must buy within {limit} actions; the article need not match in everything.\n"
        "Leave size, color and price out of the words that you search for, and search at most twice.\n"
        "Rather open an article of the page in sight than go to the next page, and hardly ever go back a page.\n"
        "Where the options asked for are to be had, choose them one at a time before you buy.\n"
        "With fewer than 3 actions left, buy the first article in sight."
    )
    return format_rules(prompt_style, rules=rules, symbols=hints, actions=_ACTIONS, limit=limit, example=[_EXAMPLE])


def show(shop: Shop, page: Page, instruction: str, reward: float, observation: ObservationName) -> str:
    """The page as text, as text with its actions, or in few tokens."""
    if observation == "compact":
        return compact(shop, page, instruction)
    shown = text(shop, page, instruction, reward)
    if observation == "text" or page.kind == DONE:
        return shown
    return f"{shown}.\nYou must choose from these actions: {', '.join(available_actions(shop, page))}."


@lru_cache(maxsize=8192)
def available_actions(shop: Shop, page: Page) -> Sequence[str]:
    """The actions of a page as RAGEN lists them, which leaves out the next page after one without products."""
    actions = ["search[<content>]"] if has_search_bar(page) else []
    actions += [f"{CLICK}[{name}]" for name in clickables(shop, page) if name != SEARCH]
    return actions[:-1] if actions == _END_OF_RESULTS else actions


def compact(shop: Shop, page: Page, instruction: str) -> str:
    """The page in few tokens: a line per product or option, and the chosen values in brackets.

    The other renderings do not show which values are chosen.
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
    product, chosen = product_on(shop, page), set(page.options)
    lines = [f"{product.title} {price_tag(product)}"]
    for name, values in product.options:
        marked = [f"[{value}]" if (name, value) in chosen else value for value in values]
        lines.append(f"{name}: {', '.join(marked)}")
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


def parse_action(response: str, prompt_style: PromptStyle) -> tuple[str, str]:
    """The action of a response and "", or "" and what is wrong with the response.

    Of several actions the first is played and the others are ignored, not punished (RAGEN).
    """
    answer = prompt_style.reader.find(response, prompt_style.marks)
    if answer is None:
        return "", f"no {prompt_style.form} in the response"
    answer = prompt_style.reader.call(answer, (SEARCH, CLICK))
    if prompt_style.marks or prompt_style.reader is not STRICT:  # the original takes the response as it is
        answer = answer.strip()
        first = answer.split(SEPARATOR)[0].strip()
        if verb_and_argument(first):
            return first, ""
    if verb_and_argument(answer):
        return answer, ""
    return "", f"{answer[:_QUOTED]!a} is no action" if answer else "the answer is empty"


def legal_actions(shop: Shop, page: Page, instruction: str) -> tuple[str, ...]:
    """Actions that are valid on a page: its expressible clicks, or searches with words of the instruction."""
    return _searches(instruction) if has_search_bar(page) else _clicks(shop, page)


@lru_cache(maxsize=8192)
def _clicks(shop: Shop, page: Page) -> tuple[str, ...]:
    return tuple(f"{CLICK}[{name}]" for name in clickables(shop, page) if is_expressible(name))


@lru_cache(maxsize=1024)
def _searches(instruction: str) -> tuple[str, ...]:
    """Searches for all words of the instruction, and for those before options and price."""
    words = " ".join(re.sub(r"[\[\]]", " ", instruction).split()).lower() or "anything"
    first = re.split(r", and price lower than | with ", words)[0]
    return tuple(f"{SEARCH}[{query}]" for query in dict.fromkeys([words, first]))
