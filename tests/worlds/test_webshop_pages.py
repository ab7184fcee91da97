"""Pages: their strings, where clicks lead, and the original's oddities."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.webshop_fakes import CANDLE, MUGS, PRODUCTS, SHIRT, product, shop_of
from tsr_lightning.rng import Key
from tsr_lightning.worlds.webshop.pages import Page, act, clickables, has_search_bar, is_expressible, verb_and_argument
from tsr_lightning.worlds.webshop.render import text, visible
from tsr_lightning.worlds.webshop.shop import Shop, listing

SHOP = shop_of(*PRODUCTS)
INSTRUCTION = "Find me a shirt"
RESULTS = f"Instruction: [SEP] {INSTRUCTION} [SEP] Back to Search"
ITEM = f"{RESULTS} [SEP] < Prev"


FIRST = Page()


def after(*actions: str, shop: Shop = SHOP, page: Page = FIRST) -> Page:
    """The page after valid actions."""
    for action in actions:
        result = act(shop, page, action)
        assert result is not None, action
        page = result
    return page


def shown(*actions: str, shop: Shop = SHOP) -> str:
    return text(shop, after(*actions, shop=shop), INSTRUCTION)


def clicks(*actions: str, shop: Shop = SHOP) -> list[str]:
    return list(clickables(shop, after(*actions, shop=shop)))


def test_the_first_page_has_only_the_search_button() -> None:
    assert shown() == f"WebShop [SEP] Instruction: [SEP] {INSTRUCTION} [SEP] Search"
    assert clicks() == ["search"]
    assert has_search_bar(Page())
    assert act(SHOP, Page(), "click[search]") is None


def test_results_are_shown_ten_a_page() -> None:
    mugs = [f"B0MUG{number:05} [SEP] Mug {number} [SEP] ${5.0 + number}" for number in range(12)]
    first, second = " [SEP] ".join(mugs[:10]), " [SEP] ".join(mugs[10:])
    assert shown("search[mug]") == f"{RESULTS} [SEP] Page 1 (Total results: 12) [SEP] Next > [SEP] {first}"
    assert (
        shown("search[mug]", "click[next >]")
        == f"{RESULTS} [SEP] Page 2 (Total results: 12) [SEP] < Prev [SEP] Next > [SEP] {second}"
    )
    assert clicks("search[mug]") == ["back to search", "next >", *(mug.asin.lower() for mug in MUGS[:10])]
    assert clicks("search[mug]", "click[next >]") == ["back to search", "< prev", "next >", "b0mug00010", "b0mug00011"]
    assert not has_search_bar(after("search[mug]"))


def test_there_is_always_a_next_page() -> None:
    past = "search[mug]", "click[next >]", "click[next >]"
    assert shown(*past) == f"{RESULTS} [SEP] Page 3 (Total results: 12) [SEP] < Prev [SEP] Next >"
    assert shown(*past, "click[next >]", *["click[< prev]"] * 3) == shown("search[mug]")
    assert shown("search[nothing like it]") == f"{RESULTS} [SEP] Page 1 (Total results: 0) [SEP] Next >"


def test_a_search_has_at_most_fifty_results() -> None:
    many = [product(asin=f"B{number:09}", title="Mug", category="garden", query="mugs") for number in range(60)]
    shop = shop_of(*many)
    assert "Total results: 50" in shown("search[mug]", shop=shop)
    assert clicks("search[mug]", *["click[next >]"] * 4, shop=shop)[-1] == "b000000049"
    assert "Total results: 60" in shown("search[<c> garden]", shop=shop)  # not a search


def test_the_page_of_a_product() -> None:
    assert shown("search[shirt]", "click[b0shirt001]") == (
        f"{ITEM} [SEP] color [SEP] navy [SEP] dark navy x [SEP] white [SEP] size [SEP] large [SEP] xx-large [SEP] x[l] "
        "[SEP] Men's Linen Shirt [SEP] Price: $19.5 to $24.0 [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] "
        "Reviews [SEP] Buy Now"
    )
    buttons = ["back to search", "< prev", "description", "features", "reviews", "buy now"]
    values = ["navy", "dark navy x", "white", "large", "xx-large", "x[l]"]
    assert clicks("search[shirt]", "click[b0shirt001]") == buttons + values
    assert shown("search[candle]", "click[b0candle01]") == (
        f"{ITEM} [SEP] Soy Candle [SEP] Price: $7.0 [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews "
        "[SEP] Buy Now"
    )


@pytest.mark.parametrize(
    ("sub", "content"),
    [
        ("description", "A shirt for warm days."),
        ("features", "Machine wash [SEP]  [SEP] Button closure"),  # an empty feature leaves the blank before it
        ("reviews", None),
    ],
)
def test_sub_pages(sub: str, content: str | None) -> None:
    path = "search[shirt]", "click[b0shirt001]", f"click[{sub}]"
    assert shown(*path) == ITEM + (f" [SEP] {content}" if content else "")
    assert clicks(*path) == ["back to search", "< prev"]


def test_an_empty_description_leaves_no_separator() -> None:
    assert shown("search[candle]", "click[b0candle01]", "click[description]") == ITEM
    assert shown("search[candle]", "click[b0candle01]", "click[features]") == f"{ITEM} [SEP] "


def test_attributes_have_a_page_if_the_shop_shows_them() -> None:
    shop = shop_of(*PRODUCTS, shows_attributes=True)
    path = "search[shirt]", "click[b0shirt001]"
    assert "Reviews [SEP] Attributes [SEP] Buy Now" in shown(*path, shop=shop)
    assert clicks(*path, shop=shop)[4:7] == ["reviews", "attributes", "buy now"]
    assert shown(*path, "click[attributes]", shop=shop) == (
        f"{ITEM} [SEP] machine wash [SEP] long sleeve [SEP] fashion [SEP] men's shirts [SEP] Clothing › Men › Shirts"
    )
    assert act(SHOP, after(*path), "click[attributes]") is None


def test_options_are_kept_on_sub_pages_and_forgotten_with_the_results() -> None:
    chosen = after("search[shirt]", "click[b0shirt001]", "click[xx-large]", "click[white]", "click[navy]")
    assert chosen.options == (("color", "navy"), ("size", "xx-large"))
    assert after("click[features]", "click[< prev]", page=chosen) == chosen
    assert after("click[< prev]", page=chosen) == after("search[shirt]")
    assert after("click[back to search]", page=chosen) == Page()
    assert after("search[mug]", page=chosen) == after("search[mug]")
    # in the order of the names, not of the clicks
    assert after("search[shirt]", "click[b0shirt001]", "click[navy]", "click[xx-large]") == chosen


def test_the_page_after_the_purchase() -> None:
    shop = shop_of(replace(SHIRT, options=(("it's <so>", ("a&b",)), ("color", ("é",)))))
    done = after("search[shirt]", "click[b0shirt001]", "click[a&b]", "click[é]", "click[buy now]", shop=shop)
    assert text(shop, done, INSTRUCTION, 0.75) == (
        "Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] (Paste it in your MTurk interface.) [SEP] "
        'Purchased [SEP] asin [SEP] B0SHIRT001 [SEP] options [SEP] {"color": "\\u00e9", '
        '"it\\u0027s \\u003cso\\u003e": "a\\u0026b"} [SEP] attrs [SEP] None [SEP] category [SEP] None [SEP] query '
        "[SEP] None [SEP] product category [SEP] None [SEP] Target [SEP] asin [SEP] options [SEP] attrs [SEP] price "
        "upper [SEP] instuction text [SEP] category [SEP] product category [SEP] query [SEP] Goal [SEP] None "
        "[SEP] Reward [SEP] Your score (min 0.0, max 1.0) [SEP] 0.75 [SEP] Reward Details [SEP] None"
    )
    assert list(clickables(shop, done)) == []
    assert act(shop, done, "click[buy now]") is None
    assert act(shop, done, "search[shirt]") == after("search[shirt]", shop=shop)


@pytest.mark.parametrize(
    ("action", "parsed"),
    [
        ("search[red shirt]", ("search", "red shirt")),
        ("search[Red SHIRT]", ("search", "red shirt")),
        ("search[ ]", ("search", " ")),
        ("click[Buy Now] please", ("click", "buy now")),
        ("click[a]b]", ("click", "a]b")),
        ("search[]", None),
        ("search[red", None),
        ("Search[red]", None),
        (" search[red]", None),
        ("search[a[b]]", None),  # the verb would be "search[a"
        ("search[red\nshirt]", None),
        ("look around", None),
        ("", None),
    ],
)
def test_verb_and_argument(action: str, parsed: tuple[str, str] | None) -> None:
    assert verb_and_argument(action) == parsed


def test_an_action_that_the_page_lacks_gives_no_page() -> None:
    page = after("search[shirt]")
    for action in ("click[buy now]", "click[< prev]", "click[b0candle01]", "click[navy]", "click[search]", "nonsense"):
        assert act(SHOP, page, action) is None


def test_a_value_with_an_opening_bracket_is_not_expressible() -> None:
    assert not is_expressible("x[l]")
    assert act(SHOP, after("search[shirt]", "click[b0shirt001]"), "click[x[l]]") is None
    assert not any(map(is_expressible, ("", "a\nb", "search")))
    assert is_expressible("10 | 12 ")


def test_a_value_of_two_options_belongs_to_the_last() -> None:
    shop = shop_of(replace(SHIRT, options=(("color", ("one", "red")), ("style", ("one", "two")))))
    path = "search[shirt]", "click[b0shirt001]"
    assert clicks(*path, shop=shop)[6:] == ["one", "red", "two"]
    assert after(*path, "click[one]", shop=shop).options == (("style", "one"),)


def test_a_value_named_like_a_button_acts_as_that_button() -> None:
    names = ("buy now", "back to search", "< prev", "next >", "description", "attributes", "search")
    shop = shop_of(replace(SHIRT, options=(("color", names),)))
    item = after("search[shirt]", "click[b0shirt001]", shop=shop)
    assert list(clickables(shop, item)) == [
        "back to search",
        "< prev",
        "description",
        "features",
        "reviews",
        "buy now",
        "next >",
        "attributes",
        "search",
    ]
    assert after("click[buy now]", shop=shop, page=item).kind == "done"
    assert after("click[back to search]", shop=shop, page=item) == Page()
    assert after("click[< prev]", shop=shop, page=item) == after("search[shirt]", shop=shop)
    assert after("click[next >]", shop=shop, page=item).options == (("color", "next >"),)
    assert after("click[attributes]", shop=shop, page=item).sub == "Attributes"
    assert act(shop, item, "click[search]") is None


def test_names_of_pages_in_the_query_lead_to_wrong_pages() -> None:
    item = after("search[search_results shirt]", "click[b0shirt001]")
    before_the_first = after("click[< prev]", page=item)
    assert text(SHOP, before_the_first, INSTRUCTION) == f"{RESULTS} [SEP] Page 0 (Total results: 1) [SEP] Next >"
    assert after("click[next >]", page=before_the_first) == after("search[search_results shirt]")
    sub = after("search[item_page shirt]", "click[b0shirt001]", "click[features]")
    assert after("click[< prev]", page=sub) == after("search[item_page shirt]")


def test_special_keywords() -> None:
    def listed(query: str, draw: int = 0) -> list[int]:
        return list(listing(SHOP, tuple(query.split(" ")), draw))

    mugs = list(range(2, 14))
    assert listed("<c> garden") == [1, *mugs]
    assert listed("<c> garden or whatever follows") == [1, *mugs]
    assert listed("<c>") == []  # the original crashes
    assert listed("<q> men's shirts") == [0]
    assert listed("<q>") == []
    assert listed("<a> soy wax") == [1]  # the original crashes
    assert sorted(listed("<r>")) == list(range(14))
    assert listed("<r>", draw=1) == listed("<r>", draw=1) != listed("<r>", draw=2)
    assert listed("x <r>") == []


def test_a_random_listing_is_drawn_anew_each_time() -> None:
    first = act(SHOP, Page(), "search[<r>]", draw=5)
    assert first == Page("search_results", ("<r>",), 1, draw=5)
    assert act(SHOP, first, "click[next >]", draw=6) == Page("search_results", ("<r>",), 2, draw=6)
    assert act(SHOP, Page(), "search[shirt]", draw=5) == after("search[shirt]")


@pytest.mark.parametrize(
    ("string", "shown"),
    [
        ("", []),
        (" ", [""]),
        ("\t\r", [""]),
        ("\n", []),
        (" \n ", []),
        ("\xa0", [""]),
        (" a\xa0b\n", ["a\xa0b"]),
        ("<b>&amp;</b>", ["<b>&amp;</b>"]),
    ],
)
def test_strings_as_a_browser_shows_them(string: str, shown: list[str]) -> None:
    assert visible(string) == shown


def walk(shop: Shop, key: Key, length: int) -> Iterator[tuple[Page, str, Page | None]]:
    page = Page()
    for step in range(length):
        names = list(clickables(shop, page))
        searches = ["search[shirt mug]", "search[<r>]", "search[candle]", "search[<c> garden]"]
        actions = [f"click[{name}]" for name in names] + (searches if len(names) < 2 else [])
        action = actions[key.bits(step) % len(actions)]
        result = act(shop, page, action, step)
        yield page, action, result
        page = result or page


def test_every_expressible_click_leads_to_a_page() -> None:
    count = 0
    for seed in range(40):
        for page, action, result in walk(SHOP, Key(seed), 50):
            name = action.removeprefix("click[")[:-1]
            assert (result is not None) == (action.startswith("search") or is_expressible(name)), (page, action)
            if result is not None and result.kind != "done":
                assert text(SHOP, result, INSTRUCTION).count(INSTRUCTION) == 1
            count += result is not None
    assert count > 1500


def test_product_pages_without_a_product_raise() -> None:
    with pytest.raises(ValueError, match="item_page shows a product"):
        clickables(SHOP, Page("item_page"))
    with pytest.raises(ValueError, match="item_sub_page shows a product"):
        text(SHOP, Page("item_sub_page", sub="Features"), INSTRUCTION)


def test_asins_in_lower_case_can_be_clicked() -> None:
    shop = shop_of(replace(CANDLE, asin="b0candle01"))
    assert after("search[candle]", "click[B0CANDLE01]", shop=shop).place == 0
