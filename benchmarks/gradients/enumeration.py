"""All outcomes of a random computation, by running it again with every sequence of choices."""

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

ResultT = TypeVar("ResultT")


class Outcome(NamedTuple, Generic[ResultT]):
    """One outcome, and its probability."""

    probability: float
    result: ResultT


class Choices:
    """A source of choices that first repeats given ones, and then takes the first possible one each time."""

    def __init__(self) -> None:
        self.repeated: list[int] = []
        self.made: list[tuple[int, Sequence[float]]] = []  # each with the probabilities of all

    def choose(self, probabilities: Sequence[float]) -> int:
        place = len(self.made)
        chosen = self.repeated[place] if place < len(self.repeated) else 0
        self.made.append((chosen, probabilities))
        return chosen

    @property
    def probability(self) -> float:
        product = 1.0
        for chosen, probabilities in self.made:
            product *= probabilities[chosen]
        return product

    def next(self) -> bool:
        """Goes on to the next sequence of choices; False after the last."""
        made, self.made, self.repeated = self.made, [], []
        while made:
            last, probabilities = made.pop()
            if last + 1 < len(probabilities):
                self.repeated = [*(chosen for chosen, _ in made), last + 1]
                return True
        return False


def outcomes(run: Callable[[], ResultT], choices: Choices) -> Iterator[Outcome[ResultT]]:
    """Every outcome of `run`, which makes all its choices by `choices` and has no other randomness."""
    while True:
        result = run()
        yield Outcome(choices.probability, result)
        if not choices.next():
            return
