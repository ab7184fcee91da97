"""The kinds of games that TextWorld generates, as arguments of an environment."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from tsr_lightning.envs.validate import one_of, whole
from tsr_lightning.errors import require

KindName = Literal["custom", "simple", "coin_collector", "treasure_hunter"]
MilestonesName = Literal["dense", "balanced", "sparse"]
HintName = Literal["detailed", "brief", "none"]

MOST_LEVELS = {"coin_collector": 300, "treasure_hunter": 30}


@dataclass(frozen=True)
class GameKind:
    """The settings that a game is generated from, beside its seed.

    Args:
        kind: "custom" (a quest of any commands in a random house: the Guide's w2-o3-q4), "simple" (find a food and put
            it on the stove of a house that is always the same: the Guide's "cooking"), "coin_collector" or
            "treasure_hunter" (find the one thing in a maze).
        world_size: rooms of a custom game.
        objects: things in a custom game, at least; the quest may need more.
        quest_length: commands that win a custom game.
        milestones: which steps of a simple game give points: "dense", "balanced" or "sparse".
        hint: how the goal of a simple game is told: "detailed", "brief" or "none".
        level: of a coin collector (1 to 300: the last two digits are the length, hundreds add rooms beside the way) or
            a treasure hunter (1 to 30: ten each without doors, with doors, with locks).
    """

    kind: KindName = "custom"
    world_size: int = 2
    objects: int = 3
    quest_length: int = 4
    milestones: MilestonesName = "dense"
    hint: HintName = "detailed"
    level: int = 1

    def __post_init__(self) -> None:
        one_of("TextWorldEnv.kind", self.kind, get_args(KindName))
        for name in ("world_size", "objects", "quest_length", "level"):
            whole(f"TextWorldEnv.{name}", getattr(self, name))
        one_of("TextWorldEnv.milestones", self.milestones, get_args(MilestonesName))
        one_of("TextWorldEnv.hint", self.hint, get_args(HintName))
        most = MOST_LEVELS.get(self.kind, self.level)
        remedy = f"a {self.kind} has levels from 1 to {most}."
        require(self.level <= most, "TextWorldEnv.level", self.level, remedy)

    def settings(self) -> dict[str, Any]:
        """The arguments that this kind depends on, as plain types."""
        return {name: value for name, value in asdict(self).items() if name in ("kind", *_USED[self.kind])}


_USED: dict[KindName, tuple[str, ...]] = {
    "custom": ("world_size", "objects", "quest_length"),
    "simple": ("milestones", "hint"),
    "coin_collector": ("level",),
    "treasure_hunter": ("level",),
}
