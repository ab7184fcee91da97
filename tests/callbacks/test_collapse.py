"""A policy that collapses: detected, stopped, restored. Scripted rollouts, and a real run."""

import json
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import gymnasium
import pytest
import torch
from callback_support import Data, eval_result, outcomes, points, trainer, trajectory, turn
from commands import QUICK, TINY, tsr
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from processes import run_as_ranks

from callbacks import CollapseGuard, InstanceFilter
from callbacks.on_collapse import OnCollapse, Restore, Stop
from tsr_lightning.envs.single_turn import SingleTurnEnv
from tsr_lightning.errors import ConfigError
from tsr_lightning.rollout.protocol import EvalProtocol
from tsr_lightning.search.strategies import Beam
from tsr_lightning.trajectory import Group, Origin

INSTANCES = 16
SAMPLED = EvalProtocol("sampled", temperature=1.0, samples=4)


def good(epoch: int) -> list[Group]:
    return [outcomes(100 * epoch + i, 1, 1, 1, 0) for i in range(INSTANCES)]


def bad(epoch: int) -> list[Group]:
    return [outcomes(100 * epoch + i, 0, 0, 0, 0) for i in range(INSTANCES)]


def falls_in(*epochs: int) -> Callable[[int], list[Group]]:
    return lambda epoch: bad(epoch) if epoch in epochs else good(epoch)


def with_origin(origin: Origin, groups: list[Group]) -> list[Group]:
    return [Group(g.instance, tuple(replace(t, origin=origin) for t in g.trajectories)) for g in groups]


class Agent(LightningModule):
    """One weight that gains about a learning rate per update, by Adam with a schedule."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return -self.weight

    def validation_step(self, batch: Callable[[int], Any], batch_idx: int, dataloader_idx: int = 0) -> Any:
        return batch(self.trainer.global_step)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: min(1.0, (update + 1) / 3))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def fit(
    folder: Path,
    guard: CollapseGuard,
    data: Data,
    epochs: int,
    *others: Callback,
    ckpt_path: Path | None = None,
) -> tuple[Trainer, Agent, list[str]]:
    """The trainer, the agent and the guard's warnings."""
    agent, run = Agent(), trainer(folder, guard, *others, max_epochs=epochs, enable_checkpointing=bool(others))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.fit(agent, data, ckpt_path=ckpt_path)
    messages = [str(one.message) for one in caught]
    return run, agent, [each for each in messages if "collapsed" in each or "CollapseGuard" in each]


def test_one_warning_names_the_fallen_figure_and_its_best(tmp_path: Path):
    run, _, messages = fit(tmp_path, CollapseGuard(window=2), Data(rollout=falls_in(4, 5, 6, 7)), 8)
    assert run.current_epoch == 8
    [message] = messages
    # rollouts 4 and 5, without a success; 4 and 3 together still have half the best's successes
    assert message.startswith("the policy has collapsed after 6 epochs (rollout/sampled/success_rate 0.000 [0.000, 0.0")
    assert message.endswith("): training goes on")
    assert "its best 0.750 [0." in message
    assert points(tmp_path, "rollout/sampled/success_rate_of_best") == [
        *((epoch, 1.0) for epoch in range(4)),
        (4, 0.5),
        *((epoch, 0.0) for epoch in (5, 6, 7)),
    ]


def test_an_epoch_without_a_rollout_forgets_nothing(tmp_path: Path):
    """As where the environment failed for all of it."""
    _, _, [message] = fit(
        tmp_path, CollapseGuard(window=2), Data(rollout=lambda epoch: [] if epoch == 3 else falls_in(4, 5)(epoch)), 6
    )
    assert "its best 0.750 [0." in message


def test_a_second_collapse_after_a_recovery_is_warned_of_again(tmp_path: Path):
    _, _, messages = fit(tmp_path, CollapseGuard(window=2), Data(rollout=falls_in(2, 3, 6, 7)), 8)
    assert [message.partition("(")[0] for message in messages] == [
        f"the policy has collapsed after {epochs} epochs " for epochs in (4, 8)
    ]


def test_a_steady_policy_gives_no_warning(tmp_path: Path):
    assert fit(tmp_path, CollapseGuard(window=2), Data(rollout=good), 12)[2] == []


def test_a_fall_of_valid_actions_alone_is_a_collapse(tmp_path: Path):
    def half_valid(epoch: int) -> list[Group]:
        valid = epoch < 3
        return [
            Group(i, tuple(trajectory(i, m, turn(valid=valid), turn(), succeeded=True) for m in range(2)))
            for i in range(INSTANCES)
        ]

    _, _, [message] = fit(tmp_path, CollapseGuard(window=2), Data(rollout=half_valid), 5)
    assert "after 5 epochs (rollout/sampled/valid 0.500" in message
    assert fit(tmp_path / "off", CollapseGuard(window=2, valid_drop=None), Data(rollout=half_valid), 5)[2] == []


@pytest.mark.parametrize("origin", [Origin.SEARCHED, Origin.DEMONSTRATED])
def test_searched_and_demonstrated_trajectories_do_not_hide_a_collapse(origin: Origin, tmp_path: Path):
    def mixed(epoch: int) -> list[Group]:
        return [*falls_in(3, 4)(epoch), *with_origin(origin, good(epoch)), *with_origin(origin, good(epoch))]

    [message] = fit(tmp_path, CollapseGuard(window=2), Data(rollout=mixed), 5)[2]
    assert "success_rate 0.000" in message


def test_a_failing_search_is_no_collapse(tmp_path: Path):
    data = Data(rollout=lambda epoch: with_origin(Origin.SEARCHED, falls_in(3, 4)(epoch)))
    assert fit(tmp_path, CollapseGuard(window=2), data, 5)[2] == []


def evaluated(protocol: EvalProtocol) -> Data:
    """All succeed before three updates, none after."""
    return Data(
        loaders=[[lambda updates: eval_result(protocol, *(good if updates < 3 else bad)(0))]],
        rollout=lambda epoch: with_origin(Origin.SEARCHED, good(epoch)),
    )


def test_a_fall_in_evaluations_alone_is_a_collapse(tmp_path: Path):
    [message] = fit(tmp_path, CollapseGuard(), evaluated(SAMPLED), 4)[2]
    assert "after 3 epochs (val/sampled/success_rate 0.000" in message
    assert points(tmp_path, "val/sampled/success_rate_of_best") == [(0, 1), (1, 1), (2, 1), (3, 0), (4, 0)]


def test_a_protocol_with_search_is_not_watched(tmp_path: Path):
    assert fit(tmp_path, CollapseGuard(), evaluated(replace(SAMPLED, search=Beam(2, 2))), 4)[2] == []


def test_validate_records_nothing(tmp_path: Path):
    guard = CollapseGuard(Restore())
    trainer(tmp_path, guard).validate(Agent(), evaluated(SAMPLED), verbose=False)
    assert guard.state_dict()["histories"] == {}
    assert not list(tmp_path.rglob("*.ckpt"))


def test_stop_ends_the_training(tmp_path: Path):
    run, _, [message] = fit(tmp_path, CollapseGuard(Stop(), window=2), Data(rollout=falls_in(*range(3, 20))), 20)
    assert run.current_epoch == 5
    assert message.endswith("training stops")


class Weights(CollapseGuard):
    """Records the agent's state at the end of each rollout and epoch."""

    def __init__(self, on_collapse: OnCollapse, **settings: Any) -> None:
        super().__init__(on_collapse, **settings)
        self.at_rollout: list[float] = []
        self.at_end: list[tuple[float, float, float]] = []  # weight, Adam's count, learning rate

    def on_rollout_end(self, trainer: Trainer, agent: LightningModule, groups: list[Group]) -> list[Group]:
        self.at_rollout.append(float(agent.weight))  # type: ignore[arg-type]
        return super().on_rollout_end(trainer, agent, groups)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        [optimizer] = trainer.optimizers
        count = sum(float(state["step"]) for state in optimizer.state.values())  # of no weight or of one
        self.at_end.append((float(pl_module.weight), count, optimizer.param_groups[0]["lr"]))  # type: ignore[arg-type]


def solving(rates: Sequence[float]) -> Callable[[int], list[Group]]:
    """Rollouts in which this share of each epoch's episodes succeeds, spread evenly over the instances."""

    def rollout(epoch: int) -> list[Group]:
        successes = round(rates[epoch] * 4 * INSTANCES)
        return [outcomes(i, *(int(INSTANCES * turn + i < successes) for turn in range(4))) for i in range(INSTANCES)]

    return rollout


FALLING = (0.75, 0.75, 0.75, 0.8, 0.0, 0.0, 0.0, 0.75, 0.75, 0.75)


@pytest.mark.parametrize(
    ("rates", "best"),
    [((0.5, 0.47, 0.44, 0.41, 0.38), 0), ((0.05, 0.1, 0.2, 0.4, 0.9, 0.7, 0.6), 4)],
    ids=["decline", "rise and fall"],
)
def test_the_best_policy_is_that_of_the_best_rollout(rates: Sequence[float], best: int, tmp_path: Path):
    guard = CollapseGuard(Restore(), window=5)
    fit(tmp_path, guard, Data(rollout=solving(rates)), len(rates))
    assert guard.state_dict()["best"][1] == best


def test_restore_loads_weights_and_optimizer_of_the_best(tmp_path: Path):
    """The best is that of rollout 3, so after three updates."""
    guard = Weights(Restore(learning_rate_factor=0.5), window=4)
    run, _, [message] = fit(tmp_path, guard, Data(rollout=solving(FALLING)), 10)
    end = next(i for i, (_, count, _) in enumerate(guard.at_end) if count == 3 and i > 2)
    assert guard.at_end[end] == (guard.at_rollout[3], 3.0, pytest.approx(0.05))
    assert guard.at_end[end - 1][2] == pytest.approx(0.1)
    assert guard.at_rollout[end + 1] == guard.at_rollout[3]
    # Adam's step on equal gradients is the learning rate, whatever came before
    assert guard.at_end[end + 1][:2] == (pytest.approx(guard.at_rollout[3] + 0.05, rel=1e-4), 4.0)
    assert (run.current_epoch, run.global_step) == (10, 10)
    path = tmp_path / "logs" / "checkpoints" / "best_policy.ckpt"
    assert message.endswith(f"the policy after 3 epochs is restored from {path}, learning rates times 0.5 (1 of 3)")
    assert points(tmp_path, "rollout/restores") == [(end + 1, 1)]


def test_the_start_can_be_the_best(tmp_path: Path):
    data = Data(loaders=[[lambda updates: eval_result(SAMPLED, *(bad if updates else good)(0))]])
    guard = Weights(Restore())
    _, _, [message] = fit(tmp_path, guard, data, 1)
    assert guard.at_end == [(0.0, 0.0, pytest.approx(0.1 * 2 / 3 * 0.5))]  # the schedule's second of three, halved
    assert "the policy after 0 epochs is restored" in message


def test_a_restore_at_the_last_epoch_says_that_nothing_measured_the_policy(tmp_path: Path):
    guard = CollapseGuard(Restore(), window=2)
    _, _, [message] = fit(tmp_path, guard, Data(rollout=solving([0.75, 0.75, 0.0, 0.0])), 4)
    assert message.startswith("the policy has collapsed after 4 epochs")
    assert message.endswith(
        "(1 of 3); the final figures are those of the collapsed policy, and tsr validate measures the restored one"
    )


def test_after_the_last_restore_training_stops(tmp_path: Path):
    guard = CollapseGuard(Restore(at_most=2), window=2)
    run, _, messages = fit(tmp_path, guard, Data(rollout=falls_in(*range(3, 50))), 50)
    assert run.current_epoch < 20
    assert ["(1 of 2)" in messages[0], "(2 of 2)" in messages[1]] == [True, True]
    assert "training stops after 2 restores (Restore.at_most); the best policy is in" in messages[2]
    assert len(messages) == 3


def test_a_checkpoint_of_another_run_is_not_overwritten(tmp_path: Path):
    folder = tmp_path / "logs" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "best_policy.ckpt").write_text("another's")
    fit(tmp_path, CollapseGuard(Restore()), Data(rollout=good), 1)
    assert (folder / "best_policy.ckpt").read_text() == "another's"
    assert (folder / "best_policy-v1.ckpt").is_file()


def saving_every_epoch(folder: Path) -> ModelCheckpoint:
    return ModelCheckpoint(folder, "{epoch}", save_top_k=-1, save_on_train_epoch_end=True)


@pytest.mark.parametrize("stands_there", ["a later policy", "no checkpoint"])
def test_what_does_not_hold_the_best_policy_is_neither_restored_nor_overwritten(stands_there: str, tmp_path: Path):
    """As where a run went on, or another run wrote there, and an earlier checkpoint is resumed."""
    rollout = solving([0.5, 0.25, 0.25, 0.75, 0.25, 0.25])
    folder = tmp_path / "early"
    fit(tmp_path, CollapseGuard(Restore()), Data(rollout=rollout), 5, saving_every_epoch(folder))
    best = tmp_path / "logs" / "checkpoints" / "best_policy.ckpt"  # after three epochs by now
    if stands_there == "no checkpoint":
        best.write_text("a note")
    contents = best.read_bytes()
    guard = CollapseGuard(Restore())
    earlier = folder / "epoch=1.ckpt"
    _, _, [message] = fit(tmp_path, guard, Data(rollout=rollout), 3, saving_every_epoch(folder), ckpt_path=earlier)
    assert message.startswith(f"CollapseGuard: {best} is no checkpoint of the policy after 0 epochs, which was the be")
    assert guard.state_dict()["best"][:2] == [str(best.with_name("best_policy-v1.ckpt")), 2]
    assert best.read_bytes() == contents


def test_without_restore_nothing_is_written(tmp_path: Path):
    fit(tmp_path, CollapseGuard(), Data(rollout=good), 2)
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.parametrize("kept", ["last.ckpt", "best_policy.ckpt"])
def test_a_resumed_run_equals_the_uninterrupted(kept: str, tmp_path: Path):
    """From an epoch's end, and from the best policy, which is saved between a rollout and its updates."""
    whole = Weights(Restore(), window=4)
    _, agent, messages = fit(tmp_path / "whole", whole, Data(rollout=solving(FALLING)), 9)

    checkpoints = ModelCheckpoint(tmp_path / "kept", save_last=True, save_on_train_epoch_end=True)
    fit(tmp_path / "first", Weights(Restore(), window=4), Data(rollout=solving(FALLING)), 5, checkpoints)
    [path] = tmp_path.rglob(f"{'kept' if kept == 'last.ckpt' else 'first'}/**/{kept}")
    state = torch.load(path, weights_only=True)["callbacks"]["Weights"]
    assert set(state["histories"]) == {"rollout/sampled/success_rate", "rollout/sampled/valid"}

    resumed = Weights(Restore(), window=4)
    _, again, [message] = fit(tmp_path / "second", resumed, Data(rollout=solving(FALLING)), 9, ckpt_path=path)
    assert message.partition(" from ")[0] == messages[0].partition(" from ")[0]
    assert resumed.at_end == whole.at_end[-len(resumed.at_end) :]
    assert again.weight == agent.weight


def test_a_run_that_goes_on_in_its_folder_keeps_one_best_policy_wherever_the_folder_is(tmp_path: Path):
    rollout = solving([0.0, 0.0, 0.25, 0.25, 0.75, 0.75, 0.9, 1.0])  # so that best policies follow one another

    def keeping(folder: Path) -> ModelCheckpoint:
        return ModelCheckpoint(folder / "logs" / "checkpoints", save_last=True, save_on_train_epoch_end=True)

    fit(tmp_path / "first", CollapseGuard(Restore(), window=2), Data(rollout=rollout), 5, keeping(tmp_path / "first"))
    (tmp_path / "first").rename(tmp_path / "second")
    checkpoints, guard = tmp_path / "second" / "logs" / "checkpoints", CollapseGuard(Restore(), window=2)
    data, last = Data(rollout=rollout), checkpoints / "last.ckpt"
    _, _, messages = fit(tmp_path / "second", guard, data, 8, keeping(tmp_path / "second"), ckpt_path=last)
    assert messages == []
    assert [path.name for path in checkpoints.glob("best_policy*")] == ["best_policy.ckpt"]
    assert guard.state_dict()["best"][0] == str(checkpoints / "best_policy.ckpt")
    saved = torch.load(checkpoints / "best_policy.ckpt", weights_only=True)["callbacks"]["CollapseGuard"]["best"]
    assert saved == guard.state_dict()["best"]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda: CollapseGuard(success_drop=1.5),
            r"CollapseGuard\.success_drop is 1\.5: give a fraction between 0 and 1",
        ),
        (lambda: CollapseGuard(entropy_drop=0.0), r"CollapseGuard\.entropy_drop is 0\.0: give a fraction"),
        (lambda: CollapseGuard(entropy_rise=0.0), r"CollapseGuard\.entropy_rise is 0\.0: give a positive fraction"),
        (lambda: CollapseGuard(window=1), r"CollapseGuard\.window is 1: give 2 or more"),
        (lambda: Restore(at_most=0), r"Restore\.at_most is 0: give 1 or more"),
        (lambda: Restore(learning_rate_factor=0.0), r"Restore\.learning_rate_factor is 0\.0: give more than 0"),
    ],
)
def test_bad_arguments_are_refused(build: Callable[[], object], words: str):
    with pytest.raises(ConfigError, match=words):
        build()


def test_a_guard_after_the_filter_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"CollapseGuard after InstanceFilter.*list CollapseGuard first"):
        trainer(tmp_path, InstanceFilter(), CollapseGuard()).fit(Agent(), Data(rollout=good))


def test_restore_without_success_drop_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"CollapseGuard.success_drop is None.*give success_drop"):
        trainer(tmp_path, CollapseGuard(Restore(), success_drop=None)).fit(Agent(), Data(rollout=good))


def test_restore_is_refused_without_sampled_trajectories(empty_folder: Path):
    guard = '[{"class_path": "callbacks.CollapseGuard", "init_args": {"on_collapse": "Restore"}}]'
    with pytest.raises(ConfigError, match="no success rate tells which policy is the best"):
        tsr(
            *("fit", "--config", "sokoban.yaml", "--config", "search/beam.yaml", "--config", "credit/imitate.yaml"),
            *(*QUICK, "--data.evaluations", "[]", "--trainer.callbacks", guard),
        )


def test_restore_is_refused_where_rollouts_are_of_older_policies_and_nothing_is_evaluated(empty_folder: Path):
    guard = '[{"class_path": "callbacks.CollapseGuard", "init_args": {"on_collapse": "Restore"}}]'
    with pytest.raises(
        ConfigError, match=r"no success rate .*under data\.staleness and data\.replay, samples other policies"
    ):
        tsr(
            *("fit", "--config", "sokoban.yaml", "--config", "search/sample.yaml", *QUICK, "--data.staleness", "1"),
            *("--data.evaluations", "[]", "--trainer.callbacks", guard),
        )


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's, with a new torch
def test_a_protocol_that_a_resumed_run_has_no_longer_is_forgotten(empty_folder: Path):
    guard = {"class_path": "callbacks.CollapseGuard", "init_args": {"on_collapse": "Restore"}}
    last = {"class_path": "ModelCheckpoint", "init_args": {"save_last": True}}
    run = (
        *(
            "fit",
            "--config",
            "frozen_lake.yaml",
            *QUICK,
            "--model.policy.model",
            TINY,
            "--data.plan.init_args.count",
            "2",
        ),
        *("--trainer.callbacks", json.dumps([guard, last]), "--trainer.run_folder", "run", "--data.min_valid", "0"),
        *("--trainer.check_val_every_n_epoch", "1", "--data.evaluations"),
    )
    tsr(*run, '[{"name": "first", "samples": 2}]')
    cli = tsr(*run, '[{"name": "second", "samples": 2}]', "--trainer.max_epochs", "3", "--ckpt_path", "last")
    [watch] = [each for each in cli.trainer.callbacks if isinstance(each, CollapseGuard)]
    state = watch.state_dict()
    assert state["protocol"] == "second"
    assert {name.rpartition("/")[0] for name in state["histories"]} == {"rollout/sampled", "val/second"}
    assert state["best"][1:3] == [3, True]  # the first to be measured by it


def given(value: float) -> SingleTurnEnv:
    """Any response earns the value."""
    return SingleTurnEnv([{"prompt": f"Question {i}"} for i in range(200)], lambda response, row: value)


gymnasium.register("Given-v0", given)


def test_harder_levels_of_a_curriculum_are_no_collapse(tiny_model, empty_folder: Path, recwarn):
    """All succeed for three epochs, and then none, on other levels."""
    easy = {"env": f"{__name__}:Given-v0", "env_kwargs": {"value": 1.0}, "name": "easy", "last_epoch": 2}
    hard = {"env": f"{__name__}:Given-v0", "env_kwargs": {"value": 0.0}, "name": "hard", "first_epoch": 3}
    guard = '[{"class_path": "callbacks.CollapseGuard", "init_args": {"window": 2}}]'
    cli = tsr(
        *("fit", "--config", "sokoban.yaml", *QUICK, "--model.policy.model", tiny_model("sokoban")),
        *("--data.env", json.dumps([easy, hard]), "--data.held_out.instances", "2", "--data.evaluations", "[]"),
        *("--data.instances", "16", "--data.plan.init_args.count", "2", "--trainer.max_epochs", "6"),
        *("--data.min_valid", "0", "--trainer.callbacks", guard),
    )
    assert [str(one.message) for one in recwarn if "collapsed" in str(one.message)] == []
    [watch] = [each for each in cli.trainer.callbacks if isinstance(each, CollapseGuard)]
    state = watch.state_dict()
    assert state["envs"] == [1]
    assert state["histories"]["rollout/sampled/success_rate"]["best"]["value"] == 0.0  # of the levels that are played


class Recorder(Callback):
    """Records each rollout's rate of valid turns, and each rank's final state."""

    def __init__(self) -> None:
        self.valid: list[float] = []

    def on_rollout_end(self, trainer: Trainer, agent: LightningModule, groups: list[Group]) -> list[Group]:
        self.valid.append(fmean(turn.valid for group in groups for t in group.trajectories for turn in t.turns))
        return groups

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        guard = next(callback for callback in trainer.callbacks if isinstance(callback, CollapseGuard))
        [optimizer] = trainer.optimizers
        rates = [group["lr"] for group in optimizer.param_groups]
        state = {"guard": guard.state_dict(), "weights": pl_module.state_dict(), "rates": rates, "valid": self.valid}
        torch.save(state, f"rank{trainer.global_rank}.pt")


# The first updates destroy the policy; after a restore updates change next to nothing.
RESTORE = '{"class_path": "Restore", "init_args": {"learning_rate_factor": 1e-5}}'
GUARD = f'{{"class_path": "callbacks.CollapseGuard", "init_args": {{"on_collapse": {RESTORE}, "window": 2}}}}'
DESTROYED = (
    *("fit", "--config", "sokoban.yaml", *QUICK, "--trainer.max_epochs", "3", "--data.instances", "4"),
    *("--data.plan.init_args.count", "4", "--data.evaluations", "[]", "--trainer.enable_checkpointing", "false"),
    *("--model.optimizer.learning_rate", "0.5", "--model.optimizer.warmup_updates", "0"),
    *("--trainer.callbacks", f'[{GUARD}, {{"class_path": "{__name__}.Recorder"}}]'),
)


def test_a_destroyed_policy_is_restored(empty_folder: Path):
    with pytest.warns(UserWarning, match="the policy has collapsed after 2 epochs .*rollout/sampled/valid 0.*1 of 3"):
        tsr(*DESTROYED)
    record = torch.load("rank0.pt", weights_only=True)
    before, destroyed, after = record["valid"]
    assert min(before, after) > 0.9
    assert destroyed < 0.1
    assert record["rates"] == [pytest.approx(0.5e-5)]
    assert set(record["guard"]["histories"]) >= {"rollout/sampled/success_rate", "rollout/sampled/valid"}
    assert record["guard"]["entropy"]["now"] is not None
    [path] = empty_folder.rglob("best_policy.ckpt")
    start = torch.load(path, weights_only=True)["state_dict"]
    assert max(float((record["weights"][name] - start[name]).abs().max()) for name in start) < 1e-4


@pytest.mark.exhaustive
def test_ranks_restore_alike(tmp_path: Path):
    args = (*DESTROYED, "--trainer.devices", "2", "--trainer.strategy", "ddp")
    printed = run_as_ranks(args, tmp_path, 120, imports=[Path(__file__).parent])
    assert len(re.findall(r"the policy has collapsed after \d+ epochs", "".join(printed))) == 1
    one, other = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    assert one["guard"] == other["guard"]
    assert one["guard"]["restores"] == 1
    assert one["guard"]["entropy"]["recent"] != []
    assert one["rates"] == other["rates"] == [pytest.approx(0.5e-5)]
    for name, weight in one["weights"].items():
        assert torch.equal(weight, other["weights"][name]), name
