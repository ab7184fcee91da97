"""Colours as the reward compares them. The list, its order and the match within words are WebShop's."""

_LIST = """
alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal
dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory
ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom
mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire
seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut wheat white
wine yellow
"""
_COLOURS = tuple(_LIST.split())
_EXACT = frozenset(_COLOURS)


def colour_in(text: str) -> str:
    """The first colour of the list that occurs anywhere in a text ("wash" has "ash"); else the text itself."""
    return next((colour for colour in _COLOURS if colour in text), text)


def colour_of(name: str, value: str) -> str:
    """The original's normalisation of a (name, value) pair, which it takes for a text: see `reward.py`.

    A colour where name or value is exactly one, else the pair as Python prints it.
    """
    exact = {name, value} & _EXACT
    return min(exact, key=_COLOURS.index) if exact else str((name, value))
