"""Extensions as a user writes them, from docs/extend.md: those of the page train (test_readme.py), and with one mistake
each they are refused in one sentence before the run's model loads."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from commands import QUICK, ROOT, in_folder, tsr

from tsr_lightning import Transformers, check_branchable, check_engine
from tsr_lightning.envs.checker import BranchabilityError
from tsr_lightning.errors import ConfigError, RunError
from tsr_lightning.training import agent

EXTEND = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
SOURCES = {
    **dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", EXTEND, re.DOTALL)),
    "tree_grpo": (ROOT / "tests" / "tree_grpo.py").read_text(encoding="utf-8"),
}
STRATEGY, OBJECTIVE = "--data.plan.init_args.strategy", "--model.objective.init_args"
SOKOBAN, BEAM = ("--config", "sokoban.yaml"), ("--config", "search/beam.yaml")
TREE = (*SOKOBAN, *BEAM, "--config", "credit/tree.yaml")
COMMANDS = {
    "stubborn": (*SOKOBAN, STRATEGY, "{}.Stubborn"),
    "valid_actions": (*SOKOBAN, *BEAM, f"{STRATEGY}.init_args.scorer", "{}.ValidActions"),
    "median": (*SOKOBAN, f"{OBJECTIVE}.advantage", "{}.MedianBaseline"),
    "equal_turns": (
        *(*SOKOBAN, f"{OBJECTIVE}.advantage", "{}.WithTurnTokens", f"{OBJECTIVE}.surrogate", "{}.EqualTurns"),
    ),
    "tree_grpo": (*TREE, f"{OBJECTIVE}.searched", "{}.TreeGRPO"),
    "clerk": ("--config", "warm_start/frozen_lake.yaml", "--data.env", "{0}:{0}-v0"),
    "plain_engine": (*SOKOBAN, "--data.engine", "{}.Plain"),
}


class Mistake(NamedTuple):
    """A mistake in an extension: the right line, the wrong one, and the sentence that refuses it."""

    extension: str
    right: str
    wrong: str
    sentence: str


MISTAKES = {
    "a trait that biases credit": Mistake(
        "stubborn",
        "independent_siblings=False",
        "independent_siblings=True",
        r"traits\.independent_siblings is True, and in a rehearsal it draws further responses .* earlier ones failed",
    ),
    "a trait that hides selection": Mistake(
        "stubborn", "Origin.SEARCHED", "Origin.SAMPLED", r"traits\.origin is SAMPLED, .* which trajectory it returns"
    ),
    "a forgotten property of a scorer": Mistake(
        "valid_actions",
        "node.env_score - ",
        "node.env_score + sum(turn.reward for turn in node.turns) - ",
        r"ValidActions\.includes_rewards is False, and its score changes",
    ),
    "a scorer that asks the critic in secret": Mistake(
        "valid_actions",
        "return [node.env_score",
        "return [value - node.env_score for value, node in zip(critic(nodes), nodes)] or [node.env_score",
        r"ValidActions\.needs_critic is False, and it asks the critic",
    ),
    "a scorer of the other sign": Mistake(
        "valid_actions",
        "node.env_score - ",
        "-node.env_score - ",
        r"ValidActions scores a success below a failure in its place: change the sign",
    ),
    "a score that earlier calls change": Mistake(
        "valid_actions",
        "return [node.env_score",
        "self.__dict__.setdefault('seen', []).extend(nodes); return [node.env_score - 0.01 * len(self.seen)",
        r"ValidActions gives nodes the scores .* let a score depend on its node and the critic",
    ),
    "a baseline minus the return": Mistake(
        "median",
        "returns - returns.median()",
        "returns.median() - returns",
        r"MedianBaseline gives lower advantages for higher returns: change the sign",
    ),
    "a quantity that its reader misspells": Mistake(
        "equal_turns",
        'targets.quantities["turn_tokens"]',
        'targets.quantities["turn_token"]',
        r"GRPO reads the quantity 'turn_token' per token, and its needs name \['turn_tokens'\]: add it to Needs",
    ),
    "a quantity that its maker misspells": Mistake(
        "equal_turns",
        'quantities={"turn_tokens"',
        'quantities={"turn_token"',
        r"GRPO\.needs names the quantity 'turn_tokens' per token, and its credit gives none; did you mean 'turn_token'",
    ),
    "a quantity per turn": Mistake(
        "equal_turns", " for _ in range(length)", "", r"GRPO gives the quantity 'turn_tokens' per token in the shape"
    ),
    "a loss that is maximised": Mistake(
        "equal_turns",
        "losses=clipped",
        "losses=-clipped",
        r"GRPO has a loss that makes tokens of a positive advantage less likely: change the sign",
    ),
    "a loss without a gradient": Mistake(
        "equal_turns",
        "losses=clipped.losses /",
        "losses=clipped.losses.detach() /",
        r"GRPO has a loss that makes no token of a positive advantage more likely: let it depend on the log-prob",
    ),
    "leaves that are worth their costs": Mistake(
        "tree_grpo",
        "value=sum(",
        "value=-sum(",
        r"GRPO gives a success the value -\d\.\d\d and a failure .* change the sign",
    ),
    "the state that a turn led to": Mistake(
        "tree_grpo",
        "states = proposed_in(tree)",
        "states = [*proposed_in(tree)[1:], proposed_in(tree)[0]]",
        r"GRPO gives a path a turn and another state than it was proposed in",
    ),
    "a forgotten tree": Mistake(
        "tree_grpo", "tree=True", "tree=False", r"without \(Needs\.tree is False\) search trees"
    ),
    "an answer that branches share": Mistake(
        "clerk",
        "self.case = state\n",
        "self.case = state._replace(looked=self.case.looked)\n",
        r"data\.env is .*, whose set_state and reseed do not bring the first state back: ",
    ),
    "messages as dictionaries": Mistake(
        "clerk",
        'return [Message("user", f"What does {self.case.item} cost?")], {}',
        'return [{"role": "user", "content": f"What does {self.case.item} cost?"}], {}',
        r"an observation is a text or a sequence of trajectory\.Message, and this holds \{'role'",
    ),
    "a copy that is never synced": Mistake(
        "plain_engine",
        "self.model, self.end_ids, self.costs = model",
        'self.model, self.end_ids, self.costs = __import__("copy").deepcopy(model)',
        r"PlainEngine gives, after the weights changed and sync was called, the log-probability .* let sync take over",
    ),
    "log-probabilities of the other sign": Mistake(
        "plain_engine",
        "float(of_tokens[token])",
        "-float(of_tokens[token])",
        r"PlainEngine gives the log-probability \d+\.\d\d where it is -",
    ),
    "a generator that responses share": Mistake(
        "plain_engine",
        "key.uniform(len(ids))",
        "float(torch.rand(()))",
        r"PlainEngine gives other responses when prompts",
    ),
    "responses in another order": Mistake(
        "plain_engine",
        "for seed in prompt.seeds]",
        "for seed in prompt.seeds[::-1]]",
        r"PlainEngine gives a seed of Prompt\.seeds another response when it stands elsewhere: keep their order",
    ),
    "one seed for all": Mistake(
        "plain_engine", "Key(seed)", "Key(7)", r"PlainEngine gives one response for all seeds: draw each with its own"
    ),
    "an end that is sampled past": Mistake(
        "plain_engine", " and not self.end_ids.intersection(ids)", "", r"PlainEngine samples on after an id of end_ids"
    ),
    "costs that are never reset": Mistake(
        "plain_engine",
        "costs, self.costs = self.costs, Costs()",
        "costs = self.costs",
        r"PlainEngine\.take_costs gives",
    ),
    "an exclusion that is promised": Mistake(
        "plain_engine", "can_exclude: ClassVar[bool] = False", "can_exclude: ClassVar[bool] = True", r"Prompt\.excluded"
    ),
    "values of another state": Mistake(
        "plain_engine", "of_layers[-1][0, -1:]", "of_layers[-1][0, :1]", r"PlainEngine\.values gives"
    ),
}


def write(folder: Path, extension: str, source: str, module: str) -> list[str]:
    """Writes an extension where a user has it, and returns the command that uses it; every module has a name of its
    own, since Python imports a name once."""
    (folder / f"{module}.py").write_text(source.replace("Clerk-v0", f"{module}-v0"), encoding="utf-8")
    return ["fit", *(part.format(module) for part in COMMANDS[extension]), *QUICK, "--data.held_out.instances", "2"]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_before_a_model_loads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was built")

    monkeypatch.setattr(agent, "Policy", build)
    mistake = MISTAKES[name]
    right = SOURCES[mistake.extension]
    assert right.count(mistake.right) == 1
    module = "broken_" + re.sub(r"\W", "_", name)
    command = write(tmp_path, mistake.extension, right.replace(mistake.right, mistake.wrong), module)
    with in_folder(tmp_path), pytest.raises((ConfigError, RunError), match=mistake.sentence) as refused:
        tsr(*command)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_credit_on_the_leaves_of_trees_trains(tmp_path: Path) -> None:
    command = write(tmp_path, "tree_grpo", SOURCES["tree_grpo"], "own_tree_grpo")
    with in_folder(tmp_path):
        cli = tsr(*command)
    assert cli.trainer.global_step > 0
    assert cli.trainer.callback_metrics["train/grad_norm_policy"] > 0


def test_the_checker_names_the_state_that_branches_share(tmp_path: Path) -> None:
    mistake = MISTAKES["an answer that branches share"]
    write(tmp_path, "clerk", SOURCES["clerk"].replace(mistake.right, mistake.wrong), "shared_clerk")
    write(tmp_path, "clerk", SOURCES["clerk"], "own_clerk")
    with in_folder(tmp_path), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        check_branchable("own_clerk:own_clerk-v0", noisy=False, seeds=range(2))
        with pytest.raises(BranchabilityError, match=r"seed 0"):
            check_branchable("shared_clerk:shared_clerk-v0", seeds=range(2))


def test_the_default_engine_is_as_the_contract_says() -> None:
    check_engine(Transformers())
