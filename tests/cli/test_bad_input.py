"""Bad input is refused with one sentence (key, value, remedy) before a model is built or a file is written."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from commands import QUICK, ROOT, TINY, in_folder, tsr

from tsr_lightning.cli.command import main
from tsr_lightning.errors import ConfigError
from tsr_lightning.policy.model import Policy

RUN = ("fit", "--config", "sokoban.yaml", *QUICK)
NEW = ("--model.policy.model", TINY)
BEAM = ("--config", "search/beam.yaml")
STRATEGY = "--data.plan.init_args.strategy.init_args"
Refused = Callable[..., str]


class Case(NamedTuple):
    """Flags after a valid command, and the pattern of the sentence that refuses them."""

    flags: tuple[str, ...]
    pattern: str
    files: dict[str, str] = {}  # noqa: RUF012  (never changed)


def overlay(**keys: object) -> dict[str, str]:
    return {"mine.yaml": json.dumps(keys)}  # JSON is YAML


MINE = ("--config", "mine.yaml")
TREE = ("--config", "credit/tree.yaml")
ROLLOUTS = ("--config", "search/random_rollouts.yaml")
SILENT = {
    "its_env.py": "import gymnasium\nfrom tsr_lightning.envs.single_turn import SingleTurnEnv\n"
    "rows = [{'prompt': f'{number}?'} for number in range(99)]\n"
    "kwargs = {'rows': rows, 'reward': lambda response, row: 0.0}\n"
    "gymnasium.register('Silent-v0', SingleTurnEnv, kwargs=kwargs)\n"
}
GRAPH = ("--config", "credit/graph.yaml")
SUPERVISED = ("--config", "warm_start/supervised.yaml")
FILE = ("--data.demonstrations.path", "mine.jsonl", "--data.demonstrations.count", "1")


def messages(*roles: str, content: str = "go") -> str:
    return json.dumps({"messages": [{"role": role, "content": content} for role in roles]})


def conversations(*lines: str) -> dict[str, str]:
    return {"mine.jsonl": "\n".join(lines)}


def phases(epochs: list[int], *strategies: str, last_count: int = 4) -> dict[str, object]:
    counts = [*[4] * (len(strategies) - 1), last_count]
    plans = [
        {"class_path": "Uniform", "init_args": {"strategy": {"class_path": name}, "count": count}}
        for name, count in zip(strategies, counts, strict=True)
    ]
    return {"class_path": "Phases", "init_args": {"plans": plans, "epochs": epochs}}


EVALUATION = "--trainer.callbacks+=Evaluation"
STOPS = (EVALUATION, "--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor")
KEEPS = (EVALUATION, "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.monitor")
TALK = messages("user", "assistant")
LATER_GROUP_OF_1 = phases([3], "Sample", "Sample", last_count=1)
CASES = {
    "tree credit without a search": Case(
        TREE,
        r"searched is 'TreeCredit': .*no strategy of data\.plan proposes several; use a search .*search/beam\.yaml",
    ),
    "candidates that differ, of an engine that samples each alone": Case(
        (
            *(*BEAM, "--data.plan.init_args.strategy.init_args.without_replacement", "true"),
            *("--data.engine", "its_engine.Alone"),
        ),
        r"Beam\.without_replacement is True: data\.engine Alone samples each response alone; use false",
        {
            "its_engine.py": "from tsr_lightning.engines.transformers.spec import Transformers\n\n\n"
            "class Alone(Transformers):\n    can_exclude = False\n"
        },
    ),
    "weights of 4 bits, for an engine that takes none": Case(
        (
            *("--model.policy.quantisation.double_quant", "true", "--model.policy.adapter.rank", "4"),
            *("--model.policy.model", "embedded/sokoban", "--data.engine", "wide_engine.Wide"),
        ),
        r"model\.policy\.quantisation is 'NF4': data\.engine Wide takes weights of 16 or 32 bits; use null",
        {
            "wide_engine.py": "from tsr_lightning.engines.transformers.spec import Transformers\n\n\n"
            "class Wide(Transformers):\n    takes_quantised = False\n"
        },
    ),
    "a rank of an adapter that is no number": Case(
        ("--model.policy.adapter.rank", "abc"),
        r"^model\.policy\.adapter\.rank is abc: give a whole number$",
    ),
    "a target of an adapter that is no list": Case(
        ("--model.policy.adapter.target_modules", "q_proj"),
        r"^model\.policy\.adapter\.target_modules is q_proj: give a list or one of 'all-linear'$",
    ),
    "a response prefix with which no demonstration begins": Case(
        (
            *("--config", "search/expert.yaml", "--config", "objective/sft.yaml"),
            *("--model.policy.response_prefix", "Action:"),
        ),
        r"model\.policy\.response_prefix is 'Action:': a demonstrated response begins with '<answer>",
    ),
    "a strategy that is not as it says": Case(
        ("--data.plan.init_args.strategy", "tests.broken_strategies.StopsAtSuccess"),
        r"StopsAtSuccess\.traits\.independent_siblings is True, and in a rehearsal .*: correct the trait, or",
    ),
    "a strategy of an evaluation that does not end": Case(
        ("--data.evaluations", '[{"name": "mine", "search": {"class_path": "tests.broken_strategies.NeverEnds"}}]'),
        r"NeverEnds does not end: it has made 20,000 requests",
    ),
    "a scorer that asks for a critic in secret": Case(
        (*BEAM, f"{STRATEGY}.scorer", "tests.broken_strategies.AsksCritic"),
        r"AsksCritic\.needs_critic is False, and it asks the critic for values: let it be True",
    ),
    "a search without traits in another one": Case(
        (
            *("--data.plan.init_args.strategy", "SearchFailures"),
            *(f"{STRATEGY}.strategy", "tests.broken_strategies.NoTraits"),
        ),
        r"NoTraits has no traits: define `traits = Traits\(",
    ),
    "credit of the best outcome in a world with chance": Case(
        (
            *("--data.env", "tsr/FrozenLake-v0", "--data.env_kwargs", '{"prompt_style": "bare"}'),
            *(*GRAPH, "--model.objective.init_args.searched.init_args.backup", "MaxBackup"),
        ),
        r"GraphCredit has a MaxBackup, and equal actions in one state of tsr/FrozenLake-v0 had two outcomes, of which "
        r"the best is luck: use MeanBackup \(--config credit/graph\.yaml\)",
    ),
    "the best of what cannot be looked through for chance": Case(
        (
            *("--data.env", "its_env:Silent-v0", "--data.env_kwargs", "null"),
            *(*GRAPH, "--model.objective.init_args.searched.init_args.backup", "MaxBackup"),
        ),
        r"GraphCredit has a MaxBackup, which takes luck for skill where there is chance, and Silent-v0 has no "
        r"legal_actions to look for it with: add that method, or use MeanBackup",
        SILENT,
    ),
    "the best of what lists no action": Case(
        (
            *("--data.env", "mute_env:Mute-v0", "--data.env_kwargs", "null"),
            *(*GRAPH, "--model.objective.init_args.searched.init_args.backup", "MaxBackup"),
        ),
        r"GraphCredit has a MaxBackup, which takes luck for skill where there is chance, and legal_actions of Mute-v0 "
        r"lists none to look for it with: let it return them, or use MeanBackup",
        {
            "mute_env.py": "import gymnasium\nfrom tests.corridor import Corridor\n\n\n"
            "class Mute(Corridor):\n    def legal_actions(self):\n        return []\n\n\n"
            "gymnasium.register('Mute-v0', Mute)\n"
        },
    ),
    "credit by a state key that says too little": Case(
        (*GRAPH, "--data.env", "coarse_env:Coarse-v0", "--data.env_kwargs", "null"),
        r"GraphCredit takes states with equal keys for one, and Coarse-v0 breaks the contract: state_key: it is equal "
        r"after .*; correct it \(check_branchable tells more\), or use TreeCredit",
        {
            "coarse_env.py": "import gymnasium\nfrom tests.corridor import Corridor\n\n\n"
            "class Coarse(Corridor):\n    def __init__(self):\n        super().__init__(slip=0.0)\n\n"
            "    def legal_actions(self):\n        return ['r', 'l', 'rr']\n\n"
            "    def state_key(self):\n        return self.place % 2\n\n\n"
            "gymnasium.register('Coarse-v0', Coarse)\n"
        },
    ),
    "tree credit with shaping": Case(
        (*BEAM, *TREE, "--model.objective.init_args.shaping", '[{"class_path": "ReturnAtEnd"}]'),
        r"GRPO\.shaping is .*under TreeCredit the return of a response is its value.*use \[\]",
    ),
    "tree credit with GiGPO": Case(
        ("--config", "objective/gigpo.yaml", *BEAM, *TREE),
        r"GiGPO\.advantage is 'GroupInGroup': under TreeCredit .*use GroupNormalised or LeaveOneOut",
    ),
    "tree credit with SFT": Case(
        ("--config", "objective/sft.yaml", *BEAM, *TREE), r"SFT the argument searched\S*, which it does not take"
    ),
    "tree credit with RAFT": Case(
        ("--config", "objective/raft.yaml", *BEAM, *TREE), r"RAFT\.searched is TreeCredit.*: RAFT imitates successes"
    ),
    "weight of a state beyond 1": Case(
        (*BEAM, *TREE, "--model.objective.init_args.searched.init_args.size_power", "2"),
        r"TreeCredit\.size_power is 2\.0: .*number from 0 to 1",
    ),
    "unknown environment": Case(("--data.env", "tsr/Sokobn-v0"), r"'tsr/Sokobn-v0'.*did you mean tsr/Sokoban-v0"),
    "unknown environment of a user": Case(("--data.env", "absent_module:Env-v0"), "absent_module.*PYTHONPATH"),
    "misspelt argument of the environment": Case(("--data.env_kwargs.sise", "6"), "'sise': did you mean 'size'"),
    "misspelt key of a mixture's entry": Case(
        ("--data.env", "[{env: tsr/Sokoban-v0, wieght: 2}]"), r"data\.env gives .*wieght.*did you mean weight\?"
    ),
    "entry of a mixture without an environment": Case(
        ("--data.env", "[{weight: 2}]"), r"data\.env has an entry without env: give it"
    ),
    "weight of zero": Case(
        ("--data.env", "[{env: tsr/Sokoban-v0, weight: 0}]"),
        r"data\.env\.weight is \[0\.0\]: .* one entry a weight above 0",
    ),
    "mixture of nothing": Case(("--data.env", "[]"), r"data\.env is \[\]: .*list the entries of a mixture"),
    "arguments beside a mixture": Case(
        ("--data.env", "[{env: tsr/Sokoban-v0}]", "--data.env_kwargs.size", "6"),
        r"data\.env_kwargs is \{'size': 6\}: .*give each entry its own env_kwargs",
    ),
    "unknown environment in a mixture": Case(
        ("--data.env", "[{env: tsr/Sokoban-v0}, {env: tsr/FrozenLak-v0}]"), "did you mean tsr/FrozenLake"
    ),
    "Expert on a mixture of which one has no oracle": Case(
        ("--config", "search/expert.yaml", "--data.env", "[{env: tsr/Sokoban-v0}, {env: 'corridor:Corridor-v0'}]"),
        "Expert.*corridor:Corridor-v0 has no oracle",
    ),
    "width larger than what can be kept": Case((*BEAM, f"{STRATEGY}.width", "8"), r"Beam\.width is 8.*4"),
    "width of an evaluation's search": Case(
        ("--data.evaluations", '[{"search": {"class_path": "Beam", "init_args": {"width": 8}}}]'),
        r"Beam\.width is 8.*4",
    ),
    "group of 1 with GRPO": Case(("--data.plan.init_args.count", "1"), r"groups of 1.*GRPO.*at least 2"),
    "single compared member of a mixed group": Case(
        (*MINE, "--config", "credit/imitate.yaml"),
        r"groups of 8, of which GRPO compares 1 in epoch 0.*at least 2, or none",
        overlay(
            data={
                "plan": {
                    "class_path": "Mixed",
                    "init_args": {
                        "members": [
                            {"strategy": {"class_path": "Sample"}, "count": 1},
                            {"strategy": {"class_path": "Beam"}, "count": 7},
                        ]
                    },
                }
            }
        ),
    ),
    "level file with no player": Case(
        ("--data.env_kwargs.levels", "levels.txt"), r"levels\.txt.*player", {"levels.txt": "####\n#.$#\n#  #\n####\n"}
    ),
    "negative clip": Case(("--model.objective.init_args.surrogate.init_args.low", "-0.2"), r"low is -0\.2.*use e\.g\."),
    "context longer than the model's": Case(("--data.context_tokens", "9000"), "context_tokens is 9000.*2048 or less"),
    "no context": Case(("--data.context_tokens", "0"), r"data\.context_tokens is 0: give 1 or more, or null"),
    "no tokens for an episode": Case(
        ("--data.episode_tokens", "0"), r"data\.episode_tokens is 0: give 1 or more, or null"
    ),
    "prompt longer than the context": Case(("--data.context_tokens", "20"), r"prompt has \d+ tokens.*20.*longer"),
    "context too short for the history": Case(
        (
            *("--data.env", "tsr/ALFWorld-v0", "--data.env_kwargs", '{"prompt_style": "game", "history": 12}'),
            *("--data.context", "SingleTurn", "--data.context_tokens", "250"),
        ),
        r"data.env is tsr/ALFWorld-v0, whose prompt of turn \d+, with the history that it repeats, has \d+ tokens, "
        r"which leaves no room for a response within 250: .*, or an env_kwargs.history below 12",
    ),
    "Expert without an oracle": Case(
        ("--config", "search/expert.yaml", "--data.env", "corridor:Corridor-v0", "--data.env_kwargs", "null"),
        r"Expert, but corridor:Corridor-v0 has no oracle: use RandomActions, .*\(--config warm_start/form\.yaml\)",
    ),
    "greedy play as a baseline without greedy play": Case(
        ("--config", "objective/remax.yaml"),
        r"data\.plan is 'Uniform': it has no greedy trajectory in epoch 0, which is the baseline of GRPO; add one by",
    ),
    "observations as targets beside credit on a graph": Case(
        ("--config", "credit/graph.yaml", "--model.objective.init_args.observations", '{"coefficient": 0.1}'),
        r"observations is .*: under GraphCredit a response is trained in its state, and no observation follows ",
    ),
    "learnable levels without plain samples": Case(
        ("--config", "search/beam.yaml", "--config", "credit/imitate.yaml", "--data.learnability", "{}"),
        r"data\.learnability is 'Learnability': a success rate is that of plain samples, of which data\.plan gives an ",
    ),
    "random play without an action": Case(
        (*ROLLOUTS, f"{STRATEGY}.scorer.init_args.horizon", "0"),
        r"RandomRollouts\.horizon is 0: a rollout plays at least 1 action; give about as many as random play needs",
    ),
    "random play where no actions are listed": Case(
        (*ROLLOUTS, "--data.env", "its_env:Silent-v0", "--data.env_kwargs", "null"),
        r"RandomRollouts plays random legal actions, and Silent-v0 does not list any: add the method legal_act",
        SILENT,
    ),
    "random play under noise that no reseed sets": Case(
        (*ROLLOUTS, "--data.env", "drifting_env:Drifting-v0", "--data.env_kwargs", "null"),
        r"RandomRollouts plays Drifting-v0 with draws of its own, and .* ended differently: let reseed set all chance",
        {
            "drifting_env.py": "import random\nimport gymnasium\nfrom tests.corridor import Corridor\n\n\n"
            "class Drifting(Corridor):\n    def legal_actions(self):\n        return ['l', 'lr']\n\n"
            "    def step(self, action):\n        result = super().step(action)\n"
            "        self.place += (self.turn == 3) * random.randrange(999)\n        return result\n\n\n"
            "gymnasium.register('Drifting-v0', Drifting)\n"
        },
    ),
    "an evaluation by a score that only rollouts teach": Case(
        (
            "--data.evaluations",
            '[{"name": "mine", "search": {"class_path": "Beam", "init_args": {"scorer": "ProcessScore"}}}]',
        ),
        r"data\.evaluations\.mine\.search\.scorer is 'ProcessScore': it learns from the rollouts of data\.plan",
    ),
    "random actions where none are listed": Case(
        ("--config", "warm_start/form.yaml", "--data.env", "its_env:Silent-v0", "--data.env_kwargs", "null"),
        r"RandomActions, but its_env:Silent-v0 does not list its legal actions: add the method legal_actions, or give "
        r"demonstrations of a file \(data\.demonstrations\.path\)",
        SILENT,
    ),
    "demonstrations under a policy gradient": Case(
        ("--config", "search/expert.yaml"), "Expert.*no samples of the policy.*GRPO.*supervised term.*SFT"
    ),
    "supervised term without a demonstration": Case(
        SUPERVISED,
        r"its supervised term needs demonstrations: give data\.plan .*Expert.*data\.demonstrations\.path",
    ),
    "supervised term of an objective without one": Case(
        ("--config", "objective/sft.yaml", *SUPERVISED),
        r"SFT the argument supervised\S*, which it does not take: it takes aggregation",
    ),
    "negative weight of a supervised term": Case(
        (*SUPERVISED, "--model.objective.init_args.supervised.coefficient.init_args.value", "-1"),
        r"ConstantSchedule\.value is -1\.0: a coefficient is not negative",
    ),
    "group of 1 in a later phase": Case(
        MINE, r"groups of 1, of which GRPO compares 1 in epoch 3.*at least 2", overlay(data={"plan": LATER_GROUP_OF_1})
    ),
    "lengths of other phases": Case(
        MINE, r"Phases\.epochs is \[\]: give 1 numbers", overlay(data={"plan": phases([], "Sample", "Sample")})
    ),
    "file of demonstrations without a supervised term": Case(
        FILE, r"data\.demonstrations\.path is .*GRPO.*supervised term.*SFT", conversations(TALK)
    ),
    "missing file of demonstrations": Case(
        (*SUPERVISED, *FILE), r"data\.demonstrations\.path is 'mine\.jsonl': there is no such file"
    ),
    "demonstration that is no JSON": Case(
        (*SUPERVISED, *FILE), r"path is 'mine\.jsonl': line 2 is no JSON", conversations(TALK, "{")
    ),
    "demonstration without messages": Case(
        (*SUPERVISED, *FILE),
        r"'mine\.jsonl': line 1 has no \"messages\" with \"role\"",
        conversations('{"text": "hello"}'),
    ),
    "demonstration whose roles are out of order": Case(
        (*SUPERVISED, *FILE),
        r"'mine\.jsonl': line 1 has its roles out of order \(system, assistant\); before every assistant message",
        conversations(messages("system", "assistant")),
    ),
    "demonstration that ends with the user": Case(
        (*SUPERVISED, *FILE), r"line 1 has its roles out of order", conversations(messages("user", "assistant", "user"))
    ),
    "demonstration without an answer": Case(
        (*SUPERVISED, *FILE), r"line 2 has no assistant message", conversations(TALK, messages("system", "user"))
    ),
    "demonstration longer than the context": Case(
        (*SUPERVISED, *FILE),
        r"'mine\.jsonl': line 3 is longer than the context: its turn 1 has \d{4} tokens, of at most 2048",
        conversations(TALK, "", messages("user", "assistant", content="#" * 2000)),
    ),
    "more demonstrations per epoch than the file has": Case(
        (*SUPERVISED, *FILE, "--data.demonstrations.count", "3"),
        r"data\.demonstrations\.count is 3: the file has 2 conversations; give at most as many",
        conversations(TALK, TALK),
    ),
    "CriticValue without a critic": Case((*BEAM, f"{STRATEGY}.scorer", "CriticValue"), "critic.*GRPO.*PPO"),
    "negative number of workers": Case(
        ("--data.env_workers", "-1"), r"data\.env_workers is -1: give 0 to step environments in turn"
    ),
    "more than all valid": Case(("--data.min_valid", "10"), r"data\.min_valid is 10\.0: give a share of .* to 1"),
    "zero concurrency": Case(("--data.concurrency", "0"), r"data\.concurrency is 0: give 1 or more"),
    "engine without a response": Case(
        ("--data.engine.init_args.max_num_seqs", "0"), r"Transformers\.max_num_seqs is 0: give 1 or more"
    ),
    "unknown engine": Case(("--data.engine", "Transformer"), r"data\.engine is .*did you mean Transformers\?"),
    "unknown kernels": Case(("--model.policy.kernels", "cuda"), r"model\.policy\.kernels is cuda: give one of"),
    "zero minibatches": Case(("--data.updates.minibatches", "0"), r"data\.updates\.minibatches is 0: give 1 or more"),
    "zero instances": Case(("--data.instances", "0"), r"data\.instances is 0: give 1 or more"),
    "sampling temperature of zero": Case(
        ("--data.sampling.temperature", "0"), r"data\.sampling\.temperature is 0\.0.*above 0"
    ),
    "zero samples of an evaluation": Case(
        ("--data.evaluations", '[{"samples": 0}]'), r"data\.evaluations\.sampled\.samples is 0: give 1 or more"
    ),
    "evaluation at every zeroth validation": Case(
        ("--data.evaluations", '[{"every_n_validations": 0}]'),
        r"data\.evaluations\.sampled\.every_n_validations is 0: give 1 or more, or null",
    ),
    "InstanceFilter.keep above 1": Case(
        ("--trainer.callbacks", '{"class_path": "callbacks.InstanceFilter", "init_args": {"keep": 2}}'),
        r"InstanceFilter\.keep is 2\.0: give",
    ),
    "dynamic sampling of no groups": Case(
        ("--data.dynamic_sampling", '{"groups": 0, "max_sampled_tokens": 1000}'),
        r"DynamicSampling\.groups is 0: give 1 or more",
    ),
    "dynamic sampling without a budget": Case(
        ("--data.dynamic_sampling", '{"groups": 4, "max_sampled_tokens": 0}'),
        r"DynamicSampling\.max_sampled_tokens is 0: give",
    ),
    "dynamic sampling of more groups than its budget pays": Case(
        ("--data.dynamic_sampling", '{"groups": 200, "max_sampled_tokens": 1000}'),
        r"data\.dynamic_sampling\.groups is 200: in groups of 8.*max_sampled_tokens, which is 1000; want fewer groups",
    ),
    "dynamic sampling of demonstrations": Case(
        (
            *("--config", "search/expert.yaml", "--config", "objective/sft.yaml"),
            *("--data.dynamic_sampling", '{"groups": 4, "max_sampled_tokens": 1000}'),
        ),
        r"data\.dynamic_sampling is .*samples nothing.*use null",
    ),
    "unknown accelerator": Case(("--trainer.accelerator", "gpuu"), "trainer.*gpuu.*cpu"),
    "missing checkpoint": Case(("--ckpt_path", "absent.ckpt"), r"absent\.ckpt.*does not exist"),
    "checkpoint that is a text file": Case(
        ("--ckpt_path", "mine.ckpt"), r"mine\.ckpt.*no readable checkpoint", {"mine.ckpt": "hello"}
    ),
    "checkpoint of another machine": Case(
        ("--ckpt_path", "https://example.org/a.ckpt"),
        r"ckpt_path is 'https://example\.org/a\.ckpt': give a file of this",
    ),
    "checkpoint that is a folder": Case(("--ckpt_path", "."), r"ckpt_path is \., which is a folder: give"),
    "checkpoint that is no archive, of another ending": Case(
        ("--ckpt_path", "a.safetensors"), r"a\.safetensors, which is no readable checkpoint", {"a.safetensors": "hello"}
    ),
    "checkpoint called best": Case(("--ckpt_path", "best"), r"ckpt_path is best, which does not exist"),
    "control characters in a value": Case(
        ("--trainer.max_epochs", "\x1b[2Jfoo\x07"), r"max_epochs is \\x1b\[2Jfoo\\x07: give a whole number"
    ),
    "monitor that is not logged": Case(
        (*STOPS, "nothere"), r"EarlyStopping\.monitor is nothere, .* not log: give one such as val/greedy/success_rate"
    ),
    "misspelt monitor": Case(
        (*KEEPS, "val/greedy/sucess_rate"), r"ModelCheckpoint\.monitor is .*did you mean val/greedy/success_rate\?"
    ),
    "monitor of an evaluation that is not made": Case(
        (*STOPS, "val/other/success_rate"), r"val/other/success_rate, which this run does not log"
    ),
    "monitor of more samples than there are": Case((*STOPS, "val/greedy/pass@4"), r"did you mean val/greedy/pass@1\?"),
    "monitor of a loss": Case((*STOPS, "train/los"), r"train/los, .*did you mean train/loss\?"),
    "validation every 0 epochs": Case(
        ("--trainer.check_val_every_n_epoch", "0"), r"trainer\.check_val_every_n_epoch is 0: give 1 or more, .*for none"
    ),
    "some batches of an epoch": Case(
        ("--trainer.limit_train_batches", "3"),
        r"trainer\.limit_train_batches is 3: it would end an epoch within an opt",
    ),
    "the same batches every epoch": Case(
        ("--trainer.overfit_batches", "2"), r"trainer\.overfit_batches is 2: it would"
    ),
    "a quick try of Lightning's": Case(
        ("--trainer.fast_dev_run", "true"),
        r"trainer\.fast_dev_run is True: .*for a quick try give trainer\.max_epochs 1",
    ),
    "an evaluation within an epoch": Case(
        ("--trainer.val_check_interval", "2"),
        r"trainer\.val_check_interval is 2: it would evaluate within an epoch; leave it out, and give",
    ),
    "an end within an epoch": Case(
        ("--trainer.max_time", "{seconds: 60}"), r"trainer\.max_time, or a Timer .*: give .*Timer with interval: epoch"
    ),
    "optimizer steps that are joined": Case(
        ("--trainer.callbacks", "[{class_path: GradientAccumulationScheduler, init_args: {scheduling: {0: 2}}}]"),
        r"has GradientAccumulationScheduler, .*: give trainer\.accumulate_grad_batches .*data\.updates\.micro_batch_to",
    ),
    "a precision that nothing needs": Case(
        ("--trainer.precision", "64-true"), r"trainer\.precision is '64-true': .* give 32-true"
    ),
    "no batch to accumulate": Case(("--trainer.accumulate_grad_batches", "0"), r"batches is 0: give 1 or more"),
    "gradients clipped below 0": Case(
        ("--trainer.gradient_clip_val", "-1"), r"clip_val is -1: give 0 or more, or null"
    ),
    "accelerator that is not installed": Case(
        ("--trainer.accelerator", "tpu"), r"trainer cannot be made: Requirement 'torch_xla\S*' not met"
    ),
    "devices below 0": Case(("--trainer.devices", "-2"), r"trainer cannot be made: `devices` .* should be an int > 0"),
    "logger whose package is not there": Case(
        ("--trainer.logger", "tests.broken_loggers.NeedsPackage"),
        r"^NeedsPackage cannot be made: Requirement 'figures>=2' not met\. Try `pip install figures`$",
    ),
    "such a logger among several": Case(
        ("--trainer.logger", '[{"class_path": "tests.broken_loggers.NeedsPackage"}]'),
        r"^NeedsPackage cannot be made: R",
    ),
    # refused by the parser
    "misspelt key": Case(("--data.instancs", "3"), r"--data\.instancs is no key.*did you mean --data\.instances\?"),
    "misspelt key, with =": Case(("--data.instancs=3",), r"--data\.instancs is no key.*--data\.instances\?"),
    "abbreviated key": Case(("--trainer.max_ep", "3"), r"--trainer\.max_ep is no key.*--trainer\.max_epochs\?"),
    "misspelt group": Case(("--daat.instances", "3"), r"--daat\.instances is no key.*--data\.instances\?"),
    "TRL's name of a key that a parser does not have": Case(
        ("--beta", "0.1"), r"--beta is no key.*did you mean --model\.objective\.init_args\.kl\.init_args\.coefficient\?"
    ),
    "TRL's name of another": Case(("--num_generations", "8"), r"did you mean --data\.plan\.init_args\.count\?"),
    "seed below 0": Case(
        ("--seed_everything", "-1"), r"^seed_everything is -1: give a whole number from 0 to 4294967295$"
    ),
    "seed that no generator takes": Case(("--seed_everything", "4294967296"), r"^seed_everything is 4294967296: give"),
    "key that is there twice in a file": Case(
        MINE,
        r"--config is mine\.yaml: line 3 has data for a second time: keep one",
        {"mine.yaml": "data: {instances: 7}\ntrainer: {max_epochs: 1}\ndata: {concurrency: 5}\n"},
    ),
    "misspelt key in a file": Case(
        MINE, r"data\.instancs is no key.*did you mean data\.instances\?", overlay(data={"instancs": 3})
    ),
    "misspelt argument": Case(
        ("--model.objective.init_args.whitten", "3"), r"model\.objective.*GRPO.*whitten\b.*did you mean whiten\?"
    ),
    "misspelt argument in a file": Case(
        MINE,
        r"data\.plan\.init_args\.strategy gives Beam the argument widht.*did you mean width\?",
        overlay(data={"plan": {"init_args": {"strategy": {"class_path": "Beam", "init_args": {"widht": 2}}}}}),
    ),
    "misspelt class": Case(("--model.objective", "PPPO"), r"model\.objective is PPPO.*did you mean PPO\?"),
    "class in a file that imports what is not there": Case(
        ("--model.objective", "my_objective.Mine"),
        r"model\.objective is my_objective\.Mine, whose file imports tsr_lightning\.objectivs, which is not there",
        {"my_objective.py": "import tsr_lightning.objectivs\n"},
    ),
    "class in a file that is not there": Case(
        ("--model.objective", "nowhere.Mine"), r"nowhere\.Mine, which is no class"
    ),
    "misspelt callback": Case(
        ("--trainer.callbacks", "callbacks.InstanceFiltr"), r"trainer\.callbacks is .*did you mean InstanceFilter\?"
    ),
    "class of the wrong type": Case(("--model.objective", "Beam"), r"model\.objective is .*Beam.*fits there.*--help"),
    "wrong type": Case(("--trainer.max_epochs", "foo"), r"trainer\.max_epochs is foo: give a whole number or null"),
    "wrong type of a number": Case(
        ("--model.optimizer.learning_rate", "fast"), r"model\.optimizer\.learning_rate is fast: give a number"
    ),
    "wrong choice": Case(
        ("--model.policy.dtype", "float8"), r"model\.policy\.dtype is float8: give one of 'float32', 'bfloat16'"
    ),
    "value for a group": Case(MINE, r"data\.sampling.*give.*mapping of keys", overlay(data={"sampling": 3})),
    "value for a group, as a flag": Case(("--data.sampling", "3"), r"data\.sampling is 3: give a mapping of keys"),
    "missing config file": Case(
        ("--config", "search/baem.yaml"), r"search/baem\.yaml.*did you mean search/beam\.yaml\?"
    ),
    "invalid YAML": Case(MINE, r"no valid YAML.*line 2", {"mine.yaml": "data:\n  instances: [3\n"}),
    "linked key": Case(("--data.seed", "3"), r"data\.seed.*seed_everything"),
}


@pytest.fixture
def refused(empty_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Refused:
    """Runs `tsr`, which must refuse, and returns its sentence."""

    def build(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was built")

    monkeypatch.setattr(Policy, "__init__", build)

    def run(*args: object) -> str:
        present = set(empty_folder.iterdir())
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(arg) for arg in args])
        assert ended.value.code == 2
        out, err = capfd.readouterr()
        lines = [line for line in err.splitlines() if line and not line.endswith(("Seed set to 1", "Seed set to 2"))]
        assert out == ""
        assert len(lines) == 1, err
        assert lines[0].startswith("tsr: error: ")
        assert len(lines[0]) < 320
        assert set(empty_folder.iterdir()) - {empty_folder / "__pycache__"} == present  # of a user's file
        return lines[0].removeprefix("tsr: error: ")

    return run


@pytest.mark.parametrize("name", CASES)
def test_refused_with_one_sentence(name: str, refused: Refused, empty_folder: Path):
    case = CASES[name]
    for file, text in case.files.items():
        (empty_folder / file).write_text(text)
    assert re.search(case.pattern, refused(*RUN, *NEW, *case.flags))


def test_misspelt_size_of_a_new_model(refused: Refused):
    sizes = '{"hidden_size": 32, "num_layers": 1}'
    assert re.search(r"model\.num_layers is no key.*num_hidden_layers", refused(*RUN, "--model.policy.model", sizes))


def test_no_subcommand(refused: Refused):
    assert re.search("tsr fit, tsr validate, tsr rollout, tsr play, tsr export", refused())


def test_misspelt_subcommand(refused: Refused):
    assert re.search("fitt is no subcommand: did you mean fit?", refused("fitt"))


def test_fit_without_any_key_names_the_required_ones(refused: Refused):
    assert re.search(r"tsr fit needs --model.policy.model, --model.objective, --data.env.*--config", refused("fit"))


def test_unknown_model(refused: Refused):
    assert re.search("absent/model.*neither a folder", refused(*RUN, "--model.policy.model", "absent/model"))


def test_model_folder_without_weights(refused: Refused, empty_folder: Path):
    folder = empty_folder / "mine"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    sentence = refused(*RUN, *NEW[:1], "mine")
    assert re.search(r"model\.policy\.model is 'mine': the folder has no model\.safetensors, so save", sentence)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From a run with seed 1, GRPO and a new tiny model."""
    folder = tmp_path_factory.mktemp("run")
    with in_folder(folder):
        tsr(*RUN, *NEW, "--trainer.max_epochs", "1").trainer.save_checkpoint(folder / "a.ckpt")
    return folder / "a.ckpt"


def test_checkpoint_of_another_model(checkpoint: Path, refused: Refused):
    other = TINY.replace("32", "48")
    assert re.search("another model.*give the model", refused(*RUN, NEW[0], other, "--ckpt_path", checkpoint))


def test_checkpoint_of_another_adapter(checkpoint: Path, refused: Refused):
    sentence = refused(*RUN, *NEW, "--model.policy.adapter.rank", "4", "--ckpt_path", checkpoint)
    assert re.search("another model.*adapter.*give the model", sentence)


def test_checkpoint_without_the_critic(checkpoint: Path, refused: Refused):
    sentence = refused(*RUN, *NEW, "--config", "objective/ppo.yaml", "--ckpt_path", checkpoint)
    assert re.search(r"a\.ckpt.*no critic.*PPO.*give the objective", sentence)


@pytest.mark.parametrize("subcommand", ["validate", "export"])
def test_checkpoint_of_another_model_for_other_subcommands(subcommand: str, checkpoint: Path, refused: Refused):
    output = ("--output", "out") if subcommand == "export" else ()
    sentence = refused(subcommand, *RUN[1:], NEW[0], TINY.replace("32", "48"), "--ckpt_path", checkpoint, *output)
    assert re.search("another model.*give the model", sentence)


def test_checkpoint_of_another_seed(checkpoint: Path, refused: Refused):
    sentence = refused(*RUN, *NEW, "--seed_everything", "2", "--ckpt_path", checkpoint)
    assert re.search("seed_everything is 2.*had 1: resume with the same seed", sentence)


def test_another_seed_is_accepted_by_validate(checkpoint: Path, empty_folder: Path):
    tsr("validate", *RUN[1:], *NEW, "--seed_everything", "2", "--ckpt_path", checkpoint)


def test_damaged_checkpoint(checkpoint: Path, refused: Refused, empty_folder: Path):
    (empty_folder / "half.ckpt").write_bytes(checkpoint.read_bytes()[:1000])
    assert re.search("half.ckpt.*is truncated", refused(*RUN, *NEW, "--ckpt_path", "half.ckpt"))


def test_export_of_the_last_checkpoint_needs_one(refused: Refused):
    flags = ("export", *RUN[1:], *NEW, "--ckpt_path", "last", "--output", "out")
    assert re.search(r"ckpt_path is last, and this run begins in a new folder.*trainer\.run_folder", refused(*flags))
    assert re.search("the run's folder has no checkpoint: give", refused(*flags, "--trainer.run_folder", "absent"))


def test_the_last_checkpoint_is_exported(checkpoint: Path, empty_folder: Path):
    last = empty_folder / "mine" / "checkpoints" / "last.ckpt"
    last.parent.mkdir(parents=True)
    shutil.copy(checkpoint, last)
    tsr("export", *RUN[1:], *NEW, "--ckpt_path", "last", "--trainer.run_folder", "mine", "--output", "out")
    assert (empty_folder / "out" / "model.safetensors").exists()


def test_checkpoint_of_another_program(refused: Refused, empty_folder: Path):
    torch.save({"state_dict": {}}, empty_folder / "other.ckpt")
    assert re.search("no checkpoint of tsr fit", refused(*RUN, *NEW, "--ckpt_path", "other.ckpt"))


def test_an_error_of_the_program_keeps_its_traceback(empty_folder: Path, monkeypatch: pytest.MonkeyPatch):
    def build(*args: object, **kwargs: object) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr(Policy, "__init__", build)
    with pytest.raises(ValueError, match="a fault") as raised:
        main([*RUN, *NEW])
    assert not isinstance(raised.value, ConfigError)


def test_a_file_of_the_working_folder_precedes_a_shipped_one(empty_folder: Path, refused: Refused):
    shipped = (ROOT / "configs" / "sokoban.yaml").read_text(encoding="utf-8")
    Path("sokoban.yaml").write_text(shipped.replace("\n  instances: ", "\n  instancs: "), encoding="utf-8")
    assert re.search("data.instancs is no key", refused(*RUN, *NEW))
