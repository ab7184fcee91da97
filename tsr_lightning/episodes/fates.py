"""What became of each response of a search, and why, read off its record."""

from collections.abc import Sequence, Set
from typing import NamedTuple

from tsr_lightning.episodes.schema import DUPLICATE, KEPT, LOST, PLAYED_OUT, PRUNED
from tsr_lightning.trajectory import Ended, RecordedTurn


class Fate(NamedTuple):
    """One word, and the reason in a few."""

    name: str
    why: str


def fates(record: Sequence[RecordedTurn], path: Set[int], returns: Sequence[float]) -> list[Fate]:
    """The fate of every turn.

    kept: a turn of the episode. lost: the environment failed on it. played out: the search went on from it, or it ended
    the episode, and another branch was chosen. duplicate: nothing was played from it, and another response of its round
    led to the same state. pruned: nothing was played from it.

    Args:
        record: of the search.
        path: places of the chosen trajectory.
        returns: of the episode up to and with each turn.
    """
    gone_on = {each.candidate.parent for each in record}
    rounds: dict[int, list[int]] = {}
    for i, each in enumerate(record):
        rounds.setdefault(each.round, []).append(i)

    def preference(i: int) -> tuple[bool, bool, float, int, bool]:
        own = record[i].candidate
        return i in path, i in gone_on, returns[i], own.remaining, own.ended is not Ended.TOKEN_LIMIT

    def fate(i: int) -> Fate:
        own, candidate = record[i], record[i].candidate
        if own.lost:
            return Fate(LOST, "the environment failed on it")
        peers = [j for j in rounds[own.round] if not record[j].lost]
        if i in path:
            return Fate(KEPT, _rank(record, peers, i))
        if candidate.ended is not None:
            return Fate(PLAYED_OUT, f"{candidate.ended.value}, return {returns[i]:.4g}; another branch was chosen")
        if i in gone_on:
            return Fate(PLAYED_OUT, f"{_played_as(record, path, i) or 'another branch was chosen'}")
        if committed := _played_as(record, path, i):
            return Fate(PLAYED_OUT, committed)
        twins = [j for j in peers if record[j].candidate.state_key == candidate.state_key]
        first = max(twins, key=preference)  # the first of equals
        if first != i:
            return Fate(DUPLICATE, f"the state of node {first}")
        return Fate(PRUNED, _rank(record, peers, i) or "nothing was played from it")

    return [fate(i) for i in range(len(record))]


def _rank(record: Sequence[RecordedTurn], peers: Sequence[int], i: int) -> str:
    """Its place by score among the responses of its round; empty where nothing was compared."""
    own = record[i].candidate.score
    if own is None or len(peers) < 2:
        return ""
    above = sum(score > own for j in peers if (score := record[j].candidate.score) is not None)
    return f"score {own:.4g}, rank {above + 1} of {len(peers)} in round {record[i].round}"


def _played_as(record: Sequence[RecordedTurn], path: Set[int], i: int) -> str:
    """Says where the response was played in the real episode; empty where it was not."""
    own = record[i].candidate
    for j in path:
        other = record[j].candidate
        if not other.drawn and other.parent == own.parent and other.turn.response == own.turn.response:
            return f"its response was played in the episode as node {j}"
    return ""
