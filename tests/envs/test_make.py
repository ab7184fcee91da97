"""Environments by name, and the messages for bad names and arguments."""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Required, TypedDict, Unpack

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec, registry

from tsr_lightning.envs.base import Branchable
from tsr_lightning.envs.frozen_lake import TextFrozenLake
from tsr_lightning.envs.make import make_env
from tsr_lightning.envs.playing import check_first_reset
from tsr_lightning.errors import ConfigError


@pytest.fixture
def pond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A user's module, outside the package."""
    (tmp_path / "my_pond.py").write_text(
        "import gymnasium\n"
        "from tsr_lightning.envs.frozen_lake import TextFrozenLake\n"
        "gymnasium.register('Pond-v0', TextFrozenLake, kwargs={'size': 3})\n"
        "gymnasium.register('PondLimited-v0', TextFrozenLake, max_episode_steps=7)\n"
    )
    (tmp_path / "my_deep.py").write_text(
        "from __future__ import annotations\n"
        "from typing import Unpack\n"
        "import gymnasium\n"
        "from tsr_lightning.envs.frozen_lake import TextFrozenLake\n"
        "from tsr_lightning.envs.text_env import TextEnvOptions\n"
        "class Deep(TextFrozenLake):\n"
        "    def __init__(self, depth: int = 1, **options: Unpack[TextEnvOptions]) -> None:\n"
        "        super().__init__(**options)\n"
        "gymnasium.register('Deep-v0', Deep)\n"
    )
    (tmp_path / "my_broken.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_pond", raising=False)
    yield "my_pond:Pond-v0"
    for id in ("Pond-v0", "PondLimited-v0", "Deep-v0"):
        registry.pop(id, None)


def test_an_id_with_arguments() -> None:
    env = make_env("tsr/FrozenLake-v0", size=6)
    assert isinstance(env, TextFrozenLake)
    assert isinstance(env, Branchable)
    env.reset(seed=0)
    assert len(env.state.rows) == 6


def test_a_dotted_path(pond: str) -> None:
    env = make_env(pond)
    assert isinstance(env, TextFrozenLake)
    env.reset(seed=0)
    assert len(env.state.rows) == 3
    check_first_reset(pond, partial(make_env, pond, size=5))


@pytest.mark.usefixtures("pond")
def test_arguments_are_known_where_annotations_are_text() -> None:
    assert isinstance(make_env("my_deep:Deep-v0", max_turns=3), TextFrozenLake)
    with pytest.raises(ConfigError, match="takes no argument 'max_turn': did you mean 'max_turns'"):
        make_env("my_deep:Deep-v0", max_turn=3)


def test_its_spec_has_all_arguments(pond: str) -> None:
    env = make_env(pond, frozen=0.8)
    assert isinstance(env, gymnasium.Env)
    assert env.spec is not None
    assert env.spec.kwargs == {"size": 3, "frozen": 0.8}


@pytest.mark.parametrize(
    ("id", "kwargs", "message"),
    [
        (
            "tsr/FrozenLak-v0",
            {},
            r"data.env is 'tsr/FrozenLak-v0': it is not registered; did you mean tsr/Frozen",
        ),
        ("tsr/FrozenLake-v7", {}, "did you mean tsr/FrozenLake-v0"),
        ("zzzz", {}, r"take one of tsr/ALFWorld-v0.*package\.module:Env-v0"),
        (
            "no.such.module:Env-v0",
            {},
            "there is no module 'no'; install it or put its folder on PYTHONPATH",
        ),
        ("tsr_lightning.envs:Qwxyz-v0", {}, r"let 'tsr_lightning.envs' call gymnasium.register\(id='Qwxyz-v0'"),
        ("FrozenLake-v1", {}, "max_episode_steps=100, a limit outside its state"),
        ("Blackjack-v1", {}, r"cannot be branched, since it has no .*get_state, .*Replayed"),
        ("tsr/FrozenLake-v0", {"sise": 4}, "takes no argument 'sise': did you mean 'size'"),
        (
            "tsr/FrozenLake-v0",
            {"qqqq": 4},
            "takes no argument 'qqqq': it takes size, frozen.* max_turns, .*mode",
        ),
        ("tsr/FrozenLake-v0", {"max_turn": 4}, "takes no argument 'max_turn': did you mean 'max_turns'"),
        ("tsr/TextWorld-v0", {"admisible": True}, "takes no argument 'admisible': did you mean 'admissible'"),
        ("tsr/FrozenLake-v0", {"size": -4}, "size is -4: give a whole number"),
    ],
)
def test_bad_names_and_arguments_are_refused(id: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        check_first_reset(id, partial(make_env, id, **kwargs))
    assert "\n" not in str(refused.value)


class PondOptions(TypedDict, total=False):
    depth: Required[int]
    name: str


class OptionedPond(TextFrozenLake):
    def __init__(self, **options: Unpack[PondOptions]) -> None:
        super().__init__(size=options["depth"])


def test_arguments_of_a_typed_dict_are_checked_as_others() -> None:
    spec = EnvSpec("OptionedPond-v0", entry_point=OptionedPond)
    registry["OptionedPond-v0"] = spec
    try:
        assert isinstance(make_env("OptionedPond-v0", depth=3), OptionedPond)
        with pytest.raises(ConfigError, match="needs the argument 'depth': give it"):
            make_env("OptionedPond-v0", name="deep")
        with pytest.raises(ConfigError, match="takes no argument 'size': it takes depth, name"):
            make_env("OptionedPond-v0", depth=3, size=4)
    finally:
        del registry["OptionedPond-v0"]


class AnyNamePond(TextFrozenLake):
    def __init__(self, **options: Any) -> None:
        super().__init__(size=3, **options)


class MistakenPond(TextFrozenLake):
    def __init__(self, **options: Any) -> None:
        super().__init__(sise=3)


def test_arguments_that_a_class_hands_on_are_refused_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry, "Any-v0", EnvSpec("Any-v0", entry_point=AnyNamePond))
    monkeypatch.setitem(registry, "Mistaken-v0", EnvSpec("Mistaken-v0", entry_point=MistakenPond))
    assert isinstance(make_env("Any-v0", max_turns=4), AnyNamePond)
    with pytest.raises(ConfigError, match=r"^data\.env_kwargs: 'Any-v0' takes no argument 'max_turn': correct"):
        make_env("Any-v0", max_turn=4)
    with pytest.raises(ConfigError, match=r"^data\.env_kwargs: 'Any-v0' gives the argument 'size' itself: leave"):
        make_env("Any-v0", size=4)
    with pytest.raises(TypeError, match="sise"):  # a fault of its program
        make_env("Mistaken-v0", max_turns=4)


def test_a_limit_in_a_users_spec_is_refused(pond: str) -> None:
    make_env(pond)
    with pytest.raises(ConfigError, match="'my_pond:PondLimited-v0': it is registered with max_episode_steps=7"):
        make_env("my_pond:PondLimited-v0")


def test_a_failing_import_within_a_module_is_named(pond: str) -> None:
    with pytest.raises(ConfigError, match="my_broken imports no_such_library, which is not there; install it, or corr"):
        make_env("my_broken:Env-v0")


class PlainPond(TextFrozenLake):
    def __init__(self) -> None:
        super().__init__(size=3)


def test_an_argument_of_files_for_an_environment_that_takes_none_is_refused_with_the_remedy() -> None:
    """As `prompt_style`, which the layers of pretrained models set."""
    registry["PlainPond-v0"] = EnvSpec("PlainPond-v0", entry_point=PlainPond)
    remedy = "takes no argument 'prompt_style': it takes none; --data.env_kwargs null drops what files give it"
    try:
        with pytest.raises(ConfigError, match=remedy):
            make_env("PlainPond-v0", prompt_style="instruct")
    finally:
        del registry["PlainPond-v0"]
