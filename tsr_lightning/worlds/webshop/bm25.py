"""An inverted index with Lucene's BM25: the same scores, bit for bit, and the same order of ties. Knows no products.

The score of a document d for a query q, as Lucene 9's BM25Similarity computes it in 32 bits:

    sum over the terms t of q:  w - w / (1 + tf / (k1 (1 - b + b |d| / avgdl))),   w = count(t in q) idf(t)
    idf(t) = ln(1 + (N - df + 1/2) / (df + 1/2))

where |d| is rounded to one byte of four significant bits. bm25s has neither this byte nor these stems and words.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsr_lightning.worlds.webshop.tokens import term_of, terms, words

K1: Final = 0.9  # Anserini's
B: Final = 0.4
_BLOCK: Final = 1 << 22  # words sorted at a time
_STOP: Final = -1  # the number of a word without a term
_FEW: Final = 20_000  # postings not worth skipping
_LOOK_UP: Final = 8  # postings that take as long to add as one takes to find by its document
_NEARLY: Final = 1 - 2.0**-22  # sums closer than this may be equal once rounded
_ALL: Final = slice(None)


def _lengths() -> NDArray[np.int64]:
    """The lengths that a byte can encode [256]: 0 to 39 exactly, then with four significant bits."""
    low = np.arange(24)
    rest = np.arange(232)
    shift = np.maximum(rest // 8 - 1, 0)
    return np.concatenate([low, 24 + np.where(rest < 8, rest, (rest % 8 + 8) << shift)])


LENGTHS: Final = _lengths()


def length_byte(length: NDArray[np.int64]) -> NDArray[np.int64]:
    """The byte of a length: that of the largest encodable length up to it."""
    return np.searchsorted(LENGTHS, length, side="right") - 1


class Postings(NamedTuple):
    """The postings of one term of a query."""

    documents: NDArray[np.int32]  # [postings], rising
    pairs: NDArray[np.uint16] | NDArray[np.uint32]  # [postings]
    weight: np.float32  # w
    max_score: np.float32  # the highest score that the term gives to a document


@dataclass(frozen=True, eq=False)
class Index:
    """Postings of all documents: for each term the documents that have it, in order.

    A posting takes six bytes: the document, and the number of its pair (term frequency, length byte). There are few
    such pairs, so a query computes a term's scores once per pair and looks them up per posting.
    """

    vocabulary: dict[str, int]  # term -> its number
    starts: NDArray[np.int64]  # [terms + 1], the postings of term t are [starts[t], starts[t + 1])
    documents: NDArray[np.int32]  # [postings], rising within a term
    pairs: NDArray[np.uint16] | NDArray[np.uint32]  # [postings], numbers of pairs
    damped: NDArray[np.float32]  # [pairs], rising: 1 + tf / (k1 (1 - b + b |d| / avgdl))
    best_pair: NDArray[np.uint16] | NDArray[np.uint32]  # [terms], the highest pair among a term's postings
    size: int  # documents, empty ones included
    non_empty: int  # documents that have a term: Lucene's N

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, without the vocabulary."""
        return sum(part.nbytes for part in (self.starts, self.documents, self.pairs, self.damped, self.best_pair))

    def top(self, query: str, most: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The `most` best documents that have a term of the query, and their scores; of equals the earlier one first.

        Terms are added from the heaviest to the lightest. Once those left cannot bring a document that has none of the
        others among the best, only the remaining candidates are looked up in them (Turtle and Flood 1995, "max score").
        Sums are in 64 bits, where a few scores of 24 bits add up exactly in any order; Lucene, too, rounds once, at the
        end.
        """
        left = sorted(self._query_postings(query), key=lambda term: term.weight)
        added: list[Postings] = []
        total = np.zeros(self.size, dtype=np.float64)
        threshold = 0.0  # at least `most` documents reach it
        while left and threshold <= _max_gain(left):
            term = left.pop()
            added.append(term)
            total[term.documents] += self._scores(term)
            if len(term.documents) >= most and _count(left) > _FEW:
                threshold = max(threshold, _NEARLY * _largest(total[term.documents], most))
        found = self._candidates(added, total, threshold - _max_gain(left))
        while left:
            term = left.pop()
            self._add(term, found, total)
            if len(found) > most and left:
                threshold = _NEARLY * _largest(total[found], most)
                found = found[total[found] >= threshold - _max_gain(left)]
        scores = total[found].astype(np.float32)
        if len(found) > most:
            kept = scores >= _largest(scores, most)
            found, scores = found[kept], scores[kept]
        order = np.argsort(-scores, kind="stable")[:most]
        return found[order], scores[order]

    def _query_postings(self, query: str) -> Iterator[Postings]:
        for term, count in Counter(terms(query)).items():
            number = self.vocabulary.get(term)
            if number is not None:
                own = slice(self.starts[number], self.starts[number + 1])
                frequency = int(own.stop - own.start)  # df
                idf = np.float32(np.log(1 + (self.non_empty - frequency + 0.5) / (frequency + 0.5)))
                weight = np.float32(count) * idf
                max_score = weight - weight / self.damped[self.best_pair[number]]
                yield Postings(self.documents[own], self.pairs[own], weight, max_score)

    def _scores(self, term: Postings, places: NDArray[np.int64] | slice = _ALL) -> NDArray[np.float32]:
        """The scores that a term gives to its documents, or to those at some places of its postings."""
        pairs = term.pairs[places]
        if len(pairs) < len(self.damped):
            return term.weight - term.weight / self.damped[pairs]
        return (term.weight - term.weight / self.damped)[pairs]

    def _add(self, term: Postings, found: NDArray[np.int64], total: NDArray[np.float64]) -> None:
        """Adds the scores of a term for the documents `found`, by the faster of look-ups and all its postings."""
        if len(term.documents) < _LOOK_UP * len(found):
            total[term.documents] += self._scores(term)
            return
        places = np.minimum(np.searchsorted(term.documents, found), len(term.documents) - 1)
        has = term.documents[places] == found
        total[found[has]] += self._scores(term, places[has])

    def _candidates(self, added: Sequence[Postings], total: NDArray[np.float64], least: float) -> NDArray[np.int64]:
        """The documents with one of the added terms whose total is `least` or more, in order."""
        if _count(added) > self.size // _LOOK_UP:
            return np.flatnonzero((total >= least) & (total > 0))
        found = [term.documents[total[term.documents] >= least] for term in added]
        return np.unique(np.concatenate(found)).astype(np.int64) if found else np.zeros(0, dtype=np.int64)


def _count(postings: Sequence[Postings]) -> int:
    return sum(len(term.documents) for term in postings)


def _max_gain(postings: Sequence[Postings]) -> float:
    """The most that some terms can add to a document's score."""
    return sum(float(term.max_score) for term in postings)


def _largest(values: NDArray[Any], count: int) -> Any:
    """The `count`-th largest."""
    return np.partition(values, len(values) - count)[len(values) - count]


def build_index(texts: Iterable[str]) -> Index:
    """Builds the index of some texts in one pass over them."""
    vocabulary: dict[str, int] = {}
    lengths = array("i")
    blocks = [_Block.sorted(*block) for block in _numbered(texts, vocabulary, lengths)]
    length = np.frombuffer(lengths, dtype=np.int32) if lengths else np.zeros(0, dtype=np.int32)
    non_empty = int(np.count_nonzero(length))
    known = np.unique(np.concatenate([block.known_pairs for block in blocks])) if blocks else np.zeros(0, np.int64)
    average = np.float32(length.sum(dtype=np.int64) / max(non_empty, 1))
    damped = _damped(known, average)
    order = np.argsort(damped, kind="stable")
    kind = np.uint16 if len(known) <= 1 << 16 else np.uint32
    rank = np.empty(len(known), dtype=kind)
    rank[order] = np.arange(len(known))
    counts = np.zeros(len(vocabulary), dtype=np.int64)
    for block in blocks:
        counts[: len(block.counts)] += block.counts
    starts = np.concatenate([[0], np.cumsum(counts)])
    documents = np.empty(starts[-1], dtype=np.int32)
    pairs = np.empty(starts[-1], dtype=kind)
    free = starts[:-1].copy()  # the place of each term's next posting
    blocks.reverse()
    while blocks:
        block = blocks.pop()
        own = np.cumsum(block.counts) - block.counts
        places = np.repeat(free[: len(block.counts)] - own, block.counts) + np.arange(len(block.documents))
        documents[places] = block.documents
        pairs[places] = rank[np.searchsorted(known, block.pairs)]
        free[: len(block.counts)] += block.counts
    best = np.maximum.reduceat(pairs, starts[:-1]) if len(pairs) else pairs
    return Index(vocabulary, starts, documents, pairs, damped[order], best, len(length), non_empty)


def _damped(pairs: NDArray[np.int64], average: np.float32) -> NDArray[np.float32]:
    """Each pair's 1 + tf / (k1 (1 - b + b |d| / avgdl)), rounded as Lucene rounds."""
    k1, b, one = np.float32(K1), np.float32(B), np.float32(1)
    inverse = one / (k1 * ((one - b) + b * LENGTHS.astype(np.float32) / max(average, one)))
    return one + (pairs >> 8).astype(np.float32) * inverse[pairs & 255]


class _TermNumbers(dict[str, int]):
    """The number of each word's term; a new term gets the next number."""

    def __init__(self, vocabulary: dict[str, int]) -> None:
        self.vocabulary = vocabulary

    def __missing__(self, word: str) -> int:
        term = term_of(word)
        self[word] = number = self.vocabulary.setdefault(term, len(self.vocabulary)) if term else _STOP
        return number


def _numbered(
    texts: Iterable[str], vocabulary: dict[str, int], lengths: "array[int]"
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32], int]]:
    """The texts as numbers of terms, in blocks: (terms, lengths of texts, place of the first text); fills `lengths`."""
    numbers = _TermNumbers(vocabulary)
    block, first = array("i"), 0
    for text in texts:
        found = [number for number in map(numbers.__getitem__, words(text.lower())) if number != _STOP]
        block.extend(found)
        lengths.append(len(found))
        if len(block) > _BLOCK:
            yield np.array(block), np.array(lengths[first:]), first
            block, first = array("i"), len(lengths)
    if block:
        yield np.array(block), np.array(lengths[first:]), first


@dataclass(frozen=True, eq=False)
class _Block:
    """The postings of consecutive documents, by term and then by document."""

    counts: NDArray[np.int64]  # [terms so far], postings of each term
    documents: NDArray[np.int32]  # [postings]
    pairs: NDArray[np.int64]  # [postings], 256 tf + length byte
    known_pairs: NDArray[np.int64]  # the different pairs

    @classmethod
    def sorted(cls, numbers: NDArray[np.int32], lengths: NDArray[np.int32], first: int) -> "_Block":
        document = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
        keys = numbers.astype(np.int64) << 32 | document
        keys.sort()
        begins = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        frequencies = np.diff(begins, append=len(keys))
        kept = keys[begins]
        local = kept & 0xFFFFFFFF
        pairs = frequencies << 8 | length_byte(lengths.astype(np.int64))[local]
        counts = np.bincount(kept >> 32)
        return cls(counts, (local + first).astype(np.int32), pairs.astype(np.uint32), np.unique(pairs))
