"""Four kinds of rooms of our own, with what stands and lies in them: what generated scenes are drawn from.

The types and their properties are ALFWorld's, so that a policy finds the words of published games; which things lie
where, and how many receptacles a room has, are ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

RoomName = Literal["kitchen", "livingroom", "bedroom", "bathroom"]


@dataclass(frozen=True)
class Room:
    """A kind of room: the receptacles, things and lamps that it may have."""

    receptacles: Mapping[str, int]  # by type the most of it
    things: tuple[str, ...]
    lamps: tuple[str, ...] = ()


ROOMS: Mapping[str, Room] = {
    "kitchen": Room(
        {
            "countertop": 3,
            "cabinet": 6,
            "drawer": 4,
            "fridge": 1,
            "microwave": 1,
            "sinkbasin": 1,
            "stoveburner": 4,
            "coffeemachine": 1,
            "toaster": 1,
            "diningtable": 2,
            "shelf": 3,
            "garbagecan": 1,
        },
        (
            *("apple", "bowl", "bread", "butterknife", "cup", "dishsponge", "egg", "fork", "glassbottle", "kettle"),
            *("knife", "ladle", "lettuce", "mug", "pan", "peppershaker", "plate", "pot", "potato", "saltshaker"),
            *("soapbottle", "spatula", "spoon", "tomato", "winebottle"),
        ),
    ),
    "livingroom": Room(
        {
            "sofa": 1,
            "armchair": 2,
            "coffeetable": 2,
            "sidetable": 2,
            "diningtable": 1,
            "tvstand": 1,
            "dresser": 1,
            "shelf": 4,
            "drawer": 4,
            "cabinet": 3,
            "safe": 1,
            "garbagecan": 1,
        },
        (
            *("book", "box", "cellphone", "creditcard", "keychain", "laptop", "newspaper", "pen", "pencil", "pillow"),
            *("plate", "remotecontrol", "statue", "tissuebox", "vase", "watch"),
        ),
        ("floorlamp", "desklamp"),
    ),
    "bedroom": Room(
        {
            "bed": 2,
            "desk": 2,
            "sidetable": 2,
            "dresser": 1,
            "drawer": 6,
            "shelf": 4,
            "armchair": 1,
            "cabinet": 3,
            "safe": 1,
            "garbagecan": 1,
        },
        (
            *("alarmclock", "baseballbat", "basketball", "book", "bowl", "cd", "cellphone", "cloth", "creditcard"),
            *("keychain", "laptop", "mug", "pen", "pencil", "pillow", "teddybear", "tissuebox", "watch"),
        ),
        ("desklamp",),
    ),
    "bathroom": Room(
        {
            "countertop": 2,
            "sinkbasin": 2,
            "bathtubbasin": 1,
            "toilet": 1,
            "cabinet": 4,
            "drawer": 4,
            "shelf": 3,
            "sidetable": 1,
            "towelholder": 2,
            "handtowelholder": 2,
            "toiletpaperhanger": 1,
            "garbagecan": 1,
        },
        (
            *("candle", "cloth", "dishsponge", "handtowel", "soapbar", "soapbottle", "spraybottle", "tissuebox"),
            *("toiletpaper", "towel"),
        ),
    ),
}

OPENABLE = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})

# what holds nearly anything small, and where things of some sorts go besides or instead
_TOPS = ("coffeetable", "countertop", "desk", "diningtable", "dresser", "shelf", "sidetable", "tvstand")
_FOOD = (*("coffeetable", "countertop", "diningtable", "sidetable"), "fridge", "garbagecan", "microwave", "sinkbasin")
_DISHES = (*_TOPS, "cabinet", "fridge", "sinkbasin")
_CUTLERY = ("countertop", "diningtable", "drawer", "sidetable", "sinkbasin")
_SMALL = (*_TOPS, "armchair", "bed", "drawer", "sofa")
_BATH = ("bathtubbasin", "cabinet", "countertop", "drawer", "garbagecan", "shelf", "sidetable", "sinkbasin", "toilet")

HELD_BY: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("apple", "egg", "lettuce", "potato", "tomato", "bread"), _FOOD),
    **dict.fromkeys(("bowl", "cup", "plate"), (*_DISHES, "microwave")),
    "mug": (*_DISHES, "coffeemachine", "microwave"),
    **dict.fromkeys(("pan", "pot"), (*_DISHES, "stoveburner")),
    "kettle": ("cabinet", "countertop", "diningtable", "shelf", "sinkbasin", "stoveburner"),
    **dict.fromkeys(("glassbottle", "winebottle"), (*_DISHES, "garbagecan")),
    **dict.fromkeys(("butterknife", "fork", "knife", "ladle", "spatula", "spoon"), _CUTLERY),
    **dict.fromkeys(("peppershaker", "saltshaker"), (*_TOPS, "cabinet", "drawer")),
    **dict.fromkeys(("soapbottle", "spraybottle", "candle"), _BATH),
    **dict.fromkeys(("cloth", "dishsponge"), (*_BATH, "desk", "dresser", "bed")),
    "soapbar": _BATH,
    "toiletpaper": (*_BATH, "toiletpaperhanger"),
    "tissuebox": (*_BATH, "coffeetable", "desk", "diningtable", "dresser", "tvstand"),
    "towel": ("bathtubbasin", "towelholder"),
    "handtowel": ("bathtubbasin", "cabinet", "countertop", "handtowelholder"),
    **dict.fromkeys(("cellphone", "creditcard", "keychain"), (*_SMALL, "safe")),
    "watch": (*_TOPS, "drawer", "safe"),
    **dict.fromkeys(("pen", "pencil"), (*_TOPS, "drawer", "garbagecan")),
    "cd": (*_TOPS, "drawer", "garbagecan", "safe"),
    "book": (*_SMALL, "cabinet"),
    "newspaper": (*_SMALL, "garbagecan"),
    "remotecontrol": _SMALL,
    "laptop": ("armchair", "bed", "coffeetable", "desk", "diningtable", "dresser", "sofa"),
    "pillow": ("armchair", "bed", "sofa"),
    "box": ("armchair", "coffeetable", "diningtable", "dresser", "sidetable", "sofa"),
    **dict.fromkeys(("statue", "vase"), (*_TOPS, "cabinet", "safe")),
    "alarmclock": ("desk", "dresser", "shelf", "sidetable"),
    **dict.fromkeys(("baseballbat", "basketball", "teddybear"), ("armchair", "bed", "desk", "dresser", "sidetable")),
    "desklamp": ("coffeetable", "desk", "dresser", "sidetable", "shelf", "diningtable"),
    "floorlamp": ("coffeetable", "sidetable", "tvstand"),
}

CLEANABLE = frozenset(
    {"apple", "bowl", "butterknife", "cloth", "cup", "dishsponge", "egg", "fork", "kettle", "knife", "ladle", "lettuce"}
    | {"mug", "pan", "plate", "pot", "potato", "soapbar", "spatula", "spoon", "tomato"}
)
HEATABLE = frozenset({"apple", "bread", "cup", "egg", "mug", "plate", "potato", "tomato"})
COOLABLE = HEATABLE | {"bowl", "lettuce", "pan", "pot", "winebottle"}
SLICEABLE = frozenset({"apple", "bread", "lettuce", "potato", "tomato"})
HOLLOW = frozenset({"bowl", "box", "cup", "mug", "pan", "plate", "pot"})  # receptacle objects, empty here
