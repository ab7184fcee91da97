"""Runs hundreds of searches at once: one engine call per wave for all of them, then the environment, then the scores.

Every draw is keyed by (instance, member, path in the tree, stream), so neither the number of searches that run side by
side nor their order changes any of them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tsr_lightning.draws import Key, Stream
from tsr_lightning.envs.branchable import Branchable, Solvable
from tsr_lightning.errors import ConfigError
from tsr_lightning.generation.engine import Engine, Prompt, Response, Sampling
from tsr_lightning.search.ledger import Ledger
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.search.tree import Commit, Demonstrate, Expand, Node, Request, Search
from tsr_lightning.trajectory import Trajectory, Turn


class Speaker(Protocol):
    """Text to token ids and back, for search, which knows no tokenizer."""

    def prompt(self, system: str, turns: Sequence[Turn], observation: str) -> tuple[int, ...]: ...

    def read(self, response: Sequence[int]) -> str: ...

    def write(self, text: str) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Limits:
    """What may be said. A node whose budget is used up has ended, truncated.

    Args:
        context: the most tokens of a prompt and its response together: the model's own, or less.
        episode: the most tokens that all responses of an episode may say; null for no limit.
    """

    context: int
    episode: int | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """One search: a member of an instance's group."""

    instance: int  # the seed of the initial state
    member: int
    strategy: Strategy
    key: Key


@dataclass(slots=True)
class _Running:
    """A search under way: its generator and what it asked for last."""

    index: int
    task: Task
    root: Node
    search: Search
    request: Request | None = None


Watch = Callable[[int, int, Ledger], None]  # (searches ended, of how many, costs so far)


class Driver:
    """Plays searches on one environment object by restoring states.

    Args:
        env: the environment, already made.
        speaker: the prompts.
        engine: the policy.
        sampling: temperature and the budget of a turn.
        limits: the other budgets.
        concurrency: searches that run side by side.
        keep_trees: keep every node that was proposed as `children` of its parent.
    """

    def __init__(
        self,
        env: Branchable,
        speaker: Speaker,
        engine: Engine,
        sampling: Sampling,
        limits: Limits,
        concurrency: int = 256,
        keep_trees: bool = False,
    ) -> None:
        self.env = env
        self.speaker = speaker
        self.engine = engine
        self.sampling = sampling
        self.limits = limits
        self.concurrency = concurrency
        self.keep_trees = keep_trees
        self.costs = Ledger()
        self._start: tuple[int, Node] | None = None  # the members of a group begin alike

    def run(self, tasks: Sequence[Task], watch: Watch | None = None) -> list[Trajectory]:
        """One trajectory per task, in their order. `costs` grows by what it took."""
        return [self.trajectory(task, leaf) for task, leaf in zip(tasks, self.leaves(tasks, watch), strict=True)]

    def leaves(self, tasks: Sequence[Task], watch: Watch | None = None) -> list[Node]:
        """The leaf that each search chose."""
        chosen: dict[int, Node] = {}
        waiting = list(reversed(list(enumerate(tasks))))
        running: list[_Running] = []
        while waiting or running:
            while waiting and len(running) < self.concurrency:
                index, task = waiting.pop()
                root = self.root(task)
                self._resume(_Running(index, task, root, task.strategy(root)), None, running, chosen)
            wave, running = running, []
            for search, answer in zip(wave, self._answers(wave), strict=True):
                self._resume(search, answer, running, chosen)
            self.costs += self.engine.take_costs()
            if watch is not None:
                watch(len(chosen), len(tasks), self.costs)
        return [chosen[index] for index in range(len(tasks))]

    def root(self, task: Task) -> Node:
        """The first moment of an instance."""
        if self._start is not None and self._start[0] == task.instance:
            return replace(self._start[1], key=task.key, children=[])
        observation, _ = self.env.reset(seed=task.instance)
        root = Node(self.env.get_state(), observation, task.key, self.env.state_key(), self.env.remaining())
        if self._allowance(root) < 1:
            raise ConfigError(
                f"the first prompt has {len(root.prompt)} tokens, which leaves no room for a response within "
                f"{self.limits.context}: use a model or data.context_tokens with a longer context"
            )
        self._start = (task.instance, replace(root))
        return root

    def trajectory(self, task: Task, leaf: Node) -> Trajectory:
        """The chosen path as what is trained on."""
        kept = leaf.turns
        self.costs += Ledger(tokens_kept=leaf.generated)
        final = self.speaker.prompt(self.env.instructions, kept, leaf.observation) if leaf.truncated else ()
        return Trajectory(
            instance=task.instance,
            member=task.member,
            strategy=type(task.strategy).__name__,
            searched=task.strategy.selects,
            turns=kept,
            succeeded=leaf.succeeded,
            truncated=leaf.truncated,
            final_prompt=final if len(final) < self.limits.context else (),
            final_observation=leaf.observation,
        )

    def _resume(self, search: _Running, answer: Any, running: list[_Running], chosen: dict[int, Node]) -> None:
        try:
            search.request = search.search.send(answer)
            running.append(search)
        except StopIteration as stop:
            chosen[search.index] = stop.value

    def _answers(self, wave: Sequence[_Running]) -> list[Any]:
        """What each search of the wave asked for."""
        proposals = self._propose(wave)
        started = time.perf_counter()
        answers: list[Any] = []
        steps = 0
        for search in wave:
            match search.request:
                case Expand(nodes=nodes):
                    scored = search.task.strategy.scored_by is not None
                    families = [
                        [self._child(node, response, scored) for response in responses]
                        for node, responses in zip(nodes, proposals[search.index], strict=True)
                    ]
                    steps += sum(len(family) for family in families)
                    answers.append(families)
                case Commit(node=node):
                    steps += 1
                    answers.append(self._realise(search, node))
                case Demonstrate(node=node, noise=noise):
                    steps += 1
                    answers.append(self._demonstrate(node, noise))
        self.costs += Ledger(env_steps=steps, seconds_environment=time.perf_counter() - started)
        self._score(wave, answers)
        return answers

    def _propose(self, wave: Sequence[_Running]) -> dict[int, list[list[Response]]]:
        """One engine call for every `Expand` of the wave."""
        prompts: list[Prompt] = []
        owners: list[int] = []
        for search in wave:
            if isinstance(search.request, Expand):
                for node in search.request.nodes:
                    keys = [node.key.fold(node.expanded + i) for i in range(search.request.count)]
                    allowance = self._allowance(node)
                    prompts.append(Prompt(node.prompt, tuple(k.fold(Stream.POLICY).value for k in keys), allowance))
                    owners.append(search.index)
        if not prompts:
            return {}
        started = time.perf_counter()
        responses = self.engine.generate(prompts, self.sampling.temperature)
        self.costs += Ledger(waves=1, seconds_generation=time.perf_counter() - started)
        proposals: dict[int, list[list[Response]]] = {}
        for owner, family in zip(owners, responses, strict=True):
            proposals.setdefault(owner, []).append(family)
        return proposals

    def _child(self, node: Node, response: Response, scored: bool) -> Node:
        """What search imagines to come of a response: a branch with noise of its own."""
        key = node.key.fold(node.expanded)
        node.expanded += 1
        child = self._step(node, response, key, key.fold(Stream.BRANCH), self.speaker.read(response.ids))
        if scored:
            child.feedback = self.env.score()
        if self.keep_trees:
            node.children.append(child)
        return child

    def _realise(self, search: _Running, imagined: Node) -> Node:
        """What does come of a response in the real episode."""
        turn, parent = imagined.turn, imagined.parent
        if turn is None or parent is None:
            raise ValueError("a root cannot be committed: it has no response to play")
        real = search.root.key.fold(Stream.REAL, parent.depth)
        response = Response(turn.response, turn.logprobs, turn.finished)
        return self._step(parent, response, real.fold("path"), real, turn.text)

    def _demonstrate(self, node: Node, noise: float) -> Node:
        """One turn of the oracle."""
        if not isinstance(self.env, Solvable):
            raise ConfigError(f"the strategy Expert needs an oracle, and {type(self.env).__name__} has none")
        key = node.key.fold(node.expanded)
        node.expanded += 1
        self._allowance(node)  # builds the prompt
        self.env.set_state(node.state)
        text = self.env.oracle(noise, key.fold(Stream.ORACLE))
        ids = self.speaker.write(text)
        child = self._step(node, Response(ids, (0.0,) * len(ids), True), key, key.fold(Stream.BRANCH), text)
        child.generated = node.generated
        return child

    def _step(self, node: Node, response: Response, key: Key, noise: Key, text: str) -> Node:
        self.env.set_state(node.state)
        self.env.reseed(noise)
        observation, reward, terminated, truncated, info = self.env.step(text)
        turn = Turn(
            prompt=node.prompt,
            response=response.ids,
            logprobs=response.logprobs,
            finished=response.finished,
            observation=node.observation,
            text=text,
            reward=float(reward),
            valid=bool(info["action_is_valid"]),
            effective=bool(info["action_is_effective"]),
        )
        child = Node(
            state=self.env.get_state(),
            observation=observation,
            key=key,
            state_key=self.env.state_key(),
            remaining=self.env.remaining(),
            depth=node.depth + 1,
            total=node.total + float(reward),
            done=terminated or truncated,
            succeeded=bool(info["success"]),
            truncated=truncated and not terminated,
            parent=node,
            turn=turn,
            said=node.said + len(response.ids),
            generated=node.generated + len(response.ids),
            tie=key.fold(Stream.TIES).uniform(),
        )
        if not child.done and not self._has_room(child):
            child.done = child.truncated = True
        return child

    def _score(self, wave: Sequence[_Running], answers: Sequence[Any]) -> None:
        """Sets the scores of all children of the wave, one call per scorer, so that a critic sees one batch."""
        batches: dict[int, tuple[Any, list[Node]]] = {}
        for search, answer in zip(wave, answers, strict=True):
            scorer = search.task.strategy.scored_by
            if isinstance(search.request, Expand) and scorer is not None:
                _, nodes = batches.setdefault(id(scorer), (scorer, []))
                nodes.extend(child for family in answer for child in family)
        for scorer, nodes in batches.values():
            for node, score in zip(nodes, scorer(nodes, self._values), strict=True):
                node.score = score

    def _values(self, nodes: Sequence[Node]) -> list[float]:
        for node in nodes:
            self._allowance(node)
        return self.engine.values([node.prompt for node in nodes])

    def _has_room(self, node: Node) -> bool:
        """Whether another response fits. A prompt is built only where a bound on its length leaves that open: every
        token is at least a byte of text, or one of the template's."""
        parent = node.parent
        bound = len(node.observation.encode()) + 64
        if parent is not None and node.turn is not None:
            bound += len(parent.prompt) + len(node.turn.response)
        if bound + 1 <= self.limits.context and self.limits.episode is None:
            return True
        return self._allowance(node) >= 1

    def _allowance(self, node: Node) -> int:
        """How many tokens the next response may have; builds the prompt."""
        if not node.prompt:
            node.prompt = self.speaker.prompt(self.env.instructions, node.turns, node.observation)
        room = self.limits.context - len(node.prompt)
        if self.limits.episode is not None:
            room = min(room, self.limits.episode - node.said)
        return min(room, self.sampling.max_response_tokens)
