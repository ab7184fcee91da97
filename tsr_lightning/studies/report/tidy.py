"""Writes the figures as data frames: a row per evaluation, and a row per comparison."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import pandas as pd

from tsr_lightning.statistics import Estimate
from tsr_lightning.studies.report.comparisons import AtBudget, End, Pair, Reached
from tsr_lightning.studies.report.load import StudyResults, run_costs

# An evaluation's figures include its own costs, which would hide the run's.
_OWN_COSTS = ("tokens_generated", "env_steps", "seconds")


def evaluations_frame(studies: Sequence[StudyResults]) -> pd.DataFrame:
    """Returns a row per study, arm, seed, protocol and epoch, with the costs of the run so far and all figures.

    The costs are those of `callbacks.costs.RunCosts` and `train_seconds`, the seconds without evaluation; what the
    evaluation itself cost has `evaluation_` before its name. An axis is a column `axis.NAME`.
    """
    return pd.DataFrame(list(_evaluations(studies)))


def _evaluations(studies: Sequence[StudyResults]) -> Iterator[dict[str, Any]]:
    for study in studies:
        for arm in study.arms:
            for seed, result in arm.results.items():
                for evaluation in result["evaluations"]:
                    for protocol, figures in evaluation["figures"].items():
                        named = {
                            f"evaluation_{name}" if name in _OWN_COSTS else name: value
                            for name, value in figures.items()
                        }
                        own_seconds = {"all_evaluation_seconds": evaluation["costs"]["evaluation_seconds"]}
                        costs = run_costs(evaluation["costs"])
                        del costs["evaluation_seconds"]
                        yield {
                            "study": study.name,
                            "arm": arm.arm,
                            **{f"axis.{axis}": point for axis, point in arm.points.items()},
                            "seed": seed,
                            "protocol": protocol,
                            **costs,
                            **own_seconds,
                            **named,
                        }


def comparisons_frame(rows: Iterable[End | AtBudget | Pair | Reached]) -> pd.DataFrame:
    """Returns a row per comparison; an estimate as three columns, what was spent as one per budget."""
    return pd.DataFrame([dict(_columns(row)) for row in rows])


def _columns(row: End | AtBudget | Pair | Reached) -> Iterator[tuple[str, Any]]:
    optional_estimates = ("gain", "against")
    for one in fields(row):
        value = getattr(row, one.name)
        if isinstance(value, Estimate) or one.name in optional_estimates:
            low, high = (None, None) if value is None else (value.low, value.high)
            yield from ((one.name, value and value.value), (f"{one.name}_low", low), (f"{one.name}_high", high))
        elif one.name == "spent":
            yield from value.items()
        elif one.name == "equal":
            for budget, estimate in value.items():
                name = f"at_equal_{budget}"
                yield from ((name, estimate.value), (f"{name}_low", estimate.low), (f"{name}_high", estimate.high))
        else:
            yield one.name, value
