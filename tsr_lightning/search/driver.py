"""Runs hundreds of searches at once: one engine call per wave for all of them, then the environment, then the scores.

Every draw is keyed by (instance, member, path in the tree, stream), so neither the number of searches that run side by
side nor their order changes any of them.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Engine, Prompt, Response, Sampling
from tsr_lightning.envs.base import Branchable
from tsr_lightning.rng import Key, Stream
from tsr_lightning.search.executors import Job, Pending, Serial, StepExecutor, beside
from tsr_lightning.search.simulator import ChatFormat, TokenLimits, TurnSimulator
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.search.tree import Commit, Demonstrate, Expand, Node, Request, Search
from tsr_lightning.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class SearchTask:
    """One search: a member of an instance's group."""

    instance: int  # the seed of the initial state
    member: int
    strategy: Strategy
    key: Key


@dataclass(slots=True)
class _Running:
    """A search under way: its generator and what it asked for last."""

    index: int
    task: SearchTask
    root: Node
    search: Search
    request: Request | None = None


@dataclass(slots=True)
class _Crew:
    """Searches that make their waves together."""

    searches: list[_Running]
    stepping: Pending  # of their last wave


ProgressFn = Callable[[int, int, Costs], None]  # (searches ended, of how many, costs since the run began)


class Driver:
    """Plays searches by restoring states.

    Args:
        env: the environment, already made.
        speaker: the prompts.
        engine: the policy.
        sampling: temperature and the budget of a turn.
        limits: the other budgets.
        concurrency: searches that run side by side.
        keep_trees: keep every node that was proposed as `children` of its parent.
        workers: further environments, made like the first. Where there are any, they step in threads of their own
            while responses are drawn for the other half of the searches.
    """

    def __init__(
        self,
        env: Branchable,
        speaker: ChatFormat,
        engine: Engine,
        sampling: Sampling,
        limits: TokenLimits,
        concurrency: int = 256,
        keep_trees: bool = False,
        workers: Sequence[Branchable] = (),
    ) -> None:
        self.engine = engine
        self.temperature = sampling.temperature
        self.concurrency = concurrency
        self.keep_trees = keep_trees
        self.costs = Costs()
        self._moves = TurnSimulator(env, speaker, sampling, limits)
        self._workers = [replace(self._moves, env=worker) for worker in workers]
        self._start: tuple[int, Node] | None = None  # the members of a group begin alike

    def run(self, tasks: Sequence[SearchTask], watch: ProgressFn | None = None) -> list[Trajectory]:
        """One trajectory per task, in their order. `costs` grows by what it took."""
        return [self.trajectory(task, leaf) for task, leaf in zip(tasks, self.leaves(tasks, watch), strict=True)]

    def leaves(self, tasks: Sequence[SearchTask], watch: ProgressFn | None = None) -> list[Node]:
        """The leaf that each search chose."""
        before = self.costs
        chosen: dict[int, Node] = {}
        waiting = list(reversed(list(enumerate(tasks))))
        with self._stage() as stage:
            crews = [_Crew([], list) for _ in range(stage.crews)]
            side_by_side = max(1, min(self.concurrency // stage.crews, -(-len(tasks) // stage.crews)))
            while waiting or any(crew.searches for crew in crews):
                for crew in crews:
                    heard = bool(crew.searches)
                    if heard:
                        self._hear(crew, chosen)
                    while waiting and len(crew.searches) < side_by_side:
                        index, task = waiting.pop()
                        root = self.root(task)
                        self._resume(_Running(index, task, root, task.strategy(root)), None, crew.searches, chosen)
                    if heard and watch is not None:
                        watch(len(chosen), len(tasks), self.costs - before)
                    if crew.searches:
                        crew.stepping = self._begin(crew.searches, stage)
        return [chosen[index] for index in range(len(tasks))]

    def root(self, task: SearchTask) -> Node:
        """The first moment of a search."""
        if self._start is None or self._start[0] != task.instance:
            self._start = (task.instance, self._moves.root(task.instance, task.key))
        return replace(self._start[1], key=task.key, children=[])

    def trajectory(self, task: SearchTask, leaf: Node) -> Trajectory:
        """The chosen path as what is trained on."""
        self.costs += Costs(tokens_kept=leaf.generated)
        return Trajectory(
            instance=task.instance,
            member=task.member,
            strategy=type(task.strategy).__name__,
            origin=task.strategy.origin,
            turns=leaf.turns,
            succeeded=leaf.succeeded,
            truncated=leaf.truncated,
            final_prompt=self._moves.final_prompt(leaf),
            final_observation=leaf.observation,
        )

    def _stage(self) -> AbstractContextManager[StepExecutor]:
        return beside(self._workers) if self._workers else nullcontext(Serial(self._moves))

    def _resume(self, search: _Running, answer: Any, running: list[_Running], chosen: dict[int, Node]) -> None:
        try:
            search.request = search.search.send(answer)
            running.append(search)
        except StopIteration as stop:
            chosen[search.index] = stop.value

    def _begin(self, wave: Sequence[_Running], stage: StepExecutor) -> Pending:
        """Draws the responses of a wave, and lets the environments begin to step."""
        proposals = self._propose(wave)
        jobs = [job for search in wave for job in _jobs(search, proposals.get(search.index, []))]
        started = time.perf_counter()
        stepping = stage.start(jobs)
        self.costs += Costs(env_steps=len(jobs), seconds_environment=time.perf_counter() - started)
        return stepping

    def _hear(self, crew: _Crew, chosen: dict[int, Node]) -> None:
        """What came of the crew's wave, told to its searches, which go on."""
        started = time.perf_counter()
        nodes = iter(crew.stepping())
        self.costs += Costs(seconds_environment=time.perf_counter() - started)
        wave, crew.searches = crew.searches, []
        answers = [self._answer(search, nodes) for search in wave]
        self._score(wave, answers)
        for search, answer in zip(wave, answers, strict=True):
            self._resume(search, answer, crew.searches, chosen)
        self.costs += self.engine.take_costs()

    def _answer(self, search: _Running, nodes: Iterator[Node]) -> Any:
        """What a search asked for, of the nodes of its wave."""
        if not isinstance(search.request, Expand):
            return next(nodes)
        families = [list(islice(nodes, search.request.count)) for _ in search.request.nodes]
        if self.keep_trees:
            for node, family in zip(search.request.nodes, families, strict=True):
                node.children += family
        return families

    def _propose(self, wave: Sequence[_Running]) -> dict[int, list[list[Response]]]:
        """One engine call for every `Expand` of the wave."""
        prompts: list[Prompt] = []
        owners: list[int] = []
        for search in wave:
            if isinstance(search.request, Expand):
                for node in search.request.nodes:
                    keys = [node.key.fold_in(node.expanded + i) for i in range(search.request.count)]
                    token_budget = self._moves.token_budget(node)
                    prompts.append(
                        Prompt(node.prompt, tuple(k.fold_in(Stream.POLICY).value for k in keys), token_budget)
                    )
                    owners.append(search.index)
        if not prompts:
            return {}
        started = time.perf_counter()
        responses = self.engine.generate(prompts, self.temperature)
        self.costs += Costs(waves=1, seconds_generation=time.perf_counter() - started)
        proposals: dict[int, list[list[Response]]] = {}
        for owner, family in zip(owners, responses, strict=True):
            proposals.setdefault(owner, []).append(family)
        return proposals

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
            self._moves.token_budget(node)
        return self.engine.values([node.prompt for node in nodes])


def _jobs(search: _Running, proposals: Sequence[Sequence[Response]]) -> list[Job]:
    """The steps that a search asked for."""
    match search.request:
        case Expand(nodes=nodes):
            scored = search.task.strategy.scored_by is not None
            return [
                partial(TurnSimulator.simulate, node=node, number=_next(node), response=response, scored=scored)
                for node, responses in zip(nodes, proposals, strict=True)
                for response in responses
            ]
        case Commit(node=node):
            return [partial(TurnSimulator.commit, root=search.root, simulate=node)]
        case Demonstrate(node=node, noise=noise):
            return [partial(TurnSimulator.expert_step, node=node, number=_next(node), noise=noise)]
        case None:
            raise ValueError("a search that asked for nothing is not under way")


def _next(node: Node) -> int:
    """The number of a node's next child."""
    node.expanded += 1
    return node.expanded - 1
