"""Porter's stemmer (1980, tartarus.org/martin/PorterStemmer) with its author's two later changes, as in Lucene.

These are bli -> ble for abli -> able, and logi -> log. Libraries of Snowball's `porter` lack them and stem words of two
letters, and so rank differently ("technology", "us"): docs/log.md has the figures.
"""

from typing import Final

_VOWELS: Final = frozenset("aeiou")

# (suffix, its replacement where the stem before it has a measure above 0), longer ones first
_STEP_2: Final = (
    *(("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("bli", "ble")),
    *(("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate")),
    *(("ator", "ate"), ("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al")),
    *(("iviti", "ive"), ("biliti", "ble"), ("logi", "log")),
)
_STEP_3: Final = (
    *(("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", "")),
)
# suffixes removed where the stem before them has a measure above 1; ion only after s or t
_STEP_4: Final = (
    *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "sion", "tion", "ou", "ism"),
    *("ate", "iti", "ous", "ive", "ize"),
)


def stem(word: str) -> str:
    """The stem of a word in lower case; what is not an ASCII vowel counts as a consonant."""
    if len(word) <= 2:
        return word
    word = _step_1c(_step_1b(_step_1a(word)))
    word = _replaced(_replaced(word, _STEP_2), _STEP_3)
    return _step_5(_step_4(word))


def _shape(word: str) -> str:
    """A c for each consonant and a v for each vowel; y is a vowel after a consonant."""
    shape = ""
    for letter in word:
        shape += "v" if letter in _VOWELS or (letter == "y" and shape.endswith("c")) else "c"
    return shape


def _measure(word: str) -> int:
    """Counts the vowels that consonants follow: m in [C](VC)^m[V]."""
    return _shape(word).count("vc")


def _is_double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _shape(word)[-1] == "c"


def _is_short(word: str) -> bool:
    """True if a word ends consonant, vowel, consonant, the last not w, x or y, and so takes an e."""
    return _shape(word)[-3:] == "cvc" and word[-1] not in "wxy"


def _step_1a(word: str) -> str:
    """Removes the ending of a plural."""
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and word[-2] != "s" else word


def _step_1b(word: str) -> str:
    """Removes the ending of a past or a participle."""
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    left = word[:-2] if word.endswith("ed") else word[:-3] if word.endswith("ing") else ""
    if "v" not in _shape(left):
        return word
    if left.endswith(("at", "bl", "iz")):
        return left + "e"
    if _is_double(left):
        return left if left[-1] in "lsz" else left[:-1]
    return left + "e" if _measure(left) == 1 and _is_short(left) else left


def _step_1c(word: str) -> str:
    return word[:-1] + "i" if word.endswith("y") and "v" in _shape(word[:-1]) else word


def _replaced(word: str, table: tuple[tuple[str, str], ...]) -> str:
    for suffix, instead in table:
        if word.endswith(suffix):
            left = word[: -len(suffix)]
            return left + instead if _measure(left) > 0 else word
    return word


def _step_4(word: str) -> str:
    for suffix in _STEP_4:
        if word.endswith(suffix):
            left = word[: -len(suffix)] + (suffix[0] if suffix in ("sion", "tion") else "")
            return left if _measure(left) > 1 else word
    return word


def _step_5(word: str) -> str:
    """Removes a last e, and one l of two."""
    measure = _measure(word)
    if word.endswith("e") and (measure > 1 or (measure == 1 and not _is_short(word[:-1]))):
        word = word[:-1]
    return word[:-1] if word.endswith("ll") and measure > 1 else word
