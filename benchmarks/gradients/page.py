"""Writes docs/gradients.md."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.gradients.cases import CASES, IN_STEPS, TASKS, Case, Rollouts
from benchmarks.gradients.estimates import Figures, Step

EXACT = 1e-6  # credit is float32
COLUMNS = (
    "credit",
    "rollouts",
    "gradient of",
    *(f"{name}: {what}" for name in TASKS for what in ("cosine", "bias", "opposed", "turns")),
)
SIZES = (4, 16)  # groups of a step
STEP_COLUMNS = (
    "credit",
    "rollouts",
    *(f"{name}, {size}: {what}" for name in TASKS for size in SIZES for what in ("bias", "noise")),
)


class Measured(NamedTuple):
    """A kind of credit on all tasks."""

    case: Case
    figures: list[Figures]
    steps: list[Step]  # of each task and size; none where they are not asked for

    @property
    def unbiased(self) -> bool:
        return all(each.cosine > 0 and each.bias < EXACT for each in self.figures)


_PREFACE = """# Which credit estimates the policy gradient

{verdict}

Made by `python -m benchmarks.gradients`: a ladder with one step or two a turn and success on one rung, a policy with
a table of logits, and the project's own driver, strategies, `comparisons`, `credit` and `loss`. Every outcome of every
draw is enumerated, those of the noise too, so the figures are exact. Without noise the goal is the fourth rung in three
turns; with slip it is the third in two, and a move goes one step further with probability 0.25. A turn costs 0.05.

- Rollouts: groups of four plain samples, or of four searched trajectories; under tree credit one search. Beam,
  lookahead and first improvement have two candidates (beam width 2, lookahead one turn deep), a vine two in every
  state. A contrast beam keeps the best and the worst prefix and plays all that it prunes out; suffix restarts are two
  plain samples from the last state of a success. An entropy expansion is one plain sample and three trajectories from
  the states of which the policy is least sure; by entropy rise two plain samples fork, four trajectories in all. An
  adaptive tree has two prefixes, of which after each turn the better branches and one that lies back is given up.
- The gradient is that of a step of many groups with importance ratios of 1, without an entropy bonus; steps of few are
  [below](#in-a-step). Tree and graph credit have leave-one-out baselines and `size_power` 0 unless the row says
  otherwise; the targets `ImprovedPolicy` and `ExponentialWeights` have a `scale` of 1 and baselines of the mean.
- Graph credit takes states of equal keys for one. The key is the rung alone, or the rung and the turns left where it
  says so: on this task the turns left decide.
- *cosine*: with the exact gradient of the expected return. *bias*: what is left of the expected gradient after the best
  multiple of the exact one, in units of that multiple; a common factor is a step size.
- *opposed*: states in which the expected update makes the better action less likely.
- *turns*: how many turns have to be drawn until the noise, the root of the summed variances, is as small as the part of
  the gradient that points along the exact one. It compares kinds of credit at equal cost; with n times as many the
  noise is root n times smaller, the bias stays.

"""

_IN_A_STEP = """
## In a step

A step divides by the weights of its own states and not by the expected ones, so a credit that is unbiased in steps of
many groups is not in a step of few. Here a step has 4 or 16 groups: searches with their trees, or groups of four plain
samples. The *bias* is as above, and the *noise* is the root of the summed variances of the step, in units of the part
along the exact gradient: at 1 a step is as much noise as signal. Both are exact: the expectation of the quotient is an
integral over its divisor, taken numerically. Only credit on plain samples whose divisor is constant and whose
baseline leaves out a trajectory's own return is unbiased in every step (RLOO and ReMax; what is left of the own return
under Dr. GRPO is a step size). With one vine a step the bias of tree credit is 6.5 and 3.6%; on another task it was
5.6% with four. Searches that grow trees weigh states anew: their bias does not fall with the size of the step.

"""

_REASONS = """
## Why

Write g(s) = Σ π(a|s) ∇log π(a|s) Q(s, a), so that the exact gradient is Σ d(s) g(s), where d(s) is how often the policy
visits s. Comparing n responses drawn in s, leave-one-out, gives g(s) in expectation if three things hold:

1. **Values**: that of a response has the expectation Q, and none depends on another response of that state.
   `MeanBackup` has that where all episodes were played to their end by plain samples (`Vine`), or where the score of
   what was left is the policy's value. A maximum is the value of acting by search. Where a search chooses what it
   goes on with, the value of the rest is a guess.
2. **States** weigh as the policy visits them. In a vine every state of a plain trajectory is expanded once, so
   `size_power: 0` weighs by d(s); a state that several vines or candidates reached is compared once and weighs as often
   as it was expanded. `size_power: 1` divides by the expansions of an instance, so short episodes count more, like
   `SequenceMean` over trajectories. A beam's states are those that the search liked, an
   entropy expansion's those of which the policy is unsure. Best-of-N expands only the first. An adaptive tree weighs
   states by its score too, and has little noise a turn, since what it draws is compared at every turn.
3. **Centring** shrinks by (n − 1) / n without leave-one-out. That is a step size where n is constant, and a bias where
   equal states were merged. OPO's baseline shrinks long episodes more, since it weighs returns by length. Dividing by
   the deviation weighs states, and outcomes within one, anew.

Graph credit pools what was found after all paths through an equal state. At equal turns that makes its noise the
lowest of the unbiased rows under a critic, and lower than that of tree credit on vines; RLOO on plain samples has
less where moves slip. Three things bias it. A state in which a single response was drawn is compared with nothing, so
states weigh by how often samples meet there and not by d(s). Within a vine, responses that were played out meet in
states by themselves. Where the budget is not in the state key, values of different budgets are pooled. Under a critic
the first cannot happen, since no state is left out: with the budget in the key, graph credit of plain samples is then
unbiased in steps of many groups, and with less noise than PPO. `MaxBackup` is no value of the policy here either.

A target adds (p' - p) ∇log π over the responses of a state, where p' ∝ p exp(scale · q). For a small scale that is the
gradient of the return in the state, times the scale; the softmax bends it. The policy that `ImprovedPolicy` improves on
is that among what was proposed, and what was neither searched on nor scored teaches nothing of its own.

`drop_uniform` leaves out comparisons whose advantages are 0; under `size_power: 0` it changes the step's length alone.
A critic's advantages are not 0 there, so PPO keeps all.
Where responses have several tokens, `Constant` sums them; `SequenceMean` and `TokenMean` weigh tokens anew here too.
The policy of this page sees the state alone. If it sees its history too, values of equal states with other histories
are pooled, an approximation. `resample` plays a response again only if its first outcome was liked, and a response's
value is the mean of both outcomes, so it is slightly low. Where the world is deterministic the real turn comes out as
the simulated one did, whose further responses decided that it was played, and the state gets more of them: updates of a
state are then 1 to 2% too small under a beam and up to 8% off under best-of-N (two turns, exact scores). Neither is in
the table.

Imitating successes of plain samples is the gradient of log P(success), exactly, not of the return. On searched
trajectories it is the gradient of the likelihood that the policy gives them: distillation of the search. The paper's
recipe is the same with weights R − mean(R) among searched trajectories.

Biased is not useless: what search finds early can be worth more than being right on average, and most rows oppose the
exact gradient in no state. [Tree credit](objectives/tree_credit.md) says when to use which.
"""


def measured(cases: Sequence[Case] = CASES) -> list[Measured]:
    """All rows; each search is enumerated once per task."""
    rollouts = [Rollouts(rules) for rules in TASKS.values()]
    return [_measured(case, rollouts) for case in cases]


def _measured(case: Case, rollouts: Sequence[Rollouts]) -> Measured:
    sizes = SIZES if case in IN_STEPS else ()
    return Measured(
        case,
        [each.world.figures(case.objective, each.of(case)) for each in rollouts],
        [each.world.step(case.objective, each.of(case), size) for each in rollouts for size in sizes],
    )


def write_page(out: Path) -> None:
    """Writes gradients.md into a folder, which is made if it is missing."""
    out.mkdir(parents=True, exist_ok=True)  # before the enumeration, which takes minutes
    rows = measured()
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *map(_line, rows)]
    in_steps = [row for row in rows if row.steps]
    steps = [f"| {' | '.join(STEP_COLUMNS)} |", "|---" * len(STEP_COLUMNS) + "|", *map(_step_line, in_steps)]
    tables = ["\n".join([*table, ""]) for table in (lines, steps)]
    page = _PREFACE.format(verdict=_verdict(rows)) + tables[0] + _IN_A_STEP + tables[1] + _REASONS
    (out / "gradients.md").write_text(page, encoding="utf-8")


def _line(row: Measured) -> str:
    cells = [cell for figures in row.figures for cell in _cells(figures)]
    return f"| {row.case.credit} | {row.case.search} | {row.case.target} | {' | '.join(cells)} |"


def _step_line(row: Measured) -> str:
    cells = [cell for step in row.steps for cell in (_share(step.bias), f"{step.noise:.2f}")]
    return f"| {row.case.credit} | {row.case.search} | {' | '.join(cells)} |"


def _share(bias: float) -> str:
    return "**0**" if bias < EXACT else f"{bias:.1%}"


def _cells(figures: Figures) -> tuple[str, ...]:
    bias = "**0**" if figures.bias < EXACT else f"{figures.bias:.2f}"
    return f"{figures.cosine:.3f}", bias, str(figures.opposed), f"{figures.turns:.0f}"


def _verdict(rows: Sequence[Measured]) -> str:
    unbiased = [f"{row.case.credit} on {row.case.search}" for row in rows if row.unbiased]
    return "\n".join(
        [
            "Unbiased estimates of the gradient of the expected return, in steps of many groups and on both tasks, are",
            "",
            *(f"- {name}" for name in unbiased),
            "",
            "and no others of this table: they are gradients of something else, as it says.",
        ]
    )
