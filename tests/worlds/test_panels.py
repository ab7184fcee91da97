"""Evaluation panels: saved, found, and checked against the games that are there."""

from pathlib import Path

import pytest

from tsr_lightning.errors import ConfigError
from tsr_lightning.worlds.panels import digest_of, load_panel, make_panel

CONTENTS = {"b": b"second", "a": b"first"}


def test_a_panel_survives_its_file_and_accepts_its_games(tmp_path: Path):
    panel = make_panel("two", CONTENTS)
    panel.save(tmp_path / "two.json")
    assert load_panel("Env.panel", tmp_path / "two.json") == panel
    assert panel.games == ("b", "a")
    panel.check("Env.games", {**CONTENTS, "c": b"another"})


def test_the_digest_tells_content_names_order_and_borders_apart():
    others = [{"b": b"second", "a": b"First"}, {"b": b"second", "c": b"first"}, {"a": b"first", "b": b"second"}]
    others += [{"b": b"seconda", "": b"first"}, {"b": b"second"}]
    assert len({digest_of(contents) for contents in [CONTENTS, *others]}) == 6


def test_other_games_are_refused():
    panel = make_panel("two", CONTENTS)
    with pytest.raises(ConfigError, match=r"Env\.games is 'two': 1 of the 2 games are missing, such as \['a'\]"):
        panel.check("Env.games", {"b": b"second"})
    with pytest.raises(ConfigError, match=r"Env\.games is 'two': its games have the hash [0-9a-f]{24} and not"):
        panel.check("Env.games", {**CONTENTS, "a": b"changed"})


def test_what_is_no_panel_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"Env\.panel is 'nowhere': there is no such panel"):
        load_panel("Env.panel", "nowhere")
    for content in ("[]", "{}", "not JSON", '{"name": "x", "games": [], "digest": ""}'):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(ConfigError, match="it is no panel"):
            load_panel("Env.panel", tmp_path / "bad.json")
