"""Level files: what is read, and the messages for bad ones."""

import gzip
import os
from pathlib import Path

import pytest

from tsr_lightning.envs.sokoban.levels import read_levels
from tsr_lightning.envs.sokoban.render import grid
from tsr_lightning.envs.sokoban.score import score
from tsr_lightning.errors import ConfigError

TWO_LEVELS = """\
; 7
#####
#@$.#
#####

; the second
  ####
###  #
#.*$+#
#$ ###
####
"""


def written(folder: Path, text: str, name: str = "levels.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_levels_with_ragged_rows_and_occupied_goals_are_read_in_order(tmp_path: Path) -> None:
    first, second = read_levels(written(tmp_path, TWO_LEVELS))
    assert grid(*first) == "#####\n#PXO#\n#####"
    assert grid(*second) == "######\n###__#\n#O√XS#\n#X_###\n######"  # outside the walls is wall


def test_gzip_files_and_files_without_headers_are_read(tmp_path: Path) -> None:
    packed = tmp_path / "levels.txt.gz"
    packed.write_bytes(gzip.compress(TWO_LEVELS.encode()))
    bare = "\n".join(line for line in TWO_LEVELS.split("\n") if not line.startswith(";"))
    plain = read_levels(written(tmp_path, TWO_LEVELS))
    assert read_levels(packed) == plain == read_levels(written(tmp_path, bare, "bare.txt"))
    assert read_levels(str(written(tmp_path, TWO_LEVELS.replace("\n\n", "\n").replace("\n", "\r\n"), "crlf"))) == plain


def test_an_edited_file_is_read_again(tmp_path: Path) -> None:
    path = written(tmp_path, TWO_LEVELS)
    assert len(read_levels(path)) == 2
    written(tmp_path, "#####\n#@$.#\n#####\n")
    os.utime(path, ns=(1, 1))
    assert len(read_levels(path)) == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("#####\n# $.#\n#####", "level 1: has no player; put one @ or + in it."),
        ("#####\n#@$.#\n#@$.#\n#####", "level 1: has 2 players; put one @ or + in it."),
        ("#####\n#@ .#\n#####", "level 1: has no box; put at least one $ and one . in it."),
        ("######\n#@$$.#\n######", "level 1: has boxes 2 and goals 1; make them equal."),
        ("#####\n#@$.#\n#####\n\n#####\n#@x.#\n#####", "level 2: unknown symbol 'x'; use # @ + $ * . and blanks."),
        ("; 12\n#####\n#@* #\n#####", "level 12: is solved from the start; move a box off its goal."),
        ("#####\n#@$. \n#####", "level 1: is not closed; surround it with walls #."),
        ("#######\n#@$.#*#\n#######", "level 1: walls keep the player from a box or a goal; open them or remove it."),
        ("####\n#@ #\n" + "#$.#\n" * 9 + "####", "level 1: has boxes 9; leave out levels with more than 8."),
        ("; only a header\n", "holds no level; give a file with rows of # around each level."),
        ("", "holds no level; give a file with rows of # around each level."),
    ],
)
def test_bad_levels_are_refused(tmp_path: Path, rows: str, message: str) -> None:
    path = written(tmp_path, rows)
    with pytest.raises(ConfigError) as error:
        read_levels(path)
    assert str(error.value).startswith(str(path))
    assert str(error.value).endswith(message)
    assert "\n" not in str(error.value)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no such level file; give SokobanEnv.levels the path of one\."):
        read_levels(tmp_path / "absent.txt")
    packed = gzip.compress(TWO_LEVELS.encode())
    for name, content in {
        "plain.gz": TWO_LEVELS.encode(),
        "cut.gz": packed[: len(packed) // 2],
        "broken.gz": packed[:12] + b"\xff" * 20 + packed[32:],
        "binary.txt": b"\xff\xfe\x00",
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match="cannot be read as a level file"):
            read_levels(tmp_path / name)
    with pytest.raises(ConfigError, match="cannot be read as a level file"):
        read_levels(tmp_path)


@pytest.mark.parametrize("name", ["unfiltered-train-000.txt.gz", "medium-train-000.txt.gz"])
def test_boxoban_loads_and_no_level_scores_0(shared_data: Path, name: str) -> None:
    path = shared_data / "boxoban" / name
    if not path.is_file():
        pytest.skip(f"{name} is not on this machine")
    levels = read_levels(path)
    assert len(levels) == 1000
    assert len(set(levels)) == 1000
    for level in levels:
        assert (level.layout.rows, level.layout.cols, len(level.boxes)) == (10, 10, 4)
        assert 0 < score(*level) < 1


@pytest.mark.parametrize("name", ["marked.txt", "marked.txt.gz"])
def test_a_byte_order_mark_is_ignored(name: str, tmp_path: Path) -> None:
    text = "\ufeff; 0\n#####\n#@$.#\n#####\n".encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    (level,) = read_levels(tmp_path / name)
    assert (level.player, level.boxes, level.layout.targets) == (6, (7,), (8,))
