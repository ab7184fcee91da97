"""Names and sentences of the subcommands, and the parser of those that configure no run. Standard library only, so that
help and mistakes are told at once."""

import argparse
from collections.abc import Sequence
from typing import NoReturn

from tsr_lightning.errors import ConfigError

DESCRIPTION = "Trains language-model agents with reinforcement learning on trajectories built by search."

# Subcommands that configure a run: the docstrings of the Trainer's methods, and an example of each.
RUNS = {
    "fit": "Train a policy on trajectories built by search, and evaluate it on held-out instances.",
    "validate": "Evaluate a policy on held-out instances, by the protocols of data.evaluations.",
    "rollout": "Play episodes of a policy on held-out instances, by the strategies of data.plan, and save them.",
    "play": "Play training instances yourself, with the policy's prompts, its suggestions and the oracle's.",
    "export": "Write a trained policy as files that plain transformers and peft load.",
}
EXAMPLES = {
    "fit": "Trains a policy: tsr fit --config quickstart.yaml --trainer.max_epochs 10",
    "validate": "Plays the held-out instances: tsr validate --config ... --ckpt_path ...",
    "rollout": "Plays and saves episodes: tsr rollout --config ... --episodes 64 --output episodes.jsonl.gz",
    "play": "Lets you play, undo, and ask the policy or the oracle: tsr play tsr/Sokoban-v0, or tsr play --config ...",
    "export": "Writes a trained policy for transformers and peft: tsr export --config ... --ckpt_path ... --output ...",
}
# Subcommands with parsers of their own.
PLAIN = {
    "study": "Runs a grid of configurations and seeds, several runs side by side, and goes on where it was stopped.",
    "report": "Writes tables, curves and one page of what studies measured, finished or not.",
    "estimate": "Estimates the memory and hours of a run from the model's shape: "
    "tsr estimate --config paper/sokoban.yaml",
    "view": "Writes one HTML page of saved episodes and their search trees: tsr view RUN",
    "replay": "Plays saved episodes again, and names the first difference: tsr replay FILE",
    "episodes": "Writes saved episodes in other formats: tsr episodes FILE --to inspect, or --to messages",
    "check-env": "Checks by playing that an environment can be searched: tsr check-env my_module:MyEnv-v0",
    "probe": "Trains the configured model, objective and search on tiny tasks that isolate a fault each, and names it: "
    "tsr probe --config quickstart.yaml",
    "import-gguf": "Writes the model of a GGUF file as a Hugging Face folder, dequantised: tsr import-gguf FILE FOLDER",
}
ALL = {**RUNS, **PLAIN}


class PlainParser(argparse.ArgumentParser):
    """argparse's, which raises a ConfigError where that would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}; {self.prog} --help lists what it takes")


def at_least_one(text: str) -> int:
    """The type of a flag that counts something."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number of 1 or more")
    return int(text)


def refuse_checkpoint(program: str, flags: Sequence[str], does: str) -> None:
    """Refuses `--ckpt_path` for a subcommand that takes the flags of a fit and loads none.

    Args:
        program: the subcommand, as it is called.
        flags: of its command line.
        does: what it does instead, in a few words.
    """
    if any(flag.partition("=")[0] == "--ckpt_path" for flag in flags):
        raise ConfigError(f"{program} takes no --ckpt_path, since it {does}: leave it out, or export the policy first")
