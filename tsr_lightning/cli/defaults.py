"""What `tsr` sets where a configuration says nothing: the Trainer, its callbacks and the protocols of evaluation.

All other defaults are those of the constructors. `tsr fit --print_config=comments` shows both with their meaning, and
every run writes what it has taken to `config.yaml`.
"""

from collections.abc import Mapping
from typing import Any

CALLBACKS: tuple[Mapping[str, Any], ...] = (  # in the order in which they see a rollout
    {"class_path": "callbacks.EpisodeLog"},  # before the filter, which drops groups
    {"class_path": "callbacks.CollapseGuard"},  # warns; before the filter, which drops groups
    {"class_path": "callbacks.InstanceFilter", "init_args": {"keep": 1.0, "drop_uniform": False}},  # off
    {"class_path": "callbacks.Evaluation"},
    {"class_path": "callbacks.TrajectoryLog", "init_args": {"every_n_epochs": 10}},
    {"class_path": "callbacks.RolloutProgressBar"},
    {
        "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
        "init_args": {
            "filename": "{epoch:03d}",
            "every_n_epochs": 5,
            "save_top_k": 1,  # the newest alone
            "save_last": True,  # also as last.ckpt
            "save_on_train_epoch_end": True,  # a resumed run then begins with the next epoch
        },
    },
)
LOGGER: Mapping[str, Any] = {
    "class_path": "lightning.pytorch.loggers.TensorBoardLogger",
    "init_args": {
        "save_dir": "runs",
        "name": None,  # that of the task, such as sokoban
        "default_hp_metric": False,  # Lightning's placeholder says nothing here
    },
}
TRAINER: Mapping[str, Any] = {
    "accelerator": "auto",
    "devices": 1,
    "precision": "32-true",
    "check_val_every_n_epoch": 10,
    "num_sanity_val_steps": -1,  # evaluates the initial policy on all held-out instances
    "log_every_n_steps": 1,
    "gradient_clip_val": 1.0,  # of policy and critic separately
    "enable_model_summary": False,
    "enable_progress_bar": True,
    "logger": LOGGER,
    "callbacks": [*CALLBACKS],
}
EVALUATIONS: tuple[Mapping[str, Any], ...] = (
    {"name": "sampled", "temperature": 1.0, "samples": 2, "search": None, "every_n_validations": 1},
    {"name": "greedy", "temperature": 0.0, "samples": 1, "search": None, "every_n_validations": 1},
)
DEFAULTS: Mapping[str, Any] = {
    **{f"trainer.{key}": value for key, value in TRAINER.items()},
    "data.evaluations": [*EVALUATIONS],
}
