"""Search of the instances alone that plain samples fail."""

from dataclasses import dataclass, field, replace

from tsr_lightning.errors import require
from tsr_lightning.search.strategies import Beam, Sample, Strategy
from tsr_lightning.search.traits import Traits
from tsr_lightning.search.tree import Node, Search
from tsr_lightning.trajectory import Origin


@dataclass(frozen=True)
class SearchFailures(Strategy):
    """Samples plain trajectories until one succeeds, and searches only where all of them fail.

    An instance that the policy solves costs one plain trajectory instead of a search, so that the tokens of search go
    where they find something new: DeepSearch (arXiv 2509.25454) searches only what plain samples rarely solve. The
    samples are taken one after the other, because the first success makes the others unnecessary. They stay in the tree
    as candidates of the root and of the states below it, but tree credit refuses them: a state has further candidates
    only where the plain sample failed, which would count against its response. A plain success is kept with the noise
    that it met, also where the search commits by `resample`.

    Args:
        strategy: searches, from the root.
        samples: the most plain trajectories before that. One is the cheapest that tells easy instances from hard ones:
            each further one costs a trajectory wherever the policy fails.
    """

    strategy: Strategy = field(default_factory=Beam)
    samples: int = 1

    def __post_init__(self) -> None:
        require(self.samples >= 1, "SearchFailures.samples", self.samples, "give 1 or more")
        name = type(self.strategy).__name__
        origin = self.strategy.traits.origin
        remedy = (
            f"its responses are {origin.value}, and plain samples cannot share one strategy with them; give a search"
        )
        require(origin.is_sampled, "SearchFailures.strategy", name, remedy)

    def __call__(self, root: Node) -> Search:
        for _ in range(self.samples):
            leaf = yield from Sample()(root)
            if leaf.succeeded:
                return leaf
        return (yield from self.strategy(root))

    @property
    def traits(self) -> Traits:
        """SEARCHED, though many of its trajectories are plain samples: each was kept because it succeeded, and a
        gradient over them would take the policy for better than it is. Whether a response is drawn depends on those
        before it."""
        return replace(self.strategy.traits, origin=Origin.SEARCHED, branches=True, independent_siblings=False)
