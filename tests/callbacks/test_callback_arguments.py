"""The callbacks from YAML, as the command line builds them."""

import pytest
from jsonargparse import ArgumentParser
from lightning.pytorch import Callback

import callbacks
from callbacks.on_collapse import Restore

YAML = """
callbacks:
  - class_path: callbacks.CollapseGuard
    init_args: {on_collapse: {class_path: Restore, init_args: {at_most: 2}}, success_drop: 0.25, window: 3}
  - class_path: callbacks.InstanceFilter
    init_args: {keep: 0.5, drop_uniform: false, minimum_std: 0.0}
  - class_path: callbacks.Evaluation
    init_args: {pass_at: [1, 8], name: held_out}
  - class_path: callbacks.TrajectoryLog
    init_args: {count: 3, every_n_epochs: 10}
  - class_path: callbacks.RolloutProgressBar
"""


def parser():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--callbacks", type=list[Callback])
    return parser


def test_yaml_builds_each_callback():
    built = parser().instantiate(parser().parse_string(YAML)).callbacks
    assert [type(callback).__name__ for callback in built] == [
        "CollapseGuard",
        "InstanceFilter",
        "Evaluation",
        "TrajectoryLog",
        "RolloutProgressBar",
    ]
    guard, chosen, evaluation, log, _ = built
    assert (guard.on_collapse, guard.success_drop, guard.window) == (Restore(at_most=2), 0.25, 3)
    assert (chosen.keep, chosen.drop_uniform, chosen.minimum_std) == (0.5, False, 0.0)
    assert (evaluation.pass_at, evaluation.name) == ([1, 8], "held_out")
    assert (log.count, log.every_n_epochs) == (3, 10)


@pytest.mark.parametrize("name", callbacks.__all__)
def test_no_argument_is_required(name):
    built = parser().instantiate(parser().parse_args([f"--callbacks=[callbacks.{name}]"])).callbacks
    assert isinstance(built[0], vars(callbacks)[name])
