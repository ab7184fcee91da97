"""The dynamic state of a game, immutable. All sets are bit masks: of things, or of receptacles for `opened`."""

from typing import NamedTuple

NOTHING = -1  # held by empty hands


class State(NamedTuple):
    """The dynamic facts of a scene with R receptacles and L places."""

    place: int  # of the player
    held: int  # the thing in hand, or NOTHING
    opened: int
    inside: tuple[int, ...]  # [R] what each receptacle lists; a thing may be listed in two
    located: tuple[int, ...]  # [L] the things whose location is this place: what slicing and looking go by
    lifted: tuple[int, ...]  # [R] what was once taken out of each: only looking goes by it
    clean: int = 0
    hot: int = 0
    cool: int = 0
    sliced: int = 0
    lit: int = 0

    def key(self) -> tuple[int | tuple[int, ...], ...]:
        """Returns all that decides how the game goes on: all but `lifted`."""
        return self[:5] + self[6:]
