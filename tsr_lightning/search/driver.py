"""Runs hundreds of searches at once: one engine call per wave for all of them, then environment steps, then scores.

Every draw is keyed by (instance, member, path in the tree, stream), so neither the number of concurrent searches nor
their order changes any of them.
"""

import time
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Engine, Sampling
from tsr_lightning.envs.base import Branchable
from tsr_lightning.envs.waiting import Waiting
from tsr_lightning.rng import Key
from tsr_lightning.search.active import ActiveSearch
from tsr_lightning.search.executors import PendingNodes, StepExecutor, serial, threaded
from tsr_lightning.search.progress import Progress, Report, unreported
from tsr_lightning.search.record import Asked, asked_of, lose, note, record_of, state_key, tree_of
from tsr_lightning.search.retry import NoRetry, RetriesExhausted, Retry
from tsr_lightning.search.sampling import sample_responses
from tsr_lightning.search.scoring import Scoring
from tsr_lightning.search.simulator import ChatFormat, TokenLimits, TurnSimulator
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.search.tree import Demonstrate, DriverState, Node
from tsr_lightning.trajectory import Origin, Trajectory

WAVE_SECONDS = 60.0  # that a wave's environment steps take before a line says what is waited for


@dataclass(frozen=True, slots=True)
class SearchTask:
    """One search: a member of an instance's group."""

    instance: int  # the seed of the initial state, in the environment `env`
    member: int
    strategy: Strategy
    key: Key
    env: int = 0  # index of the environment


@dataclass(slots=True)
class _Cohort:
    """Searches that share their waves."""

    searches: list[ActiveSearch] = field(default_factory=list)
    pending: PendingNodes = list  # the nodes of their last wave
    asked: list[Asked] = field(default_factory=list)  # the turns of these nodes, where they are recorded


class Driver:
    """Runs searches by restoring states.

    Args:
        envs: the environments, by the index that a task names.
        chat_format: builds prompts.
        engine: samples responses.
        sampling: temperature and the token limit of a turn.
        limits: the other token limits.
        concurrency: searches that run at once.
        keep_tree: record all candidates of a strategy that branches in `Trajectory.tree`.
        keep_state_keys: record the state that each turn was taken in, in `Trajectory.state_keys`.
        record: record every turn of every search in `Trajectory.record`, those on which the environment failed too.
        workers: further environments, each like `envs`. If there are any, they step in threads of their own while the
            engine samples responses for the other half of the searches.
        policy_epochs: that the engine's policy has been trained for, recorded in the trajectories; None if unknown.
        retry: repeats calls of an environment that fail; by default the error ends the run. A candidate whose step
            failed for good, or from which a scorer's random play did, is left out of the answer to `Expand`; where a
            node has none left, or the turn of a `Commit` or `Demonstrate` failed, the search is lost.
    """

    def __init__(
        self,
        envs: Sequence[Branchable],
        chat_format: ChatFormat,
        engine: Engine,
        sampling: Sampling,
        limits: TokenLimits,
        concurrency: int = 256,
        keep_tree: bool = False,
        keep_state_keys: bool = False,
        workers: Sequence[Sequence[Branchable]] = (),
        retry: Retry | None = None,
        policy_epochs: int | None = None,
        record: bool = False,
    ) -> None:
        self.engine = engine
        self.temperature = sampling.temperature
        self.concurrency = concurrency
        self.keep_tree = keep_tree
        self.keep_state_keys = keep_state_keys
        self.record = record
        self.policy_epochs = policy_epochs
        self.costs = Costs()
        self._retry = NoRetry() if retry is None else retry
        self.simulator = TurnSimulator(envs, chat_format, sampling, limits, self._retry)
        self._workers = [replace(self.simulator, envs=worker) for worker in workers]
        self._scoring = Scoring(engine, self.simulator)
        # an instance, and whether it is scored, and its root, which a group shares; None where its reset failed
        self._first: tuple[tuple[int, int, bool], Node | None] | None = None

    def run(self, tasks: Sequence[SearchTask], report: Report = unreported) -> list[Trajectory]:
        """One trajectory per task, in the order of the tasks. Adds to `costs`. No search may be lost."""
        return [self.trajectory(task, leaf) for task, leaf in zip(tasks, self.leaves(tasks, report), strict=True)]

    def leaves(self, tasks: Sequence[SearchTask], report: Report = unreported) -> list[Node]:
        """The leaf that each search chose. No search may be lost."""
        chosen = self._search(tasks, report, Progress(), max_lost=len(tasks))
        return [chosen[index] for index in range(len(tasks))]

    def survivors(
        self,
        tasks: Sequence[SearchTask],
        report: Report = unreported,
        begun: Progress | None = None,
        max_lost: int | None = None,
    ) -> list[Trajectory | None]:
        """Trajectories as of `run`, with None for searches that were lost to failures of the environment.

        Args:
            tasks: the searches.
            report: called after every wave.
            begun: the phase's progress before these searches; None begins a phase without a name.
            max_lost: where more are lost, all that have not ended are given up and count as lost.
        """
        most = len(tasks) if max_lost is None else max_lost
        chosen = self._search(tasks, report, Progress() if begun is None else begun, most)
        return [self.trajectory(task, chosen[i]) if i in chosen else None for i, task in enumerate(tasks)]

    def _search(self, tasks: Sequence[SearchTask], report: Report, begun: Progress, max_lost: int) -> dict[int, Node]:
        """The leaf that each search chose, by index; none of those that were lost."""
        before = self.costs
        lost = 0
        chosen: dict[int, Node] = {}
        waiting = deque(enumerate(tasks))
        cohorts = [_Cohort() for _ in range(2 if self._workers else 1)]  # of two, one steps while the other generates
        size = max(1, min(self.concurrency // len(cohorts), -(-len(tasks) // len(cohorts))))
        steps = threaded(self._workers) if self._workers else serial(self.simulator)
        with Waiting(WAVE_SECONDS) as self._waiting, steps as executor:
            while waiting or any(cohort.searches for cohort in cohorts):
                for cohort in cohorts:
                    finished_wave = bool(cohort.searches)
                    if finished_wave:
                        self._finish_wave(cohort, chosen)
                    while waiting and len(cohort.searches) < size:
                        count = min(len(waiting), size - len(cohort.searches))
                        for search in self._begin([waiting.popleft() for _ in range(count)]):
                            _advance(search, None, cohort, chosen)
                    self.costs += self._retry.take_costs()
                    running = sum(len(each.searches) for each in cohorts)
                    ended = len(tasks) - len(waiting) - running
                    if ended - len(chosen) > max_lost:
                        ended, waiting = len(tasks), deque()
                    self.costs += Costs(trajectories_lost=ended - len(chosen) - lost)
                    lost = ended - len(chosen)
                    if lost > max_lost:
                        return chosen
                    if finished_wave:
                        open_ = sum(search.spent for each in cohorts for search in each.searches)
                        spent = (ended + open_) / len(tasks)
                        report(begun.after(ended, len(tasks), self.costs - before, spent))
                    if cohort.searches:
                        self._start_wave(cohort, executor)
        return chosen

    def _begin(self, tasks: Sequence[tuple[int, SearchTask]]) -> list[ActiveSearch]:
        """Searches of tasks, given with their indices; none of those whose reset failed."""
        roots = [(index, task, root) for index, task in tasks if (root := self.root(task)) is not None]
        to_score = [(task.strategy, [root]) for _, task, root in roots if task.strategy.traits.scores_every_node]
        scored = self._scoring.score(to_score)
        self.costs += scored.costs
        return [ActiveSearch(index, task.strategy, root) for index, task, root in roots if id(root) not in scored.lost]

    def root(self, task: SearchTask) -> Node | None:
        """The root of a search, without a score; None where the reset of its instance failed."""
        kind = (task.env, task.instance, task.strategy.traits.scores_every_node)
        if self._first is None or self._first[0] != kind:
            self._first = (kind, self._initial(task))
        _, first = self._first
        return (
            None
            if first is None
            else Node(first.snapshot, DriverState(task.key, first.driver.prompt, env=task.env, instance=task.instance))
        )

    def _initial(self, task: SearchTask) -> Node | None:
        try:
            return self.simulator.root(task.instance, task.key, task.env, task.strategy.traits.scores_every_node)
        except RetriesExhausted:
            return None

    def trajectory(self, task: SearchTask, leaf: Node) -> Trajectory:
        """The path to the chosen leaf, as training data."""
        self.costs += Costs(tokens_kept=leaf.driver.generated_tokens)
        return Trajectory(
            instance=task.instance,
            member=task.member,
            strategy=type(task.strategy).__name__,
            origin=task.strategy.traits.origin,
            turns=leaf.turns,
            ended=leaf.snapshot.ended,
            final_prompt=self.simulator.final_prompt(leaf),
            final_messages=leaf.snapshot.messages,
            tree=tree_of(leaf) if self.keep_tree and task.strategy.traits.branches else (),
            env=task.env,
            state_keys=tuple(map(state_key, leaf.path[:-1])) if self.keep_state_keys or self.record else (),
            policy_epochs=None if task.strategy.traits.origin is Origin.DEMONSTRATED else self.policy_epochs,
            record=record_of(leaf.path[0], self.simulator) if self.record else (),
        )

    def _start_wave(self, cohort: _Cohort, executor: StepExecutor) -> None:
        """Samples the responses of a wave and starts its environment steps."""
        wave = [search.request for search in cohort.searches]
        sampled, costs = sample_responses(wave, self.engine, self.simulator, self.temperature)
        self.costs += costs
        if self.record:
            cohort.asked = asked_of([(search.root, search.request) for search in cohort.searches], iter(sampled))
        responses = iter(sampled)
        steps = [step for search in cohort.searches for step in search.steps(responses)]
        started = time.perf_counter()
        with self._waiting.on(_waited_for(cohort)):
            cohort.pending = executor(steps)
        self.costs += Costs(env_steps=len(steps), seconds_environment=time.perf_counter() - started)

    def _finish_wave(self, cohort: _Cohort, chosen: dict[int, Node]) -> None:
        """Collects the nodes of a wave, scores them and advances the searches that requested them, but for the lost."""
        started = time.perf_counter()
        with self._waiting.on(_waited_for(cohort)):
            answered_nodes = cohort.pending()
        self.costs += Costs(seconds_environment=time.perf_counter() - started)
        if self.record:
            note(cohort.asked, answered_nodes)
        nodes = iter(answered_nodes)
        wave, cohort.searches = [(search, search.answer(nodes)) for search in cohort.searches], []
        answered = [(search, answer) for search, answer in wave if answer is not None]
        scored = self._scoring.score([(search.strategy, search.to_score(answer)) for search, answer in answered])
        self.costs += scored.costs
        for search, answer in answered:
            if (left := search.without(scored.lost, answer)) is not None:
                self._record(search, left, scored.lost)
                _advance(search, left, cohort, chosen)
        self.costs += self.engine.take_costs()

    def _record(self, search: ActiveSearch, answer: Any, lost: Set[int]) -> None:
        """Counts the candidates that an answer lacks, and lists those that it has with their parents, where trees are
        recorded."""
        nodes = search.nodes(answer)
        self.costs += Costs(candidates_lost=search.requested - len(nodes))
        if self.record and lost:
            lose(search.root, lost)
        if self.keep_tree and not isinstance(search.request, Demonstrate):
            for node in nodes:
                if node.parent is not None:
                    node.parent.driver.candidates.append(node)


def _waited_for(cohort: _Cohort) -> str:
    searches = cohort.searches
    return f"the environments of {len(searches)} searches, the first on instance {searches[0].root.driver.instance}"


def _advance(search: ActiveSearch, answer: Any, cohort: _Cohort, chosen: dict[int, Node]) -> None:
    """Sends a search the answer to its request; it goes on in the cohort, or has chosen its leaf."""
    if search.advance(answer):
        cohort.searches.append(search)
    else:
        chosen[search.index] = search.leaf
