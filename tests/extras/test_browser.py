"""The page of `tsr view` in headless Chromium, without a network, at the width of a desktop and of a phone."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.saved_episodes import episode, header, node
from tsr_lightning.episodes.files import write
from tsr_lightning.episodes.page.write import Source, write_page

playwright = pytest.importorskip("playwright.sync_api", reason="make test-extras EXTRAS=browser installs playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium")
BOARD = "P 1 1\n#####\n#PXO#\n#####\n9 left"
SPITE = '<script>document.title = "owned"</script><img src=x onerror="document.title=1">'
SHOP = f"Find me a sandal, and price lower than 50.00 dollars\npage 1, 1 found\nRed {SPITE} sandal $9.5 [dalo]\nnext >"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    search = [
        node(0, None, "Right", BOARD, advantage=1.0),
        node(1, None, "Down", BOARD, fate="pruned", why="score 0.1, rank 2 of 2 in round 0", score=0.1),
        node(2, 0, "Left", BOARD, advantage=-0.5, round=1),
        node(3, 0, SPITE, BOARD, fate="duplicate", why="the state of node 2", round=1),
    ]
    failed = episode(BOARD, search, instance=5, ended="failed", episode_return=-1.0)
    boards = [episode(BOARD, search), failed, episode(BOARD, search, member=1)]
    write(folder / "one.jsonl.gz", header(), boards)
    write(folder / "two.jsonl.gz", header(), [replace(boards[0], strategy="Sample")])
    write(folder / "shop.jsonl.gz", header("tsr/WebShop-v0"), [episode(SHOP, [node(0, None, "click[dalo]", SHOP)])])
    sources = [Source(folder / f"{name}.jsonl.gz", name) for name in ("one", "two", "shop")]
    assert write_page(sources, f"Episodes of {SPITE}", folder / "page.html") == (5, [])
    return folder / "page.html"


@pytest.fixture
def page(browser: Any, page_file: Path) -> Iterator[Any]:
    yield from opened(browser, page_file)


def opened(browser: Any, file: Path, width: int = 1400, height: int = 860) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": width, "height": height})
    shown, asked, said = context.new_page(), [], []
    shown.on("request", lambda request: asked.append(request.url))
    shown.on("console", lambda message: said.append(message.text))
    shown.on("pageerror", lambda error: said.append(str(error)))
    shown.goto(file.as_uri())
    shown.wait_for_selector("body[data-ready]")
    yield shown
    assert asked == [file.as_uri()]  # and nothing else, of a network or of this machine
    assert said == []
    context.close()


def test_it_opens_with_the_board_and_the_tree_of_the_first_episode(page: Any) -> None:
    assert page.text_content("#counts") == "5 of 5 episodes"
    assert page.locator(".turn .board").count() == 3  # before both turns, and at the end
    assert page.locator(".turn .board").first.get_attribute("aria-label") == "#####\n#PXO#\n#####"
    assert page.locator(".lanes tr").count() == 1 + 3  # the heading, the episode and two branches
    assert page.locator(".lanes .shared").count() == 1  # node 3 shares the first turn
    assert page.locator(".facts").inner_text().startswith("succeeded, return 1, 2 turns, Beam")


def test_a_turn_shows_its_candidates_with_probability_score_and_fate(page: Any) -> None:
    page.keyboard.press("n")
    shown = page.locator(".turn").first.locator(".candidate").inner_text()
    for part in ("Down", "probability 0.607", "score 0.1", "pruned", "rank 2 of 2 in round 0"):
        assert part in shown
    page.locator('.chip[data-node="3"]').click()
    assert "the state of node 2" in page.locator(".tree .candidate").inner_text()


def test_credit_is_the_colour_of_a_turn(page: Any) -> None:
    colours = [page.locator(".turn").nth(i).evaluate("card => card.style.borderLeftColor") for i in range(3)]
    assert "20, 128, 74" in colours[0]
    assert "180, 35, 24" in colours[1]
    assert colours[2] == ""


def test_it_filters_and_searches_all_texts(page: Any) -> None:
    def found() -> str:
        page.wait_for_timeout(400)
        return page.text_content("#counts")

    page.select_option("#outcome", "0")
    assert found() == "1 of 5 episodes"
    page.select_option("#outcome", "")
    page.fill("#longest", "1")
    assert found() == "1 of 5 episodes"
    page.fill("#longest", "")
    page.fill("#least", "0")
    assert found() == "4 of 5 episodes"
    page.fill("#least", "")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("SANDAL, and price")
    assert found() == "1 of 5 episodes"
    for words in ("no such words", "advantage"):  # the second is a name in the file, and in no text
        page.fill("#search", words)
        assert found() == "0 of 5 episodes"
    assert page.inner_text("#shown") == "No episode fits."


def test_a_script_in_a_text_is_text(page: Any) -> None:
    page.select_option("#task", label="tsr/WebShop-v0")
    page.wait_for_timeout(400)
    assert page.title() == f"Episodes of {SPITE}"
    assert f"Red {SPITE} sandal" in page.locator(".page .product").first.inner_text()
    assert page.locator(".page .product b").first.inner_text() == "$9.5"
    assert page.locator("img").count() == 0


def test_two_runs_stand_side_by_side_on_one_instance(page: Any) -> None:
    assert page.locator(".episode").count() == 1
    page.keyboard.press("c")
    page.wait_for_selector(".two")
    both = page.locator(".facts").all_inner_texts()
    assert [("Beam" in text, "Sample" in text, str(2**63 + 1) in text) for text in both] == [
        (True, False, True),
        (False, True, True),
    ]
    page.keyboard.press("j")
    page.wait_for_selector(".two", state="detached")
    assert "instance 5" in page.locator(".facts").inner_text()
    page.keyboard.press("k")
    page.wait_for_selector(".two")  # the other run stays, where it has the instance
    assert "Sample" in page.locator(".facts").last.inner_text()
    page.keyboard.press("c")
    page.wait_for_function("document.querySelectorAll('.facts')[1].innerText.includes('member 1')")
    page.keyboard.press("c")
    page.wait_for_selector(".two", state="detached")


def test_another_task_with_the_label_and_the_seed_does_not_stand_beside(browser: Any, tmp_path: Path) -> None:
    for name, state in (("one", "small"), ("two", "large")):
        write(tmp_path / f"{name}.jsonl.gz", header(), [episode(BOARD, [node(0, None, "Right", BOARD)], state=state)])
    write_page([Source(tmp_path / f"{name}.jsonl.gz", name) for name in ("one", "two")], "Two", tmp_path / "page.html")
    for page in opened(browser, tmp_path / "page.html"):
        assert page.text_content("#counts") == "2 of 2 episodes"
        assert page.locator("#beside").count() == 0


def test_it_fits_a_phone(browser: Any, page_file: Path) -> None:
    for page in opened(browser, page_file, width=390, height=800):
        page.locator(".row").nth(1).click()
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert not page.locator("#side").is_visible()
        assert page.locator(".turn .board").first.is_visible()
        page.click("#show-list")
        assert page.locator("#side").is_visible()


def test_ten_thousand_episodes_open_in_three_seconds(browser: Any, tmp_path: Path) -> None:
    nodes = [node(i, i - 1 if i else None, f"Right || Down {i}", BOARD) for i in range(5)]
    write(tmp_path / "e.jsonl.gz", header(), (episode(BOARD, nodes, instance=i) for i in range(10_000)))
    write_page([Source(tmp_path / "e.jsonl.gz", "")], "Many", tmp_path / "page.html")
    for page in opened(browser, tmp_path / "page.html"):
        seconds = float(page.get_attribute("body", "data-ready")) / 1000  # by the page's clock, since it was asked for
        assert page.text_content("#counts") == "10,000 of 10,000 episodes"
        assert page.locator(".row").count() < 60
        page.locator("#list").evaluate("list => list.scrollTo(0, list.scrollHeight)")
        page.wait_for_timeout(200)
        assert "instance 9999" in page.locator(".row").last.inner_text()
        assert seconds < 3
