"""Search over turns. The strategies that this imports have short names in configurations."""

from tsr_lightning.search.contrast_beam import ContrastBeam
from tsr_lightning.search.failures import SearchFailures
from tsr_lightning.search.first_improvement import FirstImprovement
from tsr_lightning.search.restarts import SuffixRestarts
from tsr_lightning.search.strategies import Beam, BestOfN, Expert, Lookahead, RandomActions, Sample, Strategy
from tsr_lightning.search.vine import Vine

__all__ = [
    "Beam",
    "BestOfN",
    "ContrastBeam",
    "Expert",
    "FirstImprovement",
    "Lookahead",
    "RandomActions",
    "Sample",
    "SearchFailures",
    "Strategy",
    "SuffixRestarts",
    "Vine",
]
