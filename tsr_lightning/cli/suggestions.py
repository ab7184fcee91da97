"""Suggests the name that was probably meant."""

import difflib
from collections.abc import Collection, Iterable, Mapping

# What other libraries call a key, and its name here.
_ELSEWHERE: Mapping[str, str] = {
    "batch_size": "data.instances",
    "beta": "model.objective.init_args.kl.init_args.coefficient",
    "env_name": "data.env",
    "epochs": "trainer.max_epochs",
    "epsilon": "model.objective.init_args.surrogate.init_args.low",
    "gpus": "trainer.devices",
    "learning_rate": "model.optimizer.learning_rate",
    "lr": "model.optimizer.learning_rate",
    "max_grad_norm": "trainer.gradient_clip_val",
    "max_new_tokens": "data.sampling.max_response_tokens",
    "model": "model.policy.model",
    "model_name_or_path": "model.policy.model",
    "num_epochs": "trainer.max_epochs",
    "num_generations": "data.plan.init_args.count",
    "num_iterations": "data.updates.epochs",
    "output_dir": "trainer.run_folder",
    "resume": "ckpt_path",
    "seed": "seed_everything",
}


def suggestion(given: str, known: Iterable[str], dashes: str = "") -> str | None:
    """The known name that is closest as a whole, or else by its last part, as a question."""
    names = sorted(known)
    elsewhere = _ELSEWHERE.get(given.rpartition(".")[2])
    last_parts = {name.rpartition(".")[2]: name for name in names}
    if given in _ELSEWHERE and "trainer.max_epochs" in names:  # the keys of a run
        return f"did you mean {dashes}{elsewhere}?"
    close = closest(given, names)
    if close is None and elsewhere in names:
        close = elsewhere
    if close is None:
        close = last_parts.get(closest(given.rpartition(".")[2], last_parts) or "")
    return f"did you mean {dashes}{close}?" if close else None


def closest(given: str, known: Collection[str]) -> str | None:
    """The known name that is the same in other letters, that alone begins so, or that is spelt much the same."""
    same = [name for name in known if name.casefold() == given.casefold()]
    longer = [name for name in known if name.startswith(given)]
    if same or len(longer) == 1:
        return (same or longer)[0]
    close = difflib.get_close_matches(given, sorted(known), n=1, cutoff=0.75)
    return close[0] if close else None
