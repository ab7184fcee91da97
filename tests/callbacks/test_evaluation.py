"""Evaluation in real runs of Lightning's Trainer on hand-made episodes: figures, abscissa, state, files and output."""

import json
import re
from math import isfinite
from pathlib import Path

import pytest
import torch
from callback_support import (
    GREEDY,
    SAMPLED,
    Agent,
    Data,
    Loader,
    eval_result,
    events,
    fixed,
    outcomes,
    points,
    trainer,
    trajectory,
    turn,
)
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from processes import CONTEXT

from callbacks import Evaluation
from tsr_lightning.costs import Costs
from tsr_lightning.errors import ConfigError
from tsr_lightning.rollout.protocol import EvalProtocol
from tsr_lightning.search.strategies import BestOfN
from tsr_lightning.statistics import paired_difference, wilson
from tsr_lightning.trajectory import Group

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # Lightning's, with a new torch
]


def improving(updates):
    """Instances 1 to 4 in the first of two batches: two succeed before training, three after it."""
    first = [outcomes(1, 0), outcomes(2, 0), outcomes(3, 1), outcomes(4, 1)]
    later = [outcomes(1, 1), outcomes(2, 1), outcomes(3, 1), outcomes(4, 0)]
    return eval_result(SAMPLED, *(later if updates else first), tokens=100, steps=10, seconds=1.5)


def unchanged(updates):
    return eval_result(SAMPLED, outcomes(5, 1), outcomes(6, 0), tokens=20, steps=5, seconds=0.5)


def greedy(updates):
    return eval_result(GREEDY, *(outcomes(i, int(i <= 3)) for i in range(1, 7)), tokens=60, steps=6, seconds=1.0)


LOADERS = [[improving, unchanged], [greedy]]


def report(folder, name="evaluation.json"):
    return json.loads((folder / "logs" / name).read_text())


class Telling(Callback):
    """Knows a figure of the training from the first update on."""

    def __init__(self) -> None:
        self.updates = 0

    def on_train_batch_end(self, *args: object) -> None:
        self.updates += 1

    def of_training(self) -> dict[str, float]:
        return {"updates": float(self.updates)} if self.updates else {}


def test_the_history_keeps_what_callbacks_tell_of_the_training(tmp_path):
    trainer(tmp_path, Evaluation(), Telling(), max_epochs=2).fit(Agent(), Data(LOADERS))
    [file] = tmp_path.rglob("evaluation.history.json")
    told = [one["figures"]["sampled"].get("updates") for one in json.loads(file.read_text())["evaluations"]]
    assert told[0] is None
    assert 0 < told[1] < told[2]
    assert "updates" not in report(tmp_path)["evaluations"]["sampled"]["after"]["figures"]


def test_a_run_is_measured_before_and_after(tmp_path, capsys):
    waves = [Costs(tokens_generated=300, env_steps=30, waves=1), Costs(tokens_generated=1000, env_steps=50, waves=2)]
    run = trainer(tmp_path, Evaluation(), max_epochs=3)
    run.fit(Agent(), Data(LOADERS, waves=waves))

    # Before 3 of 6, after 4 of 6; the start at abscissa 0, the validation after the first epoch at 1
    rates = points(tmp_path, "val/sampled/success_rate")
    assert points(tmp_path, "Held-out success/sampled") == rates
    assert points(tmp_path, "Held-out return/sampled") == points(tmp_path, "val/sampled/return")
    assert "custom_scalars__config__" in events(tmp_path).Tags()["tensors"]
    assert rates == [(0, 0.5), *((epochs, pytest.approx(2 / 3)) for epochs in (1, 2, 3))]
    assert points(tmp_path, "val/greedy/success_rate") == [(i, 0.5) for i in range(4)]
    assert points(tmp_path, "val/sampled/tokens_generated") == [(i, 120.0) for i in range(4)]
    assert points(tmp_path, "val/sampled/seconds") == [(i, 2.0) for i in range(4)]
    assert run.callback_metrics["val/sampled/success_rate"].item() == pytest.approx(2 / 3)

    found = report(tmp_path)
    sampled = found["evaluations"]["sampled"]
    assert sampled["before"]["protocol"] == {"temperature": 1.0, "samples": 1, "search": None}
    assert [row["successes"] for row in sampled["before"]["instances"]] == [0, 0, 1, 1, 1, 0]
    assert [row["instance"] for row in sampled["after"]["instances"]] == [1, 2, 3, 4, 5, 6]
    assert sampled["before"]["epochs"] == sampled["before"]["updates"] == 0
    assert sampled["after"]["epochs"] == sampled["after"]["updates"] == 3
    assert sampled["after"]["success_interval"] == pytest.approx(wilson(4 / 6, 6)[1:3])
    # Changes 1, 1, 0, −1, 0, 0
    assert sampled["difference"]["value"] == pytest.approx(1 / 6)
    assert sampled["difference"]["instances"] == 6
    before = {1: (0, 1), 2: (0, 1), 3: (1, 1), 4: (1, 1), 5: (1, 1), 6: (0, 1)}
    after = {1: (1, 1), 2: (1, 1), 3: (1, 1), 4: (0, 1), 5: (1, 1), 6: (0, 1)}
    assert sampled["difference"]["interval"] == pytest.approx(paired_difference(before, after).estimate[1:3])
    assert found["run"]["tokens_generated"] == 3000  # the last of each rollout's two running totals
    assert found["run"]["env_steps"] == 150
    assert found["run"]["epochs"] == found["run"]["updates"] == 3
    assert found["run"]["evaluation_seconds"] == pytest.approx(4 * (2.0 + 1.0))

    output = capsys.readouterr().out
    assert "sampled: temperature 1, 1 sample per instance, no search, 6 held-out instances" in output
    assert "greedy: greedy, 1 sample per instance, no search, 6 held-out instances" in output
    assert "before" in output
    assert "after 3 epochs" in output
    assert "3 epochs, 3 updates" in output
    assert "3,000 tokens generated" in output
    low, high = sampled["difference"]["interval"]
    assert re.search(r"success rate +0\.500 \[0\.188, 0\.812\] +0\.667 \[0\.300, 0\.903\] +\+0\.167 \[", output)
    assert f"+0.167 [{low:+.3f}, {high:+.3f}]" in output
    assert "pass@1" not in output  # equal to the success rate


def test_every_figure_by_hand(tmp_path):
    protocol = EvalProtocol("both", temperature=0.5, samples=4)
    one = [
        trajectory(
            7,
            0,
            turn(-0.1, valid=False, effective=False, tokens=5, logprob=-0.5),
            turn(1.0, tokens=2, logprob=-0.25),
            succeeded=True,
        ),
        trajectory(7, 1, turn(-0.1, tokens=1), turn(-0.1, effective=False, tokens=1), turn(0.0, tokens=3)),
        trajectory(7, 2, turn(1.0, tokens=4), succeeded=True),
        trajectory(7, 3, turn(0.0, tokens=4)),
    ]
    batches = [
        fixed(eval_result(protocol, Group(7, tuple(one)))),
        fixed(eval_result(protocol, outcomes(8, 0, 0, 0, 1))),
    ]
    run = trainer(tmp_path, Evaluation(), max_epochs=0)
    run.validate(Agent(), Data([batches]), verbose=False)

    figures = {name.removeprefix("val/both/"): value.item() for name, value in run.callback_metrics.items()}
    turns = 2 + 3 + 1 + 1 + 4
    tokens = (5 + 2) + (1 + 1 + 3) + 4 + 4 + 4 * 3
    assert figures == pytest.approx(
        {
            "success_rate": (2 / 4 + 1 / 4) / 2,
            "pass@1": 3 / 8,
            "pass@2": ((1 - 1 / 6) + (1 - 3 / 6)) / 2,  # C(2,2)/C(4,2) and C(3,2)/C(4,2)
            "pass@4": 1.0,
            "return": (0.9 - 0.2 + 1.0) / 8,
            "turns": turns / 8,
            "valid_actions": (turns - 1) / turns,
            "effective_actions": (turns - 2) / turns,
            "response_tokens_per_turn": tokens / turns,
            "response_tokens_per_episode": tokens / 8,
            "entropy_per_token": (5 * 0.5 + 2 * 0.25) / tokens,
            "entropy_per_turn": (5 * 0.5 + 2 * 0.25) / turns,
            "tokens_generated": 0.0,
            "env_steps": 0.0,
            "seconds": 0.0,
        }
    )


@pytest.mark.parametrize("protocol", [GREEDY, EvalProtocol("searched", search=BestOfN(n=8))])
def test_what_is_not_a_plain_sample_has_no_entropy(protocol, tmp_path):
    run = trainer(tmp_path, Evaluation())
    run.validate(Agent(), Data([[fixed(eval_result(protocol, outcomes(1, 1)))]]))
    assert [name for name in run.callback_metrics if "entropy" in name] == []


FIVE = EvalProtocol("five", samples=5)


def five(updates):
    """Five tries each of instances 1 to 5; the start never solves 1, 2 and 3."""
    first = {1: (0,) * 5, 2: (0,) * 5, 3: (0,) * 5, 4: (0, 0, 1, 0, 0), 5: (1,) * 5}
    later = {1: (0, 1, 0, 0, 0), 2: (1, 1, 0, 0, 1), 3: (0,) * 5, 4: (0,) * 5, 5: (1,) * 5}
    return eval_result(FIVE, *(outcomes(instance, *won) for instance, won in (later if updates else first).items()))


NEWLY_SOLVED = {"never_solved_at_start": 3, "newly_solved": 2, "newly_solved_share": 2 / 3, "no_longer_solved": 1}


def newly_solved(figures):
    return {name: value for name, value in figures.items() if "solved" in name}


def test_newly_solved_are_the_instances_that_the_start_never_solved(tmp_path, capsys):
    run = trainer(tmp_path, Evaluation(), max_epochs=2)
    run.fit(Agent(), Data([[five]]))
    for name, value in NEWLY_SOLVED.items():
        assert points(tmp_path, f"val/five/{name}") == [(1, pytest.approx(value)), (2, pytest.approx(value))]
    found = report(tmp_path)["evaluations"]["five"]
    assert newly_solved(found["before"]["figures"]) == {}
    assert newly_solved(found["after"]["figures"]) == pytest.approx(NEWLY_SOLVED)
    output = capsys.readouterr().out
    assert re.search(r"instances never solved at the start +3\n", output)
    assert re.search(r"of these solved now +2\n", output)
    assert re.search(r"instances solved at the start alone +1\n", output)


def test_a_resumed_run_and_validate_know_what_the_start_solved(tmp_path):
    checkpoints = ModelCheckpoint(tmp_path / "kept", "{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    trainer(tmp_path / "first", Evaluation(), checkpoints, enable_checkpointing=True).fit(Agent(), Data([[five]]))

    path = checkpoints.best_model_path
    run = trainer(tmp_path / "second", Evaluation(), checkpoints, max_epochs=3, enable_checkpointing=True)
    with pytest.warns(UserWarning, match="exists and is not empty"):
        run.fit(Agent(), Data([[five]]), ckpt_path=path)
    assert newly_solved(report(tmp_path / "second")["evaluations"]["five"]["after"]["figures"]) == pytest.approx(
        NEWLY_SOLVED
    )
    run = trainer(tmp_path / "third", Evaluation(), checkpoints, enable_checkpointing=True)
    run.validate(Agent(), Data([[five]]), ckpt_path=path)
    found = report(tmp_path / "third", "evaluation.validate.json")["evaluations"]["five"]
    assert newly_solved(found["after"]["figures"]) == pytest.approx(NEWLY_SOLVED)


def test_nothing_is_newly_solved_without_a_comparable_start(tmp_path, capsys):
    def fewer(updates):
        return five(updates) if updates else eval_result(EvalProtocol("five", samples=1), outcomes(1, 0))

    def others(updates):
        return eval_result(SAMPLED, outcomes(9 if updates else 8, 1))

    trainer(tmp_path / "unmeasured", Evaluation(), num_sanity_val_steps=0).fit(Agent(), Data([[five]]))
    assert "the start was not measured, so nothing is known to be newly solved" in capsys.readouterr().out
    trainer(tmp_path / "other", Evaluation()).fit(Agent(), Data([[fewer], [others]]))
    for folder in ("unmeasured", "other"):
        for one in report(tmp_path / folder)["evaluations"].values():
            assert newly_solved(one["after"]["figures"]) == {}


BEAM = EvalProtocol("beam", samples=1, search=BestOfN(n=8))


def test_the_search_gap_is_over_the_same_instances_at_the_same_temperature(tmp_path):
    def plain(name, temperature, *groups):
        return [fixed(eval_result(EvalProtocol(name, temperature, samples=2), *groups))]

    searched = [Group(i, (trajectory(i, 0, turn(value), succeeded=value > 1),)) for i, value in ((1, 3.0), (2, 1.0))]
    data = Data(
        [
            plain("greedy", 0.0, outcomes(1, 1, 1), outcomes(2, 1, 1)),
            plain("others", 1.0, outcomes(1, 1, 1), outcomes(3, 1, 1)),
            [fixed(eval_result(BEAM, *searched))],
            plain("sampled", 1.0, outcomes(1, 0, 0), outcomes(2, 0, 1)),
            plain("again", 1.0, outcomes(1, 1, 1), outcomes(2, 1, 1)),
        ]
    )
    run = trainer(tmp_path, Evaluation())
    run.validate(Agent(), data)
    gaps = {name: value.item() for name, value in run.callback_metrics.items() if "search_gap" in name}
    assert gaps == pytest.approx(
        {"val/beam/search_gap/success_rate": 1 / 2 - 1 / 4, "val/beam/search_gap/return": (3.0 + 1.0) / 2 - 0.0}
    )


def test_a_protocol_that_a_validation_leaves_out_keeps_its_figures(tmp_path, capsys):
    """At the start it is measured, and after two of three epochs."""

    class Due(Data):
        def val_dataloader(self):
            return [Loader([improving]), Sometimes([greedy], self)]

    class Sometimes(Loader):
        def __init__(self, batches, data):
            super().__init__(batches)
            self.data = data

        def __iter__(self):
            return iter(self.batches if len(self.data.kept) in due else [])

    due = (0, 2)
    trainer(tmp_path / "twice", Evaluation(), max_epochs=3).fit(Agent(), Due())
    assert [epochs for epochs, _ in points(tmp_path / "twice", "val/greedy/success_rate")] == [0, 2]
    found = report(tmp_path / "twice")["evaluations"]
    assert (found["sampled"]["after"]["epochs"], found["greedy"]["after"]["epochs"]) == (3, 2)
    assert found["greedy"]["difference"]["value"] == 0.0
    assert "after 2 epochs" in capsys.readouterr().out

    due = (0,)
    trainer(tmp_path / "once", Evaluation(), max_epochs=2).fit(Agent(), Due())
    assert report(tmp_path / "once")["evaluations"]["greedy"]["after"] is None
    assert "not measured after training: greedy (tsr validate does that)" in capsys.readouterr().out


def test_a_validation_without_a_protocol_changes_nothing(tmp_path):
    class Never(Loader):
        def __iter__(self):
            return iter(())

    class Nothing(Data):
        def val_dataloader(self):
            return [Never([improving])]

    trainer(tmp_path, Evaluation()).fit(Agent(), Nothing())
    assert report(tmp_path)["evaluations"] == {}
    assert report(tmp_path)["run"]["updates"] == 1


def test_validate_without_an_episode_prints_no_figures_of_the_checkpoint(tmp_path, capsys):
    checkpoints = ModelCheckpoint(tmp_path / "kept", "{epoch}")
    trainer(tmp_path, Evaluation(), checkpoints, enable_checkpointing=True).fit(Agent(), Data(LOADERS))
    capsys.readouterr()
    run = trainer(tmp_path, Evaluation(), checkpoints, enable_checkpointing=True, limit_val_batches=0)
    run.validate(Agent(), Data(LOADERS), ckpt_path=checkpoints.best_model_path)
    output = capsys.readouterr().out
    assert "Evaluation: nothing was measured" in output
    assert "success rate" not in output


def test_pass_at_k_is_over_the_instances_with_as_many_episodes(tmp_path):
    protocol = EvalProtocol("pass", samples=4)
    batches = [fixed(eval_result(protocol, outcomes(1, 1, 0, 0), outcomes(2, 0, 0, 0, 1)))]  # one of the first is lost
    run = trainer(tmp_path, Evaluation(pass_at=[3, 4, 5]))
    run.validate(Agent(), Data([batches]))
    logged = {name for name in run.callback_metrics if "pass@" in name}
    assert logged == {"val/pass/pass@3", "val/pass/pass@4"}
    assert run.callback_metrics["val/pass/pass@3"].item() == pytest.approx((1 + (1 - 1 / 4)) / 2)
    assert run.callback_metrics["val/pass/pass@4"].item() == 1.0


def test_model_checkpoint_can_monitor_a_figure(tmp_path):
    checkpoints = ModelCheckpoint(
        tmp_path / "kept", "{epoch:03d}", monitor="val/sampled/success_rate", mode="max", auto_insert_metric_name=False
    )
    rates = [0, 3, 6, 4]  # of six, after so many updates

    def batch(updates):
        return eval_result(SAMPLED, *(outcomes(i, int(i < rates[updates])) for i in range(6)))

    trainer(tmp_path, Evaluation(), checkpoints, max_epochs=3, enable_checkpointing=True).fit(Agent(), Data([[batch]]))
    assert checkpoints.best_model_score.item() == 1.0
    assert Path(checkpoints.best_model_path) == tmp_path / "kept" / "001.ckpt"


@pytest.mark.parametrize(
    ("at", "abscissas", "rollouts"),
    [
        ("validation", [3, 4, 5], 6),  # Lightning enters the closed epoch again, so it is rolled out twice
        ("train epoch", [2, 3, 4, 5], 5),  # and here it does run a sanity check
    ],
)
def test_a_resumed_run_keeps_its_start_and_costs(tmp_path, capsys, at, abscissas, rollouts):
    """From a checkpoint of either kind, read as Lightning reads it: with `weights_only`."""
    wave = [Costs(tokens_generated=100, env_steps=10, waves=1)]
    checkpoints = ModelCheckpoint(tmp_path / "kept", "{epoch}", save_on_train_epoch_end=at == "train epoch")
    trainer(tmp_path / "first", Evaluation(), checkpoints, max_epochs=2, enable_checkpointing=True).fit(
        Agent(), Data(LOADERS, waves=wave)
    )
    first = report(tmp_path / "first")
    capsys.readouterr()

    torch.load(checkpoints.best_model_path, weights_only=True)
    run = trainer(tmp_path / "second", Evaluation(), checkpoints, max_epochs=5, enable_checkpointing=True)
    with pytest.warns(UserWarning, match="exists and is not empty"):
        run.fit(Agent(), Data(LOADERS, waves=wave), ckpt_path=checkpoints.best_model_path)
    second = report(tmp_path / "second")
    assert second["evaluations"]["sampled"]["before"] == first["evaluations"]["sampled"]["before"]
    assert second["evaluations"]["sampled"]["difference"]["value"] == pytest.approx(1 / 6)
    assert second["evaluations"]["sampled"]["after"]["updates"] == 5
    assert [epochs for epochs, _ in points(tmp_path / "second", "val/sampled/success_rate")] == abscissas
    assert second["run"]["tokens_generated"] == 100 * rollouts
    assert second["run"]["env_steps"] == 10 * rollouts
    assert second["run"]["seconds"] > first["run"]["seconds"]
    assert second["run"]["evaluation_seconds"] == pytest.approx((3 + len(abscissas)) * (2.0 + 1.0))
    assert "after 5 epochs" in capsys.readouterr().out


def test_validate_prints_figures_beside_their_protocol(tmp_path, capsys):
    searched = EvalProtocol("searched", temperature=0.5, samples=2, search=BestOfN(n=8))
    agent, evaluation = Agent(), Evaluation()
    data = Data([*LOADERS, [fixed(eval_result(searched, outcomes(1, 1, 0)))]])
    checkpoints = ModelCheckpoint(tmp_path / "kept", "{epoch}")
    trainer(tmp_path, evaluation, checkpoints, max_epochs=2, enable_checkpointing=True).fit(agent, data)
    fitted = report(tmp_path)
    capsys.readouterr()

    run = trainer(tmp_path, evaluation, checkpoints, enable_checkpointing=True)
    run.validate(agent, data, ckpt_path=checkpoints.best_model_path)
    output = capsys.readouterr().out
    assert "policy after 2 updates" in output
    assert "sampled: temperature 1, 1 sample per instance, no search, 6 held-out instances" in output
    assert "searched: temperature 0.5, 2 samples per instance, search BestOfN(n=8, commit='keep'), 1 held-out" in output
    assert re.search(r"success rate +0\.667 \[0\.300, 0\.903\]", output)
    assert re.search(r"pass@2 +1\.000", output)
    assert "Validate metric" not in output  # one table, not Lightning's as well
    assert report(tmp_path) == fitted  # the run's own figures are not written over
    validated = report(tmp_path, "evaluation.validate.json")
    assert validated["run"] is None
    assert validated["evaluations"]["sampled"]["after"]["epochs"] == 2
    assert validated["evaluations"]["sampled"]["before"] is None


def test_differences_are_paired_by_instance_not_by_position(tmp_path):
    def batch(updates):
        groups = [outcomes(2**64 - 1, 0), outcomes(3, 1), outcomes(4, 1 if updates else 0)]
        return eval_result(SAMPLED, *(groups[1:] if updates else groups))  # the largest seed is eval_result once only

    trainer(tmp_path, Evaluation()).fit(Agent(), Data([[batch]]))
    found = report(tmp_path)["evaluations"]["sampled"]
    assert [row["instance"] for row in found["before"]["instances"]] == [3, 4, 2**64 - 1]
    assert found["difference"]["instances"] == 2
    assert found["difference"]["value"] == 0.5  # 3 as before, 4 gained


def test_incomparable_measurements_have_no_difference_and_a_note(tmp_path, capsys):
    def warmer(updates):
        return eval_result(EvalProtocol("sampled", temperature=0.5 if updates else 1.0), outcomes(1, 1))

    def others(updates):
        return eval_result(GREEDY, outcomes(9 if updates else 8, 1))

    trainer(tmp_path, Evaluation()).fit(Agent(), Data([[warmer], [others]]))
    output = capsys.readouterr().out
    assert "before was measured under another protocol (temperature 1, 1 sample per instance, no search)" in output
    assert "before and after have no instance in common" in output
    assert "+0.000" not in output  # of the return, the turns and all others
    assert report(tmp_path)["evaluations"]["sampled"]["difference"] is None


def test_without_a_start_only_the_end_is_printed(tmp_path, capsys):
    trainer(tmp_path, Evaluation(), num_sanity_val_steps=0).fit(Agent(), Data(LOADERS))
    output = capsys.readouterr().out
    assert "the start was not measured" in output
    assert "after 1 epoch" in output
    assert report(tmp_path)["evaluations"]["sampled"]["before"] is None


def test_without_an_end_only_the_start_is_printed(tmp_path, capsys):
    trainer(tmp_path, Evaluation(), check_val_every_n_epoch=5).fit(Agent(), Data(LOADERS))
    output = capsys.readouterr().out
    assert "no validation ran after training" in output
    assert report(tmp_path)["evaluations"]["sampled"]["after"] is None


def test_an_empty_validation_prints_one_sentence(tmp_path, capsys):
    for number, settings in enumerate([{"limit_val_batches": 0}, {}]):
        folder = tmp_path / str(number)
        trainer(folder, Evaluation(), **settings).fit(Agent(), Data([[fixed(eval_result(SAMPLED))]]))
        output = capsys.readouterr().out
        assert output.startswith("Evaluation: nothing was measured, since no held-out episode was run")
        assert "nan" not in output.lower()
        tags = events(folder).Tags()["scalars"] if (folder / "logs").exists() else []
        assert not [tag for tag in tags if tag.startswith("val/")]


def test_an_episode_without_a_turn_gives_no_nan(tmp_path):
    whole = Group(1, (trajectory(1),))
    turnless = Group(1, tuple(type(t)(1, 0, "sample", False, (), False, True, (), "") for t in whole.trajectories))
    run = trainer(tmp_path, Evaluation())
    run.validate(Agent(), Data([[fixed(eval_result(SAMPLED, turnless))]]))
    assert all(isfinite(value.item()) for value in run.callback_metrics.values())


def test_an_instance_that_a_sampler_repeats_counts_once(tmp_path):
    batches = [
        eval_result(SAMPLED, outcomes(1, 1), outcomes(2, 0), outcomes(3, 0)),
        eval_result(SAMPLED, outcomes(1, 1)),
    ]
    run = trainer(tmp_path, Evaluation())
    run.validate(Agent(), Data([[fixed(batch) for batch in batches]]))
    assert run.callback_metrics["val/sampled/success_rate"].item() == pytest.approx(1 / 3)


def test_a_second_fit_in_one_process_starts_anew(tmp_path):
    evaluation = Evaluation()
    wave = [Costs(tokens_generated=100, waves=1)]
    for folder in [tmp_path / "first", tmp_path / "second"]:
        trainer(folder, evaluation).fit(Agent(), Data(LOADERS, waves=wave))
        assert report(folder)["run"]["tokens_generated"] == 100
        assert report(folder)["run"]["evaluation_seconds"] == pytest.approx(6.0)


def test_without_a_logger_nothing_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer(tmp_path, Evaluation(), logger=False).fit(Agent(), Data(LOADERS))
    assert "after 1 epoch" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_two_evaluations_have_states_of_their_own(tmp_path):
    run = trainer(tmp_path, Evaluation(), Evaluation(pass_at=[1], name="other"), max_epochs=1)
    run.fit(Agent(), Data(LOADERS))
    assert report(tmp_path)["evaluations"] == report(tmp_path, "other.json")["evaluations"]
    keys = {callback.state_key for callback in run.callbacks}
    assert len(keys) == len(run.callbacks)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pass_at": [0, 2]}, r"Evaluation.pass_at is \[0, 2\]: give"),
        ({"name": "a/b"}, "Evaluation.name is 'a/b': give"),
        ({"name": ""}, "Evaluation.name is '': give"),
    ],
)
def test_bad_arguments_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Evaluation(**settings)


def test_two_protocols_of_one_name_are_refused(tmp_path):
    other = EvalProtocol("sampled", temperature=0.3)
    data = Data([[unchanged], [fixed(eval_result(other, outcomes(1, 1)))]])
    with pytest.raises(ConfigError, match=r"data\.evaluations has two protocols named 'sampled'"):
        trainer(tmp_path, Evaluation()).validate(Agent(), data)


def test_an_output_that_is_no_eval_result_is_refused(tmp_path):
    with pytest.raises(TypeError, match="an EvalResult, not dict"):
        trainer(tmp_path, Evaluation()).validate(Agent(), Data([[fixed({"loss": 1.0})]]))


SEVENTH = fixed(eval_result(SAMPLED, outcomes(7, 1), seconds=3.0))
EIGHTH = fixed(eval_result(SAMPLED, outcomes(8, 0), tokens=7, seconds=1.0))


class Ranked(Data):
    """Rank 0 has three batches of the first evaluation and none of the second, rank 1 one of each."""

    def prepare_data(self):
        self.allow_zero_length_dataloader_with_multiple_devices = True

    def val_dataloader(self):
        if self.trainer.global_rank == 0:
            return [Loader([improving, unchanged, SEVENTH]), Loader([])]
        return [Loader([EIGHTH]), Loader([greedy])]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Lightning and torch on starting processes
def test_two_ranks_measure_as_one(tmp_path):
    strategy = DDPStrategy(process_group_backend="gloo", start_method=CONTEXT.get_start_method())
    run = trainer(tmp_path, Evaluation(), strategy=strategy, devices=2, max_epochs=1)
    run.fit(Agent(), Ranked(waves=[Costs(tokens_generated=100, env_steps=10, waves=1)]))

    found = report(tmp_path)
    sampled, other = found["evaluations"]["sampled"], found["evaluations"]["greedy"]
    assert [(row["instance"], row["successes"]) for row in sampled["before"]["instances"]] == [
        (1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (6, 0), (7, 1), (8, 0)
    ]  # fmt: skip
    assert sampled["before"]["figures"]["success_rate"] == 0.5
    assert sampled["after"]["figures"]["success_rate"] == 5 / 8
    assert sampled["after"]["figures"]["tokens_generated"] == 127
    assert sampled["after"]["figures"]["seconds"] == 5.0  # the slower rank's
    assert other["after"]["figures"]["success_rate"] == 0.5
    assert found["run"]["tokens_generated"] == 200  # both ranks'
    assert run.callback_metrics["val/sampled/success_rate"].item() == 5 / 8
    assert run.callback_metrics["val/greedy/success_rate"].item() == 0.5
    assert points(tmp_path, "val/greedy/success_rate") == [(0, 0.5), (1, 0.5)]
