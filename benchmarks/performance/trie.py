"""The fewest tokens that must be computed: the distinct prefixes of a rollout, counted by brute force.

A token is computed once for every distinct prefix that ends with it, if a prompt contains that prefix or something is
sampled after it. So the last token of a response counts only where a later prompt contains it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.performance.recording import Wave


@dataclass(frozen=True)
class Trie:
    """How many prefixes there are, and how many tokens they see. Tokens."""

    in_prompts: int = 0  # distinct prefixes that prompts contain
    in_responses: int = 0  # those that end within a response which no prompt contains
    keys_in_prompts: int = 0  # tokens that the former see, themselves included, summed
    keys_in_responses: int = 0
    sampled: int = 0  # distinct prefixes that something was sampled after: there logits are needed
    asked: int = 0  # what would be computed if nothing were shared and nothing kept between turns

    @property
    def tokens(self) -> int:
        return self.in_prompts + self.in_responses

    @property
    def keys(self) -> int:
        return self.keys_in_prompts + self.keys_in_responses


class _Tree:
    """Nodes are numbered as they come; 0 is the root."""

    def __init__(self) -> None:
        self.depths = [0]
        self._children: dict[tuple[int, int], int] = {}

    def child(self, node: int, token: int) -> int:
        found = self._children.get((node, token))
        if found is None:
            found = self._children[node, token] = len(self.depths)
            self.depths.append(self.depths[node] + 1)
        return found

    def end(self, ids: Sequence[int]) -> int:
        node = 0
        for token in ids:
            node = self.child(node, token)
        return node


def grown(waves: Iterable[Wave]) -> Trie:
    """The trie of everything that was asked and said, prompts first."""
    pairs = [pair for prompts, families in waves for pair in zip(prompts, families, strict=True)]
    tree = _Tree()
    ends = [tree.end(prompt.ids) for prompt, _ in pairs]
    in_prompts = len(tree.depths) - 1
    sampled = set(ends)
    for (_, family), end in zip(pairs, ends, strict=True):
        for response in family:
            node = end
            for token in response.ids[:-1]:
                node = tree.child(node, token)
                sampled.add(node)
    return Trie(
        in_prompts=in_prompts,
        in_responses=len(tree.depths) - 1 - in_prompts,
        keys_in_prompts=sum(tree.depths[: in_prompts + 1]),
        keys_in_responses=sum(tree.depths[in_prompts + 1 :]),
        sampled=len(sampled),
        asked=sum(len(p.ids) + len(response.ids) - 1 for p, family in pairs for response in family),
    )
