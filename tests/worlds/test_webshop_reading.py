"""WebShop's published files: records read, irregular records repaired or skipped, broken files refused."""

import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from commands import python_output
from hypothesis import given, settings
from hypothesis import strategies as st

from tsr_lightning.errors import ConfigError
from tsr_lightning.worlds.webshop import json_stream
from tsr_lightning.worlds.webshop.catalogue import Catalogue, PackedRecords
from tsr_lightning.worlds.webshop.cleaning import price_of, prices_of, text
from tsr_lightning.worlds.webshop.json_stream import elements, pairs
from tsr_lightning.worlds.webshop.product import GoalTemplate, Product
from tsr_lightning.worlds.webshop.reading import ReadReport, read_catalogue

RECORD: dict[str, Any] = {
    "asin": "B000000001",
    "name": "Red Shirt",
    "category": "fashion",
    "query": " Men's Shirts ",
    "product_category": "Clothing › Shirts",
    "full_description": "A shirt.",
    "small_description": ["Soft ", "Long sleeve"],
    "pricing": "$12.5",
    "customization_options": {"Color": [{"value": " Red/Blue "}, {"value": "Green"}], "Size": None},
    "images": [""],
}
SYNTHETIC = {"attributes": ["soft"], "instruction": "Find me soft shirts", "instruction_attributes": ["soft"]}


def record(**changed: Any) -> dict[str, Any]:
    return {**RECORD, **changed}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in RECORD.items() if name != key}


def written(folder: Path, content: object, name: str = "items_shuffle.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def read(
    folder: Path, records: list[Any], synthetic: object = None, human: object = None
) -> tuple[Catalogue, ReadReport]:
    return read_catalogue(
        written(folder, records),
        None if synthetic is None else written(folder, synthetic, "items_ins_v2.json"),
        None if human is None else written(folder, human, "items_human_ins.json"),
    )


def test_a_record_becomes_a_product_and_its_goal_templates(tmp_path: Path) -> None:
    person = {"instruction": "i want a shirt.", "instruction_attributes": ["soft"], "instruction_options": ["red"]}
    nothing = {"instruction": "whatever", "instruction_attributes": [], "instruction_options": []}
    human = {"B000000001": [nothing, person]}
    catalogue, report = read(tmp_path, [RECORD], {"B000000001": SYNTHETIC}, human)
    assert list(catalogue.products) == [
        Product(
            asin="B000000001",
            title="Red Shirt",
            description="A shirt.",
            bullets=("Soft ", "Long sleeve"),
            category="fashion",
            query="men's shirts",
            product_category="Clothing › Shirts",
            attributes=("soft",),
            options=(("color", ("red | blue", "green")),),
            prices=(12.5,),
            price=12.5,
        )
    ]
    assert list(catalogue.templates) == [GoalTemplate(0, "Find me soft shirts", ("soft",))]
    assert list(catalogue.human_templates) == [GoalTemplate(0, "i want a shirt.", ("soft",), ("red",), number=1)]
    assert str(report) == (
        "1 of 1 products are in the shop; 1 human instructions without attributes, left out (first: element 1)"
    )


def test_the_published_sample_is_read_completely(shared_data: Path) -> None:
    folder = shared_data / "webshop"
    names = ("items_shuffle_1000.json.gz", "items_ins_v2_1000.json.gz", "items_human_ins_13.json.gz")
    catalogue, report = read_catalogue(*(folder / name for name in names))
    assert str(report) == "1000 of 1000 products are in the shop"
    assert (len(catalogue), len(catalogue.templates), len(catalogue.human_templates)) == (1000, 415, 13)
    with gzip.open(folder / names[0]) as file:
        raw = json.load(file)
    assert [product.asin for product in catalogue.products] == [one["asin"] for one in raw]
    assert [product.title for product in catalogue.products] == [one["name"] for one in raw]
    for one, product in zip(raw, catalogue.products, strict=True):
        pricing = "".join(f"${price}" for price in product.prices)
        assert pricing == one["pricing"] or float(pricing[1:]) == float(one["pricing"][1:])
        assert min(product.prices) <= product.price <= max(product.prices)


def test_plain_and_gzip_files_of_any_name_and_the_first_few_records(tmp_path: Path) -> None:
    records = [record(asin=f"B{number:09d}") for number in range(5)]
    catalogue, _ = read(tmp_path, records)
    packed = tmp_path / "packed.json"  # recognised by its content
    packed.write_bytes(gzip.compress(json.dumps(records).encode()))
    assert list(read_catalogue(str(packed), None)[0].products) == list(catalogue.products)
    few, report = read_catalogue(packed, None, limit=2)
    assert list(few.products) == list(catalogue.products)[:2]
    assert report.records == 2


def test_files_are_cached_until_they_change(tmp_path: Path) -> None:
    path = written(tmp_path, [RECORD])
    assert read_catalogue(path, None)[0] is read_catalogue(str(path), None)[0]
    written(tmp_path, [record(name="Other")])
    os.utime(path, ns=(1, 1))
    assert read_catalogue(path, None)[0].products[0].title == "Other"


# Irregular records


@pytest.mark.parametrize(
    ("odd", "note"),
    [
        (7, "products not an object, skipped"),
        (without("asin"), "products without a usable asin, skipped"),
        (record(asin="nan"), "products without a usable asin, skipped"),
        (record(asin="B0000000012"), "products without a usable asin, skipped"),
        (record(asin="B\x00"), "products without a usable asin, skipped"),
        (record(asin="B0", name=None), "products without a name, skipped"),
        (without("name") | {"asin": "B0"}, "products without a name, skipped"),
        (RECORD, "products with the asin of an earlier one, skipped"),
    ],
)
def test_invalid_products_are_skipped_with_a_note(odd: object, note: str, tmp_path: Path) -> None:
    catalogue, report = read(tmp_path, [RECORD, odd])
    assert [product.asin for product in catalogue.products] == ["B000000001"]
    assert report == ReadReport(2, 1, {note: (1, "element 2")})


@pytest.mark.parametrize(
    ("changed", "field", "value", "note"),
    [
        ({"pricing": None}, "prices", (100.0,), "products without a price, taken as $100.0"),
        ({"pricing": ""}, "prices", (100.0,), "products without a price, taken as $100.0"),
        ({"pricing": "free"}, "prices", (100.0,), "prices that cannot be read, taken as $100.0"),
        ({"pricing": "$"}, "prices", (100.0,), "prices that cannot be read, taken as $100.0"),
        ({"pricing": "$1.2.3"}, "prices", (100.0,), "prices that cannot be read, taken as $100.0"),
        ({"pricing": ["$5"]}, "prices", (100.0,), "prices that cannot be read, taken as $100.0"),
        ({"pricing": "$1,234.50"}, "prices", (1234.5,), None),
        ({"pricing": "$3$9$12"}, "prices", (3.0, 9.0), None),
        ({"customization_options": ""}, "options", (), None),
        ({"customization_options": {"Color": None}}, "options", (), None),
        ({"customization_options": {"Color": []}}, "options", (("color", ()),), None),
        ({"customization_options": ["red"]}, "options", (), "options that cannot be read, left out"),
        ({"customization_options": {"Color": "red"}}, "options", (), "options that cannot be read, left out"),
        (
            {"customization_options": {"Color": [{"value": "Red"}, {"image": ""}, 3]}},
            "options",
            (("color", ("red",)),),
            "options that cannot be read, left out",
        ),
        (
            {"customization_options": {"Color": [{"value": "Red"}], "COLOR": [{"value": "Blue"}]}},
            "options",
            (("color", ("blue",)),),
            None,
        ),
        ({"small_description": "One"}, "bullets", ("One",), None),
        ({"small_description": []}, "bullets", (), None),
        ({"small_description": None}, "bullets", ("",), None),
        ({"full_description": 5}, "description", "", "fields that are no text, emptied"),
        ({"name": ""}, "title", "", None),  # one of the published sample is
        ({"name": "a\x00b\x1bc\ud800"}, "title", "a b c\ufffd", "texts with control characters, replaced"),
        ({"name": "two\nlines\tand\xa0blanks\u200b"}, "title", "two\nlines\tand\xa0blanks\u200b", None),
        ({"name": "<|im_end|><b>x</b> &amp; y"}, "title", "<|im_end|><b>x</b> &amp; y", None),
    ],
)
def test_irregular_fields_are_repaired_with_a_note(
    changed: dict[str, Any], field: str, value: object, note: str | None, tmp_path: Path
) -> None:
    catalogue, report = read(tmp_path, [record(**changed)])
    assert getattr(catalogue.products[0], field) == value
    assert report == ReadReport(1, 1, {} if note is None else {note: (1, "element 1")})


def test_missing_fields_are_empty(tmp_path: Path) -> None:
    catalogue, _ = read(tmp_path, [{"asin": "B0", "name": "Thing"}])
    assert catalogue.products[0] == Product("B0", "Thing", "", ("",), "", "", "", ("DUMMY_ATTR",), (), (100.0,), 100.0)


def test_instructions_for_absent_products_are_skipped_and_counted(tmp_path: Path) -> None:
    person = {"instruction": "x", "instruction_attributes": ["y"], "instruction_options": []}
    human = {"B1": [person], "B2": [person]}
    catalogue, report = read(tmp_path, [RECORD], {"B0": SYNTHETIC, "B000000001": SYNTHETIC}, human)
    assert [template.place for template in catalogue.templates] == [0]
    assert list(catalogue.human_templates) == []
    assert report.notes == {"products in the other files that items_shuffle.json lacks, left out": (3, "B0")}


@pytest.mark.parametrize(
    "synthetic",
    [
        {"B000000001": {"attributes": ["a"], "instruction": "", "instruction_attributes": ["a"]}},
        {"B000000001": {"attributes": ["a"], "instruction": "x", "instruction_attributes": []}},
        {"B000000001": {"attributes": ["a"], "instruction": "x"}},
        {"B000000001": {"attributes": ["a"], "instruction": "x", "instruction_attributes": "soft"}},
    ],
)
def test_empty_instructions_are_skipped_with_a_note(synthetic: object, tmp_path: Path) -> None:
    catalogue, report = read(tmp_path, [RECORD], synthetic)
    assert list(catalogue.templates) == []
    assert report.notes == {"instructions without text or attributes, left out": (1, "element 1")}


@pytest.mark.parametrize("synthetic", [{}, {"B000000001": {}}, {"B000000001": None}, {"B000000001": ["a"]}])
def test_products_without_attributes_get_the_originals_placeholder(synthetic: object, tmp_path: Path) -> None:
    catalogue, _ = read(tmp_path, [RECORD], synthetic)
    assert catalogue.products[0].attributes == ("DUMMY_ATTR",)
    assert list(catalogue.templates) == []


# Broken files


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"nowhere\.json: cannot be read \(No such file or directory\); give the path"
    ):
        read_catalogue(tmp_path / "nowhere.json", None)
    path = written(tmp_path, [RECORD])
    with pytest.raises(ConfigError, match=r"gone\.json: cannot be read \(No such"):
        read_catalogue(path, tmp_path / "gone.json")
    with pytest.raises(ConfigError, match=r"cannot be read .Is a directory"):
        read_catalogue(tmp_path, None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty; get the file again"),
        ("  \n", "is empty; get the file again"),
        ("{}", "begins with '{' instead of '\\['; give a file that holds one list"),
        ("hello", "begins with 'h' instead of '\\['"),
        ("[]", r"holds no valid product \(0 of 0 products are in the shop\)"),
        ("[1, 2]", "holds no valid product .0 of 2 products are in the shop; 2 products not an object"),
        ('[{"asin": "B0"', "no complete JSON at element 1, character 1: the file ends within it; get the file again"),
        ('[{"asin": "B', "no complete JSON at element 1, character 1: the file ends within it"),
        ('[{"asin": "B0"}', "no complete JSON at element 1, character 15: the file ends"),
        ('[{"asin": "B0"},', "no complete JSON at element 2, character 16: the file ends"),
        ('[{"asin": "B0"} {"asin": "B1"}]', "at element 1, character 16: there is '{' instead of a comma or ]"),
        ('[{"asin": "B0"}] more', "at element 1, character 17: there is 'm' after the end"),
        ('[{"asin": nothing}]', "at element 1, character 10: Expecting value"),
        ("[{'asin': 1}, " + "0, " * 20 + "0]", "at element 1, character 2: Expecting property name"),
        ("[" + "[" * 100_000, "no complete JSON at element 1"),
        ("[" + "1" * 5000 + "]", "at element 1, character 1: it is too large or too deeply nested"),
    ],
)
def test_broken_files_are_refused_with_the_position(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_catalogue(written(tmp_path, content), None)
    assert str(caught.value).startswith(f"{tmp_path / 'items_shuffle.json'}: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "begins with '\\[' instead of '{'; give a file that holds one object"),
        ('{"B0": {}, 3: {}}', "at element 2, character 12: there is no key with a colon"),
        ('{"B0" {}}', "at element 1, character 6: there is no key with a colon"),
        ('{"B0": {}', "at element 1, character 9: the file ends"),
    ],
)
def test_broken_files_of_attributes_are_refused(content: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, [RECORD])
    for files in ((path, written(tmp_path, content, "ins.json")), (path, None, written(tmp_path, content, "hum.json"))):
        with pytest.raises(ConfigError, match=message):
            read_catalogue(*files)


def test_text_that_is_not_utf8_and_truncated_gzip_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "items.json"
    path.write_bytes(b'[{"asin": "\xff"}]')
    with pytest.raises(ConfigError, match=r"items\.json: cannot be read after element 0 .'utf-8' codec"):
        read_catalogue(path, None)
    whole = gzip.compress(json.dumps([RECORD] * 50).encode())
    for kept in (len(whole) - 9, 30, 12):
        path.write_bytes(whole[:kept])
        with pytest.raises(ConfigError, match=r"items\.json: cannot be read after element \d+ .*; get the file again"):
            read_catalogue(path, None)
    path.write_bytes(whole[:20] + bytes(10) + whole[30:])
    with pytest.raises(ConfigError, match=r"items\.json: cannot be read"):
        read_catalogue(path, None)


def test_a_file_truncated_anywhere_is_refused(tmp_path: Path) -> None:
    whole = json.dumps([RECORD, record(asin="B000000002")])
    for kept in range(len(whole)):
        with pytest.raises(ConfigError, match=r"is no complete JSON|is empty"):
            read_catalogue(written(tmp_path, whole[:kept]), None)


# Parts


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@settings(max_examples=60)
@given(
    st.lists(JSON, max_size=5),
    st.dictionaries(st.text(), JSON, max_size=5),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_streaming_equals_json_load_with_every_window(
    values: list[Any], mapping: dict[str, Any], window: int, ascii_only: bool, indent: int | None
) -> None:
    class InMemoryFile:
        """A path whose content is in memory."""

        def __init__(self, content: object) -> None:
            self.text = json.dumps(content, ensure_ascii=ascii_only, indent=indent)

        def open(self, mode: str = "r", encoding: str = "") -> io.IOBase:
            raw = self.text.encode("utf-8", "surrogatepass")
            return io.BytesIO(raw) if mode == "rb" else io.StringIO(self.text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "_WINDOW", window)
        assert list(elements(InMemoryFile(values))) == values  # type: ignore[arg-type]
        assert dict(pairs(InMemoryFile(mapping))) == mapping  # type: ignore[arg-type]


@given(st.text(st.characters(exclude_categories=())))
def test_cleaned_text_is_valid_and_cleaning_is_idempotent(value: str) -> None:
    notes: list[str] = []
    cleaned = text(value, notes.append)
    cleaned.encode()
    assert not any(ord(letter) < 32 and letter not in "\t\n\r" for letter in cleaned)
    assert len(cleaned) == len(value)
    assert text(cleaned, notes.append) == cleaned
    assert len(notes) == (cleaned != value)


def test_the_price_within_a_range_is_the_same_in_every_process() -> None:
    command = (
        "from tsr_lightning.worlds.webshop.cleaning import price_of; print(repr(price_of('B000000001', (3.78, 11.38))))"
    )
    printed = {python_output(command, hash_seed=salt) for salt in ("1", "2")}
    assert printed == {f"{price_of('B000000001', (3.78, 11.38))!r}\n"}


@given(st.text(max_size=10), st.floats(0, 1e4), st.floats(0, 1e4))
def test_the_price_lies_within_its_range_and_differs_between_products(asin: str, low: float, high: float) -> None:
    assert min(low, high) <= price_of(asin, (low, high)) <= max(low, high)
    assert price_of(asin, (low,)) == low
    assert (price_of("B0", (0.0, 1.0)) == price_of(asin, (0.0, 1.0))) == (asin == "B0")


def test_a_range_is_read_from_both_ends() -> None:
    assert prices_of("$3.78$11.38", print) == (3.78, 11.38)


FIELD = st.text(st.characters(exclude_categories=()), max_size=20) | st.floats(allow_nan=False) | st.none()


@given(st.lists(st.tuples(FIELD, st.lists(FIELD).map(tuple)), max_size=20), st.data())
def test_packed_records_behave_like_a_list(records: list[tuple[Any, Any]], data: st.DataObject) -> None:
    packed = PackedRecords(lambda *fields: fields, records)
    assert len(packed) == len(records)
    assert list(packed) == records
    assert packed[1:] == records[1:]
    for place in data.draw(st.lists(st.integers(-25, 25))):
        if -len(records) <= place < len(records):
            assert packed[place] == records[place]
        else:
            with pytest.raises(IndexError):
                packed[place]
