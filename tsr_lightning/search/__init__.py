"""Search over turns. The strategies and scorers that this imports have short names in configurations."""

from tsr_lightning.search.adaptive_tree import AdaptiveTree
from tsr_lightning.search.branching import ContrastBeam, SuffixRestarts, Vine
from tsr_lightning.search.failures import SearchFailures
from tsr_lightning.search.first_improvement import FirstImprovement
from tsr_lightning.search.process_score import ProcessScore
from tsr_lightning.search.random_rollouts import RandomRollouts
from tsr_lightning.search.strategies import Beam, BestOfN, Expert, Greedy, Lookahead, RandomActions, Sample, Strategy
from tsr_lightning.search.uncertainty import EntropyExpansion, EntropyRise

__all__ = [
    "AdaptiveTree",
    "Beam",
    "BestOfN",
    "ContrastBeam",
    "EntropyExpansion",
    "EntropyRise",
    "Expert",
    "FirstImprovement",
    "Greedy",
    "Lookahead",
    "ProcessScore",
    "RandomActions",
    "RandomRollouts",
    "Sample",
    "SearchFailures",
    "Strategy",
    "SuffixRestarts",
    "Vine",
]
