"""Tree-GRPO as one file, as a user would write it; tests/objectives/test_tree_grpo.py holds it against brute force."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tsr_lightning.objectives import Needs, TreeCredit
from tsr_lightning.objectives.backups import proposed_in
from tsr_lightning.trajectory import Candidate, Comparison, Group, TreePath


@dataclass(frozen=True)
class TreeGRPO(TreeCredit):
    """Tree-GRPO (https://arxiv.org/abs/2509.21240): the leaves of an instance's trees are compared by their returns,
    those of each tree among themselves and those of all trees together; shared turns are trained once.

    Its advantage is the mean of the paper's two, where the paper has their sum. Departs from the paper: the trees are
    those of the search, and a turn's clip acts once, on the mean over the leaves below it.
    """

    def needs_with(self, needs: Needs) -> Needs:
        return replace(needs, tree=True)

    def comparisons(self, group: Group, minimum_compared: int) -> list[Group | Comparison]:
        of_trees = [leaves(each.tree) for each in group.trajectories if each.tree]
        every = tuple(path for paths in of_trees for path in paths)
        return [Comparison(paths, weight=1.0) for paths in [*of_trees, every] if len(paths) >= minimum_compared]


def leaves(tree: Sequence[Candidate]) -> tuple[TreePath, ...]:
    """The paths from the root to where episodes ended, each with its return as value."""
    states = proposed_in(tree)
    paths: list[list[int]] = []
    for i, candidate in enumerate(tree):
        paths.append([*([] if candidate.parent is None else paths[candidate.parent]), i])
    return tuple(
        TreePath(
            turns=tuple(tree[j].turn for j in path),
            states=tuple(states[j] for j in path),
            value=sum(tree[j].turn.reward for j in path),
            succeeded=tree[i].succeeded,
            overlong=tree[i].overlong,
        )
        for i, path in enumerate(paths)
        if tree[i].done and tree[i].drawn
    )
