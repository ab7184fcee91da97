"""TextWorld and ALFWorld train from their shipped configurations with every search and every objective."""

from pathlib import Path

import pytest
from commands import QUICK, ROOT, tsr

CONFIGS = ROOT / "configs"
SEARCHES = sorted(path.stem for path in (CONFIGS / "search").glob("*.yaml") if path.stem != "expert")
OBJECTIVES = sorted(path.stem for path in (CONFIGS / "objective").glob("*.yaml") if path.stem != "sft")


def pairs(apart: int) -> list[tuple[str, str]]:
    """Every search and every objective at least once."""
    count = max(len(SEARCHES), len(OBJECTIVES))
    return [(SEARCHES[i % len(SEARCHES)], OBJECTIVES[(i + apart) % len(OBJECTIVES)]) for i in range(count)]


TOGETHER = [
    pytest.param(
        task,
        (f"search/{search}.yaml", f"objective/{objective}.yaml"),
        id=f"{task}-{search}-{objective}",
        marks=pytest.mark.exhaustive,  # plays whole episodes with the embedded policies: some 10 s each
    )
    for task, apart in {"textworld": 0, "alfworld": 3}.items()
    for search, objective in pairs(apart)
]
OTHERS = [
    pytest.param(task, overlays, id=f"{task}-{name}", marks=marks)
    for task in ("textworld", "alfworld")
    for name, overlays, marks in (
        ("tree-credit", ("search/beam.yaml", "objective/ppo.yaml", "credit/tree.yaml"), pytest.mark.exhaustive),
        ("demonstrations", ("search/expert.yaml", "objective/sft.yaml"), ()),
    )
]


@pytest.mark.parametrize(("task", "overlays"), [*TOGETHER, *OTHERS])
def test_trains(task: str, overlays: tuple[str, ...], empty_folder: Path):
    configs = [part for name in (f"{task}.yaml", *overlays) for part in ("--config", name)]
    cli = tsr(
        *("fit", *configs, *QUICK, "--trainer.max_epochs", "1", "--trainer.limit_val_batches", "0"),
        *("--data.updates.minibatches", "1", "--model.optimizer.warmup_updates", "0"),
    )
    metrics = cli.trainer.callback_metrics
    assert cli.trainer.global_step == 1
    assert metrics["train/policy_weight"] > 0
    assert metrics["train/grad_norm_policy"] > 1e-4
