"""Refuses commands that are for the interpreter or for TextWorld itself: only those of the player reach a game.

A game takes commands that leave its story: `save` and `script` write files, `restart`, `restore` and `undo` change the
state behind TextWorld's back, `tw-…` switches its tracing. Several commands in a line would be several turns.
"""

import re

_OUT_OF_STORY = """
    brief disable enable long normal noscript notify nouns o oops pronouns q quit restart restore restrict
    save script short superbrief transcript undo unscript verbose verify version
"""
OUT_OF_STORY = frozenset(_OUT_OF_STORY.split())
_LETTERS = 9  # by which a Z-machine tells words apart
_REFUSED = frozenset(word[:_LETTERS] for word in OUT_OF_STORY)
_UNREADABLE = re.compile(r"[^ -~]|[\\<>\[\]]")  # its escape character too, and what its debug tags are made of
_SEPARATOR = re.compile(r"[.;:]\s*\S|\bthen\b", re.IGNORECASE)
_VERB = re.compile(r"(?:^|[,\"]|\bto\b)[\s,\"]*([\w-]+)", re.IGNORECASE)  # where the game may look for one


def refusal(command: str, longest: int) -> str:
    """Says why a command is not sent to the game; "" if it is. Not for admissible ones, whose words are names.

    Args:
        command: any text.
        longest: characters of a line that the game reads.
    """
    if _UNREADABLE.search(command):
        return "the game cannot read some of its characters"
    if len(command) > longest:
        return f"the game reads {longest} characters of a command, and it has {len(command)}"
    if _SEPARATOR.search(command):
        return "one command a turn"
    for verb in map(str.lower, _VERB.findall(command)):
        if verb[:_LETTERS] in _REFUSED or verb.startswith(("tw-", "print_")):
            return f"{verb[:20]!r} is no command of the story"
    return ""
