"""The event of progress: what further searches add to it."""

from tsr_lightning.costs import Costs
from tsr_lightning.search.progress import Progress


def test_further_searches_add_to_what_has_ended():
    begun = Progress("rollout", began=0.0, done=6, total=6, costs=Costs(waves=2))
    after = begun.after(1, 2, Costs(waves=1), spent=0.75)
    assert (after.phase, after.began) == ("rollout", 0.0)
    assert (after.done, after.total, after.costs.waves) == (7, 8, 3)
    assert after.spent == (6 + 0.75 * 2) / 8  # six whole searches and three quarters of two
    assert after.seconds > 0
