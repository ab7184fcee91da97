"""English text as the terms of Lucene's EnglishAnalyzer: words, stemmed, without possessives and stop words.

The words are those of Lucene 9's StandardTokenizer: Unicode's word boundaries (UAX #29, unicode.org/reports/tr29; emoji
as in TR #51), one token per Han or Hiragana character, without the rule for quotation marks in Hebrew. Character
classes come from the `regex` library (a dependency of transformers). Its Unicode is newer than Lucene's, so that
letters classified since make words here and none there.
"""

import re
from functools import lru_cache
from typing import Final

import regex  # type: ignore[import-untyped]

from tsr_lightning.worlds.webshop.porter import stem

MAX_LENGTH: Final = 255  # of a word, UTF-16 units in Lucene and characters here; longer ones are cut into pieces
STOP_WORDS: Final = frozenset(
    (
        *("a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not"),
        *("of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was"),
        *("will", "with"),
    )
)
_POSSESSIVES: Final = ("'s", "’s", "＇s")

# The rules of UAX #29 for ASCII: letters and digits with what may stand between two letters or two digits. A word has
# all underscores that touch it, so none begins after one; trying there too would be quadratic in a run of them.
_ascii_words = re.compile(
    r"(?<!_)_*[a-z0-9][a-z0-9_]*(?:(?:(?<=[a-z])[:.'](?=[a-z])|(?<=[0-9])[,;.'](?=[0-9]))[a-z0-9_]+)*"
).findall

# Emoji of Lucene's Unicode; later versions dropped some of these signs, ★ and ♥ among them.
_EMOJI: Final = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf\u23e9-\u23f3\u23f8-\u23fa"
    "\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705\u2708-\u2712\u2714\u2716"
    "\u271d\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763-\u2767\u2795-\u2797\u27a1\u27b0"
    "\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001f0ff\U0001f10d-\U0001f10f\U0001f12f\U0001f16c-\U0001f16f\U0001f18e\U0001f191-\U0001f19a"
    "\U0001f1ad-\U0001f1e5\U0001f201-\U0001f20f\U0001f21a\U0001f22f\U0001f232-\U0001f23a\U0001f23c-\U0001f23f"
    "\U0001f249-\U0001f53d\U0001f546-\U0001f64f\U0001f680-\U0001f6ff\U0001f774-\U0001f77f\U0001f7d5-\U0001f7ff"
    "\U0001f80c-\U0001f80f\U0001f848-\U0001f84f\U0001f85a-\U0001f85f\U0001f888-\U0001f88f\U0001f8ae-\U0001f8ff"
    "\U0001f90c-\U0001f93a\U0001f93c-\U0001f945\U0001f947-\U0001fbef\U0001fbfa-\U0001fffd"
)


def _grammar() -> str:
    """A pattern whose group matches the tokens of a text; each character includes the marks after it."""
    marks = r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]*+"
    letter = rf"[\p{{WB=ALetter}}\p{{WB=Hebrew_Letter}}]{marks}"
    digit = rf"\p{{WB=Numeric}}{marks}"
    katakana = rf"\p{{WB=Katakana}}{marks}"
    joiner = rf"(?:[\p{{WB=ExtendNumLet}}]{marks})"
    in_word = rf"[\p{{WB=MidLetter}}\p{{WB=MidNumLet}}']{marks}"
    in_number = rf"[\p{{WB=MidNum}}\p{{WB=MidNumLet}}']{marks}"
    letters = rf"{letter}(?:(?:{joiner}*|{in_word}){letter})*"
    digits = rf"{digit}(?:(?:{joiner}*|{in_number}){digit})*"
    run = rf"(?:{katakana}(?:{joiner}*{katakana})*|(?:{letters}|{digits})+)"
    word = rf"{joiner}*{run}(?:{joiner}+{run})*{joiner}*"

    pictogram = f"[{_EMOJI}]"
    # marks, but not the two variation selectors of emoji, nor a joiner before an emoji
    shown = rf"(?:(?![\ufe0e\ufe0f]|\u200d{pictogram})[\p{{WB=Extend}}\p{{WB=Format}}\p{{WB=ZWJ}}])*"
    tone = r"[\U0001f3fb-\U0001f3ff]"
    face = rf"(?:{tone}{shown}|\u200d*(?!{tone}){pictogram}{shown}\ufe0f?)"
    tagged = r"[\U000e0020-\U000e007e]+\U000e007f"
    emoji = rf"{face}(?:{tagged}|(?:\u200d{face})*)"
    keycap = rf"[#*]{shown}\ufe0f?\u20e3{shown}"
    flag = rf"\p{{WB=Regional_Indicator}}{marks}"
    asian = rf"(?:\p{{LB=SA}}{marks})+"
    single = rf"[\p{{Script=Han}}\p{{Script=Hiragana}}]{marks}"
    # runs that begin no token, skipped at once: trying each of their characters would be quadratic
    idle = r"\p{WB=ExtendNumLet}++|\u200d++"
    return f"({'|'.join((word, keycap, emoji, flag + flag, asian, single))})|{idle}"


_words = regex.compile(_grammar(), regex.V0).findall


def words(text: str) -> list[str]:
    """The words of a text in lower case, in order, with stop words and possessives."""
    found: list[str] = []
    for piece in (text,) if text.isascii() else text.split():  # no word contains a blank
        found += _ascii_words(piece) if piece.isascii() else filter(None, _words(piece))
    if max(map(len, found), default=0) <= MAX_LENGTH:
        return found
    return [word[at : at + MAX_LENGTH] for word in found for at in range(0, len(word), MAX_LENGTH)]


@lru_cache(1 << 16)
def term_of(word: str) -> str:
    """The term of a word, "" for a stop word."""
    bare = word[:-2] if word.endswith(_POSSESSIVES) else word
    return "" if bare in STOP_WORDS else stem(bare)


def terms(text: str) -> list[str]:
    """The terms of a text in order, without stop words."""
    return [term for term in map(term_of, words(text.lower())) if term]
