r"""Readers: how a response is read as actions, a command of a text game, or any other answer.

`STRICT` is RAGEN's rule, which the paper's numbers need: tags around the answer, and nothing but actions between them
(docs/paper.md has where it departs from RAGEN).
`LENIENT` takes what instruction-tuned models say where it names one answer. Its grammar, each step linear in length:

    response = ["<think>" … "</think>"] … place
    place    = the last "<answer>" … ["</answer>"]  |  the last "\boxed{" … "}"
             | the line of the last label, such as "Action: …" or "Action 2: …", after those of the same label in the
               lines just before
             | all of it
    actions  = the sentences it begins with whose words are all actions, links ("and", "then"), verbs ("move", "go") or
               numbers, unless a correction follows ("wait, …")
             | a sentence with a verb shortly before an action, if no other action is named (but as a place: "the left")
               and nothing negates or offers a choice ("not", "or", "avoid")

Letter case, quotes, punctuation, brackets and Markdown never count.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Literal

ReaderName = Literal["strict", "lenient"]
SEPARATOR = "||"

_QUOTED = 20  # characters of a response in a warning


@dataclass(frozen=True)
class Answer:
    """A response as actions; `problem` says why there are none."""

    actions: tuple[str, ...]
    problem: str = ""


class Reader(ABC):
    """Finds the answer in a response, and the actions or the command in an answer."""

    @abstractmethod
    def find(self, response: str, marks: Sequence[re.Pattern[str]]) -> str | None:
        """The part of a response that is its answer; None without one.

        Args:
            marks: the tags around an answer that the prompt asks for; none where the whole response is one.
        """

    @abstractmethod
    def actions(self, answer: str, known: Sequence[str], limit: int) -> Answer:
        """The first `limit` actions of an answer, spelt as in `known`."""

    @abstractmethod
    def command(self, answer: str, verbs: Sequence[str]) -> str:
        """The command of a text game in an answer; "" without one.

        Args:
            verbs: first words of the game's commands, in lower case.
        """

    @abstractmethod
    def call(self, answer: str, names: Sequence[str]) -> str:
        """An answer of the form `name[argument]`, with one of these names; another answer as it is."""


class Strict(Reader):
    """RAGEN's rules (github.com/mll-lab-nu/RAGEN): all tags in their order, and nothing but actions inside."""

    def find(self, response: str, marks: Sequence[re.Pattern[str]]) -> str | None:
        """The text between the last two marks of the last place where all marks follow each other.

        With marks A, B and C it is the group of the last match of `A.*?B(.*?)C`, found in linear time: that pattern
        searches B and C again after every A, but where one of them is missing after the first A, it is missing after
        the later ones too.
        """
        if not marks:
            return response
        answer, end = None, 0
        while True:
            start = stop = end
            for mark in marks:
                found = mark.search(response, end)
                if found is None:
                    return answer
                start, stop, end = end, found.start(), found.end()
            answer = response[start:stop]

    def actions(self, answer: str, known: Sequence[str], limit: int) -> Answer:
        """Actions between separators, in any case. A single unknown one makes the whole answer invalid; those past
        `limit` are neither played nor punished.
        """
        given = [part.strip() for part in answer.split(SEPARATOR)]
        if given == [""]:
            return Answer((), "the answer is empty")
        spelt = {action.lower(): action for action in known}
        for part in given[:limit]:
            if part.lower() not in spelt:
                return Answer((), f"{part[:_QUOTED]!a} is no action")
        return Answer(tuple(spelt[part.lower()] for part in given[:limit]))

    def command(self, answer: str, verbs: Sequence[str]) -> str:
        """The last line; of several commands in it, the first."""
        return answer.strip().rpartition("\n")[2].partition(SEPARATOR)[0].strip()

    def call(self, answer: str, names: Sequence[str]) -> str:
        """The answer, as it is."""
        return answer


_OPEN_THOUGHT, _THOUGHT = "<think>", "</think>"
_OPENING, _CLOSING = re.compile(r"<\s*answer\s*>", re.IGNORECASE), re.compile(r"<\s*/\s*answer\s*>?", re.IGNORECASE)
_BOXED = re.compile(r"\\boxed\{(?:\\text\w*\{)?([^{}]*)\}")
_LABEL = re.compile(
    r"\b(?:answer|actions?|moves?|command|response|output|direction)(?: \d{1,3})?\W{0,4}(?:is\b|are\b|:|=)\W*",
    re.IGNORECASE,
)
_CALL = re.compile(r"\w\s*\[[^\[\]\n]*\]")  # whose argument may have a label of its own
_SENTENCE = re.compile(r"[^.!?\n]+[.!?\n]*")
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_LINKS = _set("and then next to the a first finally again once step towards")
_VERBS = _set(
    "move moving go going push pushing step stepping walk walking head heading turn slide choose choosing pick select "
    "take play try action answer direction"
)
_EXCLUDING = _set(
    "not no never cannot cant dont wont avoid avoiding instead without or either neither nor impossible mistake wrong"
)
_CORRECTING = _set("wait actually rather instead sorry correction")
_COUNTED = _set("moves turns steps actions attempts")  # "two moves left" is no answer
_PLACES = _set("the on your my its")  # "the hole on the left" names no answer either
_ORDINALS = _set("first second third fourth fifth next then")  # before the label of one of several actions
_REACH = 5  # words from a verb to the action that it names, as in "move the player one cell down"
_EDGES = " '’.!,:;()[]{}"
_MARKUP = re.compile(r"[*`\"“”]|^[\s>#\-•]+|^\s*\d+[.)]\s+")
_OPENERS = re.compile(
    r"^(?:(?:(?:i|you|we)(?:\s+(?:would like to|would|will|should|could|must|want to|need to|can|am going to))?|"
    r"i['’]ll|i['’]d(?: like to)?|let['’]?s|let (?:me|us)|next|then|now|first|please|to)[\s,]+)++",
    re.IGNORECASE,
)


class Lenient(Reader):
    """Takes what instruction-tuned models say where it names one answer: see the grammar above."""

    def find(self, response: str, marks: Sequence[re.Pattern[str]]) -> str | None:
        _, closed, text = response.rpartition(_THOUGHT)
        opening = list(_OPENING.finditer(text))
        if not opening and not closed and _OPEN_THOUGHT in response:
            return None  # it was cut while it was thinking
        if opening:
            return _CLOSING.split(text[opening[-1].end() :], maxsplit=1)[0]
        text = _CLOSING.sub(" ", text)
        if boxed := _BOXED.findall(text):
            return str(boxed[-1])
        labels = list(_LABEL.finditer(_CALL.sub(lambda call: "-" * len(call[0]), text)))
        return _labelled(text, labels) or text

    def actions(self, answer: str, known: Sequence[str], limit: int) -> Answer:
        spelt = {action.lower(): action for action in known}
        sentences = [(found[0], _words(found[0])) for found in _SENTENCE.finditer(answer)]
        words = [word for _, sentence in sentences for word in sentence]
        if not any(word in spelt for word in words):
            problem = f"{' '.join(answer.split())[:_QUOTED]!a} names no action" if words else "the answer is empty"
            return Answer((), problem)
        plain = spelt.keys() | _LINKS | _VERBS
        lead = list(takewhile(lambda sentence: plain.issuperset(sentence[1]), sentences))
        led = [spelt[word] for _, sentence in lead for word in sentence if word in spelt]
        rest = [word for _, sentence in sentences[len(lead) :] for word in sentence]
        takes_back = bool(rest) and (_corrects(rest, spelt) or any("?" in text for text, _ in lead))
        if led and not takes_back:
            return Answer(tuple(led[:limit]))
        named = [place for place, word in enumerate(words) if word in spelt]
        chosen = {words[place] for place in named if _follows_a_verb(words, place)}
        others = {words[place] for place in named if place == 0 or words[place - 1] not in _PLACES} - chosen
        excludes = not _EXCLUDING.isdisjoint(words) or any(word.endswith("n't") for word in words)
        if led or len(chosen) != 1 or others or excludes:
            return Answer((), f"{' '.join(answer.split())[:_QUOTED]!a} does not name one action")
        return Answer((spelt[chosen.pop()],))

    def command(self, answer: str, verbs: Sequence[str]) -> str:
        """The last line that begins with a verb of the game, or else the last line, without what leads up to it."""
        lines = [line for line in map(_bare_line, answer.splitlines()) if line]
        fitting = [line for line in lines if line.split()[0].lower() in verbs]
        return ["", *lines, *fitting][-1].partition(SEPARATOR)[0].strip()

    def call(self, answer: str, names: Sequence[str]) -> str:
        """The first call in brackets, in any case; or else what the first line says without them, such as "search for
        red shoes" and "click on Buy Now".
        """
        either = "|".join(map(re.escape, names))
        if found := re.search(rf"\b({either})\s*\[([^\[\]\n]*)\]", answer, re.IGNORECASE):
            return f"{found[1].lower()}[{found[2].strip()}]"
        line = _bare_line(answer.strip().partition("\n")[0])
        if found := re.fullmatch(rf"({either})(?: for| on)?[\s:(]+(.*)", line, re.IGNORECASE):
            return f"{found[1].lower()}[{found[2].strip(_EDGES)}]"
        return answer


def _labelled(text: str, labels: Sequence[re.Match[str]]) -> str:
    """The line behind the last label, after those behind the same label in the lines just before it; "" without one."""
    if not labels:
        return ""
    said = [text[labels[-1].end() :].strip().partition("\n")[0].strip()]
    for earlier, later in zip(labels[-2::-1], labels[:0:-1], strict=True):
        line, _, before = text[earlier.end() : later.start()].partition("\n")
        is_list = line.strip() and "\n" not in before.strip() and _ORDINALS.issuperset(_words(before))
        if not said[0] or not is_list or _words(earlier[0])[0] != _words(later[0])[0]:
            break
        said.insert(0, line.strip())
    return "\n".join(said)


def _words(sentence: str) -> list[str]:
    """Words in lower case, without numbers and without the "left" of "two moves left"."""
    words = [word.lower().replace("’", "'") for word in _WORD.findall(sentence)]
    return [word for place, word in enumerate(words) if word != "left" or not _COUNTED & {*words[place - 1 : place]}]


def _corrects(rest: Sequence[str], actions: Container[str]) -> bool:
    """True if the text after an answer corrects it: "wait, ...", "no, left"."""
    no = any(word == "no" and after in actions for word, after in pairwise(rest))
    return no or not _CORRECTING.isdisjoint(rest)


def _follows_a_verb(words: Sequence[str], place: int) -> bool:
    return not _VERBS.isdisjoint(words[max(0, place - _REACH) : place])


def _bare_line(line: str) -> str:
    """A line without list marks, Markdown, quotes, "I would" and the full stop."""
    return _OPENERS.sub("", _MARKUP.sub("", line).strip()).strip(_EDGES)


STRICT, LENIENT = Strict(), Lenient()
READERS: dict[ReaderName, Reader] = {"strict": STRICT, "lenient": LENIENT}
