"""Random search trees as data, with what makes values hard. No tests in here.

Few states, so that equal ones recur at one depth within and across trees: pruned, ended, of other budgets; equal
responses with different outcomes; committed turns.
"""

import random

from tsr_lightning.trajectory import Candidate, Ended, Origin, Trajectory, Turn

DEPTH = 3
TEXTS = "abcC"  # two of them one action


def candidate_of(
    text: str,
    parent: int | None = None,
    *,
    key: str = "s",
    remaining: int = 1,
    reward: float = 0.0,
    score: float | None = 0.0,
    done: bool = False,
    succeeded: bool = False,
    drawn: bool = True,
    prompt: tuple[int, ...] = (1,),
) -> Candidate:
    turn = Turn(
        prompt=prompt,
        response=tuple(map(ord, text)),
        behaviour_logprobs=(-1.0,) * len(text),
        finished=True,
        messages=(),
        text=text,
        reward=reward,
        valid=True,
        effective=True,
        action=text.lower(),
    )
    return Candidate(
        turn=turn,
        parent=parent,
        state_key=key,
        remaining=remaining,
        env_score=score,
        score=0.0 if score is None else score,
        ended=Ended.SUCCEEDED if succeeded else Ended.FAILED if done else None,
        drawn=drawn,
    )


def random_tree(draws: random.Random) -> tuple[Candidate, ...]:
    """Parents first; a state is expanded by chance, with one to three responses, of which the last may be committed."""
    tree: list[Candidate] = []
    level: list[tuple[int | None, tuple[int, ...]]] = [(None, (0,))]
    for depth in range(DEPTH):
        following: list[tuple[int | None, tuple[int, ...]]] = []
        for parent, prompt in level:
            if parent is not None and draws.random() < 0.3:
                continue  # pruned
            texts = [draws.choice(TEXTS) for _ in range(draws.choice([1, 2, 3]))]
            committed = draws.random() < 0.3
            for number, text in enumerate([*texts, *texts[-1:] * committed]):
                candidate = candidate_of(
                    text,
                    parent,
                    key=draws.choice("st"),
                    remaining=draws.choice([1, 2]),
                    reward=draws.choice([0.0, -0.1, 0.5]),
                    score=None if number == len(texts) else draws.choice([-0.5, 0.2, 0.7, 1.5]),
                    done=depth == DEPTH - 1 or draws.random() < 0.2,
                    succeeded=draws.random() < 0.15,
                    drawn=number < len(texts),
                    prompt=prompt,
                )
                if not candidate.done:
                    following.append((len(tree), (*prompt, ord(candidate.state_key), candidate.remaining)))
                tree.append(candidate)
        level = following
    return tuple(tree)


def searched(tree: tuple[Candidate, ...], **arguments: object) -> Trajectory:
    """A trajectory with a tree; its turns are those of the tree's first candidate alone."""
    given = {
        "instance": 0,
        "member": 0,
        "strategy": "Beam",
        "origin": Origin.SEARCHED,
        "turns": (tree[0].turn,),
        "ended": Ended.FAILED,
        "final_prompt": (),
        "final_messages": (),
        "tree": tree,
    }
    return Trajectory(**{**given, **arguments})  # type: ignore[arg-type]
