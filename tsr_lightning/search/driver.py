"""Runs hundreds of searches at once: one engine call per wave for all of them, then environment steps, then scores.

Every draw is keyed by (instance, member, path in the tree, stream), so neither the number of concurrent searches nor
their order changes any of them.
"""

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Engine, Prompt, Response, Sampling
from tsr_lightning.envs.base import Branchable
from tsr_lightning.envs.waiting import Waiting
from tsr_lightning.errors import RunError
from tsr_lightning.rng import Key, Stream
from tsr_lightning.search.executors import EnvStep, PendingNodes, StepExecutor, serial, threaded
from tsr_lightning.search.progress import Progress, Report, unreported
from tsr_lightning.search.record import Asked, asked_of, candidate_of, note, record_of, state_key
from tsr_lightning.search.retry import NoRetry, RetriesExhausted, Retry
from tsr_lightning.search.scorers import Scorer
from tsr_lightning.search.simulator import ChatFormat, TokenLimits, TurnSimulator
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.search.tree import Commit, Demonstrate, DriverState, Expand, Node, Request, Search, flat
from tsr_lightning.trajectory import Candidate, Origin, Trajectory

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
class _ActiveSearch:
    """A search in progress."""

    index: int
    task: SearchTask
    root: Node
    generator: Search
    request: Request = field(init=False)  # the generator's last


@dataclass(slots=True)
class _Cohort:
    """Searches that share their waves."""

    searches: list[_ActiveSearch] = field(default_factory=list)
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
            failed for good is left out of the answer to `Expand`; where a node has none left, or the turn of a `Commit`
            or `Demonstrate` failed, the search is lost.
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
        self._scorers: dict[int, Scorer] = {}  # as they are in these searches, by the identity of those in strategies
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
                        open_ = sum(_spent(search) for each in cohorts for search in each.searches)
                        spent = (ended + open_) / len(tasks)
                        report(begun.after(ended, len(tasks), self.costs - before, spent))
                    if cohort.searches:
                        self._start_wave(cohort, executor)
        return chosen

    def _begin(self, tasks: Sequence[tuple[int, SearchTask]]) -> list[_ActiveSearch]:
        """Searches of tasks, given with their indices; none of those whose reset failed."""
        roots = [(index, task, root) for index, task in tasks if (root := self.root(task)) is not None]
        self._score([(task.strategy, [root]) for _, task, root in roots if task.strategy.traits.scores_every_node])
        return [_ActiveSearch(index, task, root, task.strategy(root)) for index, task, root in roots]

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
            tree=_tree(leaf) if self.keep_tree and task.strategy.traits.branches else (),
            env=task.env,
            state_keys=tuple(map(state_key, leaf.path[:-1])) if self.keep_state_keys or self.record else (),
            policy_epochs=None if task.strategy.traits.origin is Origin.DEMONSTRATED else self.policy_epochs,
            record=record_of(leaf.path[0], self.simulator) if self.record else (),
        )

    def _start_wave(self, cohort: _Cohort, executor: StepExecutor) -> None:
        """Samples the responses of a wave and starts its environment steps."""
        sampled = self._sample([search.request for search in cohort.searches])
        if self.record:
            cohort.asked = asked_of([(search.root, search.request) for search in cohort.searches], iter(sampled))
        responses = iter(sampled)
        steps = [step for search in cohort.searches for step in _steps(search, responses)]
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
        wave, cohort.searches = [(search, self._answer(search, nodes)) for search in cohort.searches], []
        answered = [(search, answer) for search, answer in wave if answer is not None]
        self._score([(search.task.strategy, _to_score(search, answer)) for search, answer in answered])
        for search, answer in answered:
            _advance(search, answer, cohort, chosen)
        self.costs += self.engine.take_costs()

    def _sample(self, wave: Sequence[Request]) -> list[list[Response]]:
        """The responses to each node of every `Expand` of the wave, in order, by one engine call, another for each
        further response without replacement, and one for greedy responses."""
        asked = [(node, request) for request in wave if isinstance(request, Expand) for node in request.nodes]
        groups: list[list[Response]] = [[] for _ in asked]
        while wanted := [i for i, (_, expand) in enumerate(asked) if len(groups[i]) < expand.count]:
            started = time.perf_counter()
            greedy = all(asked[i][1].greedy for i in wanted)  # these are left to the last
            wanted = [i for i in wanted if asked[i][1].greedy == greedy]
            prompts = [self._prompt(*asked[i], len(groups[i])) for i in wanted]
            sampled = self.engine.generate(prompts, 0.0 if greedy else self.temperature)
            self.costs += Costs(waves=1, seconds_generation=time.perf_counter() - started)
            _require_finite(sampled)
            for i, responses in zip(wanted, sampled, strict=True):
                groups[i] += responses
                node, expand = asked[i]
                if expand.without_replacement:
                    node.driver.excluded += tuple(responses)
        return groups

    def _prompt(self, node: Node, expand: Expand, sampled: int) -> Prompt:
        """For the responses that follow those sampled: all others, or the next one, which differs from them."""
        count = 1 if expand.without_replacement else expand.count
        keys = [node.driver.key.fold_in(node.driver.children + sampled + i) for i in range(count)]
        return Prompt(
            self.simulator.prompt(node),
            seeds=tuple(key.fold_in(Stream.POLICY).value for key in keys),
            max_new_tokens=self.simulator.token_budget(node),
            excluded=node.driver.excluded if expand.without_replacement else (),
        )

    def _answer(self, search: _ActiveSearch, nodes: Iterator[Node | None]) -> Any:
        """The answer to a search's request, taken from the nodes of its wave; None where the search is lost."""
        match search.request:
            case Expand(parents, count):
                groups = [[node for node in islice(nodes, count) if node is not None] for _ in parents]
                if count and not all(groups):
                    return None
                self.costs += Costs(candidates_lost=len(parents) * count - sum(map(len, groups)))
                self._keep(flat(groups))
                return groups
            case Commit():
                node = next(nodes)
                self._keep([] if node is None else [node])
                return node
            case Demonstrate():
                return next(nodes)

    def _keep(self, nodes: Sequence[Node]) -> None:
        """Lists nodes with their parents, where trees are recorded."""
        for node in nodes if self.keep_tree else ():
            if node.parent is not None:
                node.parent.driver.candidates.append(node)

    def _score(self, groups: Sequence[tuple[Strategy, Sequence[Node]]]) -> None:
        """Sets the scores of the nodes of strategies, one call per scorer, so that a critic sees one batch."""
        batches: dict[int, tuple[Scorer, list[Node]]] = {}
        for strategy, own in groups:
            scorer = strategy.traits.scored_by
            if own and scorer is not None:
                if id(scorer) not in self._scorers:
                    self._scorers[id(scorer)] = scorer.in_search(self._play_randomly)
                _, nodes = batches.setdefault(id(scorer), (self._scorers[id(scorer)], []))
                nodes.extend(own)
        for scorer, nodes in batches.values():
            for node, score in zip(nodes, scorer(nodes, self._values), strict=True):
                if not math.isfinite(score):
                    response = repr(node.turn.text) if node.turn is not None else "no response yet"
                    raise RunError(
                        f"{type(scorer).__name__} gives the score {score} (instance {node.driver.instance}, after "
                        f"{response}); let it give finite numbers"
                    )
                node.score = score

    def _play_randomly(self, node: Node, keys: Sequence[Key], horizon: int) -> list[int | None]:
        """See `TurnSimulator.play_randomly`. Where the environment fails for good no rollout succeeds: the state is
        ranked last, and nothing is trained on that."""
        started = time.perf_counter()
        try:
            return self.simulator.play_randomly(node, keys, horizon)
        except RetriesExhausted:
            return [None] * len(keys)
        finally:
            self.costs += Costs(seconds_environment=time.perf_counter() - started)

    def _values(self, nodes: Sequence[Node]) -> list[float]:
        return self.engine.values([self.simulator.prompt(node) for node in nodes])


def _spent(search: _ActiveSearch) -> float:
    """The share of its environment's budget that a search has spent to where it is: a search that rolls ahead and
    comes back has spent less."""
    match search.request:
        case Expand(nodes):
            node = nodes[0]
        case Commit(node) | Demonstrate(node):
            pass
    budget = search.root.snapshot.remaining
    return 1 - node.snapshot.remaining / budget if budget else 0.0


def _waited_for(cohort: _Cohort) -> str:
    return (
        f"the environments of {len(cohort.searches)} searches, the first on instance {cohort.searches[0].task.instance}"
    )


def _advance(search: _ActiveSearch, answer: Any, cohort: _Cohort, chosen: dict[int, Node]) -> None:
    """Sends a search the answer to its request; it goes on in the cohort, or returns its leaf."""
    try:
        search.request = search.generator.send(answer)
        cohort.searches.append(search)
    except StopIteration as stop:
        chosen[search.index] = stop.value


def _to_score(search: _ActiveSearch, answer: Any) -> Sequence[Node]:
    """The nodes of an answer that the strategy's scorer scores."""
    match search.request:
        case Expand():
            return flat(answer)
        case Commit() | Demonstrate() if search.task.strategy.traits.scores_every_node:
            return [answer]
        case _:
            return []


def _steps(search: _ActiveSearch, responses: Iterator[Sequence[Response]]) -> list[EnvStep]:
    """The environment steps of a search's request; an `Expand` takes the responses to its nodes."""
    match search.request:
        case Expand(nodes):
            scored = search.task.strategy.traits.scored_by is not None
            return [
                partial(TurnSimulator.simulate, node=node, number=_next_child(node), response=response, scored=scored)
                for node in nodes
                for response in next(responses)
            ]
        case Commit(node):
            scored = search.task.strategy.traits.scores_every_node
            return [partial(TurnSimulator.commit, root=search.root, simulated=node, scored=scored)]
        case Demonstrate(node, demonstrator):
            scored = search.task.strategy.traits.scores_every_node
            number = _next_child(node)
            play = partial(TurnSimulator.demonstrate, node=node, number=number, demonstrator=demonstrator)
            return [partial(play, scored=scored)]


def _next_child(node: Node) -> int:
    """Takes the number of a node's next child."""
    node.driver.children += 1
    return node.driver.children - 1


def _tree(leaf: Node) -> tuple[Candidate, ...]:
    """All that the search of a leaf proposed, depth by depth; none of a demonstrator's turns, which are no samples."""
    tree: list[Candidate] = []
    level: list[tuple[int | None, Node]] = [(None, leaf.path[0])]  # nodes, each with its place in the tree
    while level:
        children = [(parent, child) for parent, node in level for child in node.driver.candidates]
        level = [(place, child) for place, (_, child) in enumerate(children, start=len(tree))]
        tree += [candidate_of(child, child.turn, parent) for parent, child in children if child.turn]
    return tuple(tree)


def _require_finite(sampled: Sequence[Sequence[Response]]) -> None:
    """Ends the run where the policy's log-probabilities are not finite: samples and figures then mean nothing."""
    if not all(math.isfinite(sum(response.logprobs)) for responses in sampled for response in responses):
        raise RunError(
            "the policy's log-probabilities are not finite, so an update has destroyed its weights, or they came so: "
            "begin from an earlier checkpoint with a lower model.optimizer.learning_rate or trainer.gradient_clip_val"
        )
