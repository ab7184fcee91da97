"""Search: terms, ranks and scores equal Lucene's, and a brute-force BM25."""

import gzip
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.webshop_search import ATTRIBUTES, PRODUCTS, measure, table, write_files
from tsr_lightning.worlds.webshop import bm25
from tsr_lightning.worlds.webshop.bm25 import LENGTHS, build_index, length_byte
from tsr_lightning.worlds.webshop.catalogue import Catalogue
from tsr_lightning.worlds.webshop.porter import stem
from tsr_lightning.worlds.webshop.product import Product
from tsr_lightning.worlds.webshop.reading import read_catalogue
from tsr_lightning.worlds.webshop.search import Search, indexed_text, search_over
from tsr_lightning.worlds.webshop.tokens import _ascii_words, _words, terms, words


def product(asin: str, title: str) -> Product:
    return Product(asin, title, "", (), "", "", "", (), (), (1.0,), 1.0)


def test_rankings_and_scores_are_those_of_lucene(shared_data: Path) -> None:
    folder = shared_data / "webshop"
    names = ("items_shuffle_1000.json.gz", "items_ins_v2_1000.json.gz")
    catalogue, _ = read_catalogue(*(folder / name for name in names))
    search = search_over(catalogue)
    assert search_over(catalogue) is search
    with gzip.open(folder / "lucene_rankings.jsonl.gz", "rt", encoding="utf-8") as lines:
        recorded = [json.loads(line) for line in lines]
    assert len(recorded) == 120
    for one in recorded:
        places, scores = search.index.top(one["query"], 50)
        assert [catalogue.products[place].asin for place in places] == one["ranking"]
        np.testing.assert_array_equal(scores, np.array(one["scores"], dtype=np.float32))
        assert search(one["query"]) == tuple(places)


def test_the_indexed_text_of_a_product() -> None:
    options = (("color", ("red", "blue")), ("size", ("s",)))
    shirt = Product("B1", "A Shirt", "Of Cotton.", ("Soft", "Long"), "cat", "q", "pc", ("at",), options, (1.0,), 1.0)
    assert indexed_text(shirt) == "a shirt of cotton. soft color: red, blue, and size: s"
    assert indexed_text(product("B1", "X")) == "x   "


# Terms


@pytest.mark.parametrize(
    ("text", "found"),  # as Lucene 9.9.1's EnglishAnalyzer gives them
    [
        ("The Dogs' running dog's women’s 12.5oz", "dog run dog women 12.5oz"),
        ("a_b _ café ABC-12 can't o'neil :x a:b 1,000 3/4", "a_b café abc 12 can't o'neil x a:b 1,000 3 4"),
        ("日本語 ยาว x™ 👍🏽ok 🎉 1️⃣ #️⃣ ★", "日 本 語 ยาว x ™ 👍🏽 ok 🎉 1️⃣ #️⃣ ★"),
        ("👨‍💼king 🇩🇪🇺 500ml 360º 18x18", "👨‍💼 king 🇩🇪 500ml 360º 18x18"),
        ("1.2.3 1..2 a.b.c. v2.0 2.v _x_ __ x__y", "1.2.3 1 2 a.b.c v2.0 2 v _x_ x__y"),
        ("not with such them", "them"),
        ("カナ한국 ひら １２ 1١", "カナ 한국 ひ ら １２ 1١"),
        ("", ""),
    ],
)
def test_terms_of_texts(text: str, found: str) -> None:
    assert terms(text) == found.split()


@pytest.mark.parametrize(
    ("word", "stemmed"),
    [
        *(("caresses", "caress"), ("ponies", "poni"), ("ties", "ti"), ("caress", "caress"), ("cats", "cat")),  # step 1
        *(("feed", "feed"), ("agreed", "agre"), ("plastered", "plaster"), ("bled", "bled"), ("motoring", "motor")),
        *(("sing", "sing"), ("conflated", "conflat"), ("troubled", "troubl"), ("sized", "size"), ("hopping", "hop")),
        *(("falling", "fall"), ("hissing", "hiss"), ("failing", "fail"), ("filing", "file"), ("happy", "happi")),
        *(("sky", "sky"), ("relational", "relat"), ("conditional", "condit"), ("rational", "ration")),  # step 2
        *(("digitizer", "digit"), ("operator", "oper"), ("feudalism", "feudal"), ("hopefulness", "hope")),
        *(("triplicate", "triplic"), ("formative", "form"), ("formalize", "formal"), ("electrical", "electr")),  # 3
        *(("goodness", "good"), ("revival", "reviv"), ("allowance", "allow"), ("adjustable", "adjust")),  # 4
        *(("replacement", "replac"), ("adoption", "adopt"), ("communism", "commun"), ("effective", "effect")),
        *(("probate", "probat"), ("rate", "rate"), ("cease", "ceas"), ("controll", "control"), ("roll", "roll")),  # 5
        *(("possibly", "possibl"), ("technology", "technolog"), ("is", "is"), ("by", "by"), ("", "")),  # the changes
        *(("ünïng", "ünïng"), ("s'", "s'"), ("ing", "ing"), ("eed", "eed"), ("ies", "i"), ("yyy", "yyi")),
    ],
)
def test_stems(word: str, stemmed: str) -> None:
    assert stem(word) == stemmed


@given(st.text("ab19_'.,;:-! \n", max_size=30))
def test_the_ascii_pattern_finds_the_same_words(text: str) -> None:
    assert _ascii_words(text) == [word for piece in text.split() for word in _words(piece) if word]


@given(st.text(max_size=30), st.text(max_size=30))
def test_a_blank_separates_terms(left: str, right: str) -> None:
    assert terms(f"{left} {right}") == terms(left) + terms(right)


def test_long_words_are_cut() -> None:
    assert list(map(len, words("x" * 600 + " y"))) == [255, 255, 90, 1]


# Ranking


def test_the_lengths_that_a_byte_can_encode() -> None:
    assert LENGTHS[:42].tolist() == [*range(40), 40, 42]  # one by one to 40, then in steps of two, four, eight
    assert LENGTHS[48:52].tolist() == [56, 60, 64, 68]
    assert np.all(np.diff(LENGTHS) > 0)
    assert LENGTHS[-1] == 24 + (15 << 27)
    assert LENGTHS[length_byte(np.array([0, 39, 41, 57, 59, 10**6]))].tolist() == [0, 39, 40, 56, 56, 24 + (15 << 16)]


def brute_force(texts: Sequence[str], query: str, most: int) -> list[tuple[int, np.float32]]:
    """BM25 by its definition, document by document, with lengths rounded to a byte as in Lucene."""
    documents = [terms(text) for text in texts]
    filled = [document for document in documents if document]
    average = np.float32(sum(map(len, filled)) / max(len(filled), 1))
    found = []
    for place, document in enumerate(documents):
        score = 0.0
        length = max((known for known in LENGTHS.tolist() if known <= len(document)), default=0)
        for term, count in Counter(terms(query)).items():
            if term in document:
                frequency = sum(term in other for other in filled)
                idf = np.float32(math.log(1 + (len(filled) - frequency + 0.5) / (frequency + 0.5)))
                weight = np.float32(count) * idf
                one, k1, b = np.float32(1), np.float32(0.9), np.float32(0.4)
                inverse = one / (k1 * ((one - b) + b * np.float32(length) / average))
                score += float(weight - weight / (one + np.float32(document.count(term)) * inverse))
        if score:
            found.append((place, np.float32(score)))
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))[:most]


def corpus(seed: int, size: int) -> list[str]:
    """Texts of frequent and rare words, with duplicates and empty texts."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(f"w{rank}" for rank in rng.zipf(1.4, rng.integers(0, 60)).clip(max=300)) for _ in range(size)]
    return texts + texts[: size // 3] + ["", "the of", "!!"]


@settings(max_examples=40)
@given(
    st.integers(0, 9), st.lists(st.integers(1, 40), max_size=8), st.integers(1, 60), st.sampled_from([0, 30, 20_000])
)
def test_the_ranking_equals_brute_force(seed: int, ranks: list[int], most: int, few: int) -> None:
    texts = corpus(seed, 90)
    query = " ".join(f"w{rank}" for rank in ranks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bm25, "_FEW", few)  # so that a small index prunes like a large one
        places, scores = build_index(texts).top(query, most)
    assert list(zip(places.tolist(), scores, strict=True)) == brute_force(texts, query, most)


@pytest.mark.parametrize("seed", range(3))
def test_pruning_does_not_change_the_ranking(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build_index(corpus(seed, 1500))
    rng = np.random.default_rng(seed)
    # rare words with frequent ones: short texts of frequent words alone are often among the best
    queries = [f"w{rng.integers(20, 300)} " + " ".join(f"w{rank}" for rank in range(1, end)) for end in (3, 5, 9) * 40]
    monkeypatch.setattr(bm25, "_FEW", 10**9)
    whole = [index.top(query, most) for query in queries for most in (1, 3, 10)]
    monkeypatch.setattr(bm25, "_FEW", 0)
    pruned = [index.top(query, most) for query in queries for most in (1, 3, 10)]
    for (places, scores), (expected, same) in zip(pruned, whole, strict=True):
        np.testing.assert_array_equal(places, expected)
        np.testing.assert_array_equal(scores, same)


@pytest.mark.parametrize("block", [1, 100, 1000])
def test_building_in_blocks_does_not_change_the_index(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = corpus(3, 200)
    whole = build_index(texts)
    monkeypatch.setattr(bm25, "_BLOCK", block)
    parts = build_index(texts)
    assert parts.vocabulary == whole.vocabulary
    for name in ("starts", "documents", "pairs", "damped", "best_pair"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))


def test_equal_documents_are_listed_in_catalogue_order() -> None:
    search = Search([product(f"B{number}", title) for number, title in enumerate(["red cup"] * 3 + ["cup"] + ["hat"])])
    assert search("red cups") == (0, 1, 2, 3)
    assert search("nothing") == search("") == search("the") == search("!!") == ()
    assert search("hats hats") == (4,)


def test_a_search_lists_at_most_fifty() -> None:
    search = Search([product(f"B{number}", "cup " * (1 + number // 30)) for number in range(90)])
    assert search("cup") == (*range(60, 90), *range(30, 50))


def test_an_empty_catalogue_gives_no_results() -> None:
    assert Search([])("cup") == ()
    assert Search([product("B1", "the")])("the cup") == ()
    assert search_over(Catalogue(()))("cup") == ()


def test_answers_are_cached() -> None:
    search = Search([product("B1", "cup")])
    assert search("cup") is search("cup")


@given(st.lists(st.text(max_size=20), max_size=5), st.text(max_size=20))
def test_any_text_can_be_indexed_and_queried(texts: list[str], query: str) -> None:
    found, scores = build_index(texts).top(query, 3)
    assert len(found) == len(scores) <= 3
    assert np.all(scores > 0)


# The benchmark


def test_the_benchmark_measures_generated_files(tmp_path: Path) -> None:
    write_files(tmp_path, 60)
    _, report = read_catalogue(tmp_path / PRODUCTS, tmp_path / ATTRIBUTES)
    assert str(report) == "60 of 60 products are in the shop"
    row = measure(tmp_path)
    assert row["products"] == 60
    assert row["fresh_ms"] > row["cached_us"] / 1000 > 0
    lines = table([row]).splitlines()
    assert len(lines) == 3
    assert lines[2].startswith("| 60 |")
