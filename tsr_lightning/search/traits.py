"""Facts about a strategy by which a run decides how its trajectories and trees may be used."""

from dataclasses import dataclass

from tsr_lightning.search.scorers import Scorer
from tsr_lightning.trajectory import Origin


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Facts about a strategy. Those that decide whether a gradient is biased have no default; a wrapper takes its inner
    strategy's with `dataclasses.replace`. A rehearsal (`search.rehearsal`) compares them with what the strategy does.

    Args:
        origin: SAMPLED if no trajectory is chosen by what came of it, SEARCHED if one is chosen among candidates,
            DEMONSTRATED if a demonstrator plays, such as the environment's oracle, GREEDY if all responses are greedy.
        branches: some state gets two responses or more, so that siblings can be compared.
        independent_siblings: how many responses a state gets never depends on what came of some of them, and they are
            drawn with replacement. Stopping at the first success does depend on it: failures would count too often. So
            does `resample` where the real turn comes out as the simulated one did and its state is searched again; the
            bias is of some per cent (docs/gradients.md), and counts as none.
        monte_carlo_rollouts: plain samples are added from a state so that their mean tells what the policy reaches
            there. They may depend on earlier successes. MaxBackup overestimates such a state; use MeanBackup.
        scored_by: sets `Node.score` of every child; None leaves scores unset, and reading one raises.
        scores_every_node: the scorer scores the root, committed and demonstrated turns too; without, reading theirs
            raises.
        without_replacement: some siblings are drawn without replacement, which not every engine can do.
    """

    origin: Origin
    branches: bool
    independent_siblings: bool
    monte_carlo_rollouts: bool
    scored_by: Scorer | None = None
    scores_every_node: bool = False
    without_replacement: bool = False
