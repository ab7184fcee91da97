"""Lightning's Trainer with further subcommands; the docstrings here are the help texts of `tsr`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch.utilities import rank_zero_info

from tsr_lightning.episodes.folder import FOLDER as EPISODES
from tsr_lightning.errors import ConfigError, require
from tsr_lightning.files import newest_checkpoint
from tsr_lightning.training import checkpoints, exporting, games, showing
from tsr_lightning.training import lightning_compat as compat
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.monitored import check_monitors
from tsr_lightning.training.output import held_output
from tsr_lightning.training.run_folder import (
    FolderLock,
    after_fit,
    after_validation,
    clean_earlier,
    next_version,
    remove_if_empty,
    remove_unfinished,
    task_name,
    unwritable,
)
from tsr_lightning.training.setting_checks import check_processes
from tsr_lightning.training.stopping import VALIDATION, says_how_to_go_on, state_of_fit


class Trainer(pl.Trainer):
    """Where and how long to train: Lightning's Trainer, whose every run has a folder of its own.

    The folder is `run_folder`; or else that of the first TensorBoard or CSV logger; or else the next
    `<default_root_dir>/runs/<task>/version_N`. `config.yaml`, evaluations, conversations and checkpoints go there
    whatever the loggers are. One process at a time writes to it.

    Args:
        run_folder: the folder of the run; null for the logger's, or the next one of the task where no logger has one.
    """

    def __init__(self, *args: Any, run_folder: str | None = None, **kwargs: Any) -> None:
        _check_counts(kwargs)
        super().__init__(*args, **kwargs)
        self._given_folder = run_folder
        self._folder: Path | None = None  # on rank 0, from the first run on
        self._files = compat.CheckpointFiles()
        self.strategy.checkpoint_io = self._files
        self._signal_connector = compat.Signals(self)
        compat.save_at_ends_of_epochs(self)
        self.callbacks: list[pl.Callback] = [compat.CheckpointFolders(), compat.OneStart(), *compat.callbacks(self)]

    def run_folder(self) -> Path:
        """Returns the folder of the run in progress; called on every rank at once."""
        folder = self.strategy.broadcast(self._folder)
        if folder is None:
            raise RuntimeError("the run has no folder yet: fit and validate choose it")
        return folder

    @property
    def log_dir(self) -> str | None:
        """The run's folder, for callbacks that ask Lightning for it."""
        folder = self.strategy.broadcast(self._folder)
        return super().log_dir if folder is None else str(folder)

    def fit(
        self,
        model: pl.LightningModule,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: pl.LightningDataModule | None = None,
        ckpt_path: _PATH | None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Train a policy on trajectories built by search, and evaluate it on held-out instances.

        Args:
            ckpt_path: a checkpoint to resume from, or "last" for the newest of this run's folder, if there is one.
            weights_only: true loads only tensors and plain values, all that our checkpoints hold; null is Lightning's.
        """
        if isinstance(model, Agent) and isinstance(datamodule, RolloutDataModule):
            check_monitors(self.callbacks, model, datamodule)
        state = partial(self._state_of_fit, ckpt_path)
        with (
            says_how_to_go_on(state, is_first_rank=self.is_global_zero),
            self._in_run_folder(datamodule, ckpt_path) as resumed,
        ):
            super().fit(model, train_dataloaders, val_dataloaders, datamodule, resumed, weights_only)
            if self.is_global_zero and self._folder is not None:
                rank_zero_info(after_fit(self._folder, self._newest(), compat.tensorboard_folder(self)))

    def validate(
        self,
        model: pl.LightningModule | None = None,
        dataloaders: Any = None,
        ckpt_path: _PATH | None = None,
        verbose: bool = True,
        datamodule: pl.LightningDataModule | None = None,
        weights_only: bool | None = None,
    ) -> Any:
        """Evaluate a policy on held-out instances, by the protocols of data.evaluations.

        Args:
            ckpt_path: a checkpoint of `fit`; null evaluates the policy that training begins with.
            verbose: print Lightning's own table of the figures too.
            weights_only: true loads only tensors and plain values, all that our checkpoints hold; null is Lightning's.
        """
        if ckpt_path is not None:
            self._existing(ckpt_path)
        with (
            says_how_to_go_on(lambda: VALIDATION, is_first_rank=self.is_global_zero),
            self._in_run_folder(datamodule, ckpt_path, begins=False) as loaded,
        ):
            figures = super().validate(model, dataloaders, loaded, verbose, datamodule, weights_only)
            if self._folder is not None and (where := after_validation(self._folder)):
                rank_zero_info(where)
            return figures

    def export(
        self,
        model: Agent,
        datamodule: RolloutDataModule,
        ckpt_path: str,
        output: str,
        merge: bool = False,
        weights_only: bool | None = None,
    ) -> None:
        """Write a trained policy as files that plain transformers and peft load.

        Args:
            ckpt_path: a checkpoint of `fit`, or "last" for the newest of the run's folder.
            output: the folder to write; one that holds another policy is refused.
            merge: merge the adapter into the base weights, for plain transformers without peft.
            weights_only: as of `fit`, whose `config.yaml` has it; null is true.
        """
        check_processes(self, together=False)
        path = self._existing(ckpt_path)
        checkpoint = checkpoints.load(path, weights_only=weights_only is not False)
        exported = exporting.planned(checkpoint, str(path), model.spec, merge=merge)
        exported.check(Path(output))
        compat.attach(self, model, datamodule)
        model.configure_model()
        model.on_load_checkpoint(checkpoint)
        model.load_state_dict(checkpoint["state_dict"])
        exporting.write(exported, Path(output), model, datamodule, checkpoint)

    def rollout(
        self,
        model: Agent,
        datamodule: RolloutDataModule,
        output: str,
        episodes: int = 64,
        ckpt_path: str | None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Play episodes of a policy on held-out instances, by the strategies of data.plan, and save them.

        Args:
            output: the file to write, such as `episodes.jsonl.gz`; `tsr view` shows it.
            episodes: of all instances together.
            ckpt_path: a checkpoint of `fit`, or "last" for the newest of the run's folder; null plays the policy that
                training begins with.
            weights_only: as of `fit`, whose `config.yaml` has it; null is true.
        """
        check_processes(self, together=False)
        checkpoint = None if ckpt_path is None else self._existing(ckpt_path)
        with held_output(Path(output)):
            showing.check(datamodule, Path(output), episodes)
            epochs = showing.load(self, model, datamodule, checkpoint, weights_only)
            with compat.training_precision(self):
                showing.play(datamodule, Path(output), episodes, epochs)

    def play(
        self,
        model: Agent,
        datamodule: RolloutDataModule,
        output: str = "games.jsonl.gz",
        instance: int | None = None,
        ckpt_path: str | None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Play training instances yourself, with the policy's prompts, its suggestions and the oracle's.

        Args:
            output: the file that each game is added to, as a rollout; `data.replay` trains on it.
            instance: the seed of the first game's first state, as `tsr view` shows it; null is the next instance.
            ckpt_path: as of `rollout`, for the policy that suggests.
            weights_only: as of `fit`, whose `config.yaml` has it; null is true.
        """
        check_processes(self, together=False)
        checkpoint = None if ckpt_path is None else self._existing(ckpt_path)
        with held_output(Path(output)):  # since each game writes the whole file
            epochs = showing.load(self, model, datamodule, checkpoint, weights_only)
            with compat.training_precision(self):
                games.play_games(datamodule, Path(output), instance, epochs)

    def resumed_from(self, ckpt_path: _PATH | None) -> _PATH | None:
        """The checkpoint that `last` names, None where the run's folders have none yet; any other path as it is.

        Raises:
            ConfigError: for `last` where each run gets a new folder, in which there would never be one.
        """
        if ckpt_path != "last":
            return ckpt_path
        own = self._fixed_folder()
        folders = [*compat.checkpoint_folders(self), *([] if own is None else [own / "checkpoints"])]
        if not folders:
            raise ConfigError(
                "ckpt_path is last, and this run begins in a new folder, which has no checkpoint: name the folder to "
                "go on in with trainer.run_folder, or give the path of a checkpoint"
            )
        return newest_checkpoint(dict.fromkeys(folders))

    def _existing(self, ckpt_path: _PATH) -> Path:
        """The checkpoint that a path or `last` names, where it has to be there."""
        found = self.resumed_from(ckpt_path)
        if found is None:
            raise ConfigError("ckpt_path is last, and the run's folder has no checkpoint: give the path of one")
        return Path(found)

    def _state_of_fit(self, ckpt_path: _PATH | None) -> str:
        """Says what this fit has saved and how to go on with it, on rank 0."""
        resumed = None if ckpt_path in (None, "last") else Path(str(ckpt_path))
        return state_of_fit(self._folder, self._newest(), self._files.newest, resumed)

    def _newest(self) -> Path | None:
        """The newest checkpoint of the run, on rank 0."""
        own = [] if self._folder is None else [self._folder / "checkpoints"]
        return newest_checkpoint(dict.fromkeys([*compat.checkpoint_folders(self), *own]))

    @contextmanager
    def _in_run_folder(
        self, data: pl.LightningDataModule | None, ckpt_path: _PATH | None, *, begins: bool = True
    ) -> Iterator[_PATH | None]:
        """Holds the run's folder, and gives the checkpoint to load. Rank 0 alone holds it and chooses it."""
        resumed = self.resumed_from(ckpt_path)
        if ckpt_path == "last" and resumed is None:
            rank_zero_info("ckpt_path is last, and the run's folder has no checkpoint yet: the run begins")
        if not self.is_global_zero:
            yield resumed
            return
        is_first = self._folder is None
        folder = self._folder or self._fixed_folder() or self._new_folder(data)
        given = [each for each in compat.checkpoint_folders(self) if each.parent != folder]
        with ExitStack() as held:
            held.callback(remove_if_empty, folder)  # where the run is refused before it writes
            for each in dict.fromkeys([folder, *given]):
                held.callback(FolderLock.acquire(each).release)
            if begins and is_first:
                _refuse_to_overwrite(folder, compat.checkpoint_folders(self), resumed)
            if begins and is_first and ckpt_path is None:
                _refuse_to_mix(folder)
            self._folder = folder
            if self._given_folder is not None:
                compat.send_loggers_to(self, folder)
            compat.use_run_folder(self, folder)
            for each in (folder, folder / "checkpoints", *given):
                remove_unfinished(each)
            earlier = folder if resumed is None else Path(resumed).absolute().parent.parent
            if earlier.resolve() not in {each.resolve() for each in (folder, *given)}:
                clean_earlier(earlier)
            compat.open_csv(self)
            yield resumed

    def _fixed_folder(self) -> Path | None:
        """The folder that the configuration names; None where it is a next version."""
        if self._folder is not None or self._given_folder is not None:
            return self._folder or Path(str(self._given_folder))
        logger = compat.folder_logger(self)
        return Path(logger.log_dir) if logger is not None and compat.has_fixed_version(logger) else None

    def _new_folder(self, data: pl.LightningDataModule | None) -> Path:
        logger = compat.folder_logger(self)
        mixture = data.mixture if isinstance(data, RolloutDataModule) else ()
        task = "_".join(dict.fromkeys(task_name(entry.env) for entry in mixture)) or "run"
        parent = Path(self.default_root_dir, "runs", task) if logger is None else Path(logger.root_dir)
        try:
            return next_version(parent) if logger is None else compat.make_next_version(self, logger)
        except OSError as error:
            raise unwritable(parent, error) from error


def _check_counts(given: Mapping[str, Any]) -> None:
    """Refuses arguments that Lightning takes, and then divides by or ignores; None leaves each at its default."""
    intervals = "give 1 or more, the epochs from one validation to the next, or set limit_val_batches to 0 for none"
    least = {
        "check_val_every_n_epoch": (1, intervals),
        "accumulate_grad_batches": (1, "give 1 or more"),
        "log_every_n_steps": (0, "give 0 or more"),
        "num_sanity_val_steps": (-1, "give 0 or more, or -1 for the whole evaluation"),
        "gradient_clip_val": (0, "give 0 or more, or null for no clipping"),
    }
    for key, (smallest, remedy) in least.items():
        count = given.get(key)
        require(count is None or count >= smallest, f"trainer.{key}", count, remedy)


_OTHER = "give another folder as trainer.run_folder or by the logger's version"


def _refuse_to_overwrite(folder: Path, given: Sequence[Path], resumed: _PATH | None) -> None:
    """Refuses a run that would write over the checkpoints of another.

    Args:
        folder: of the run.
        given: to ModelCheckpoints.
        resumed: the checkpoint that the run goes on from; one in any of these folders is of the same run.
    """
    checkpoint = None if resumed is None else Path(resumed)
    if checkpoint is not None and not checkpoint.is_file():  # which is refused where it is read
        return
    own = [each.resolve() for each in (folder, *given)]
    if checkpoint is not None and any(checkpoint.parent.resolve().is_relative_to(each) for each in own):
        return
    found = "which has the checkpoints of an earlier run: go on from them with --ckpt_path last, or"
    if newest_checkpoint([folder / "checkpoints"]) is not None:
        raise ConfigError(f"the run's folder is {folder}, {found} {_OTHER}")
    for each in given:
        if newest_checkpoint([each]) is not None:
            raise ConfigError(f"ModelCheckpoint.dirpath is {each}, {found} give another folder")


def _refuse_to_mix(folder: Path) -> None:
    """Refuses to begin a run in a folder that has evaluations or episodes of another."""
    if results := sorted(path.name for path in (*folder.glob("*.json"), folder / EPISODES) if path.exists()):
        raise ConfigError(
            f"the run's folder is {folder}, which has {', '.join(results)} of an earlier run: {_OTHER}, or remove it"
        )
