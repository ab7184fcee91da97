"""The figures of one evaluation protocol at one moment of a run. Plain data, to and from plain types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from callbacks.episodes import Episode, GatheredEpisodes
from tsr_lightning import statistics
from tsr_lightning.rollout.instances import Instance
from tsr_lightning.rollout.protocol import EvalProtocol
from tsr_lightning.statistics import Estimate
from tsr_lightning.training.lightning_compat import Position


@runtime_checkable
class TellsTraining(Protocol):
    """A callback with figures of the last rollout and its updates, for the history of a run."""

    def of_training(self) -> Mapping[str, float]: ...


GAPS = ("success_rate", "return")  # the figures in which search is compared with plain sampling


@dataclass(frozen=True, slots=True)
class Measurement:
    protocol: dict[str, Any]  # `EvalProtocol.settings`
    epochs: int  # that the policy had been trained for
    updates: int
    outcomes: Mapping[Instance, tuple[int, int]]  # (successes, episodes)
    figures: dict[str, float]  # `success_rate` and so on, as logged

    @property
    def is_plain(self) -> bool:
        """True if the policy acted without search."""
        return self.protocol["search"] is None

    @property
    def success(self) -> Estimate:
        return statistics.success_estimate(self.outcomes)

    def to_plain(self) -> dict[str, Any]:
        """Plain types only: what JSON, and a checkpoint loaded with `weights_only`, can hold."""
        return {
            "protocol": dict(self.protocol),
            "epochs": self.epochs,
            "updates": self.updates,
            "figures": dict(self.figures),
            "success_interval": [self.success.low, self.success.high],
            "instances": [
                {"env": env, "instance": seed, "successes": successes, "episodes": episodes}
                for (env, seed), (successes, episodes) in self.outcomes.items()
            ],
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Measurement":
        return cls(
            protocol=dict(plain["protocol"]),
            epochs=plain["epochs"],
            updates=plain["updates"],
            figures=dict(plain["figures"]),
            outcomes={
                # written without "env" by versions without mixtures
                (row.get("env", 0), row["instance"]): (row["successes"], row["episodes"])
                for row in plain["instances"]
            },
        )


def measure(
    protocol: EvalProtocol,
    gathered: GatheredEpisodes,
    position: Position,
    *,
    pass_at: Sequence[int] | None,
    envs: Sequence[str] = (),
) -> Measurement | None:
    """The figures of a protocol; None without episodes. With several `envs`, by index, each id's success too.

    Rates weigh every instance the same, means every episode. A k of `pass_at` for which no instance has enough episodes
    is left out; None stands for the powers of two.

    Episodes that were lost to failures of the environment are in no rate and no mean; where there are any, they are
    counted in `episodes_lost`. pass@k leaves out the instances that have fewer than k for it.

    The policy's entropy is the mean surprisal of its samples: the expectation of a response's surprisal is the entropy
    of the response. What a search selected is no sample, and greedy play has no entropy, so their protocols lack it.
    """
    episodes = gathered.episodes
    if not episodes:
        return None
    outcomes: dict[Instance, tuple[int, int]] = {}
    for episode in episodes:
        instance = episode.env, episode.instance
        successes, count = outcomes.get(instance, (0, 0))
        outcomes[instance] = (successes + episode.succeeded, count + 1)
    most = statistics.most_episodes(outcomes)
    ks = [1 << power for power in range(most.bit_length())] if pass_at is None else [k for k in pass_at if k <= most]

    turns = sum(episode.turns for episode in episodes)
    tokens = sum(episode.tokens for episode in episodes)
    surprisal = sum(gathered.surprisals)
    samples = protocol.search is None and protocol.temperature > 0
    entropy = {"entropy_per_token": _ratio(surprisal, tokens), "entropy_per_turn": _ratio(surprisal, turns)}
    figures = {
        "success_rate": statistics.success_rate(outcomes),
        **(_success_by_env(outcomes, envs) if len(envs) > 1 else {}),
        **{f"pass@{k}": statistics.mean_pass_at_k(outcomes, k) for k in ks},
        "return": sum(gathered.returns) / len(episodes),
        "turns": turns / len(episodes),
        "valid_actions": _ratio(sum(episode.valid for episode in episodes), turns),
        "effective_actions": _ratio(sum(episode.effective for episode in episodes), turns),
        "response_tokens_per_turn": _ratio(tokens, turns),
        "response_tokens_per_episode": tokens / len(episodes),
        **(entropy if samples else {}),
        "tokens_generated": float(gathered.tokens_generated),
        "env_steps": float(gathered.env_steps),
        "seconds": gathered.seconds,
        **({"episodes_lost": float(gathered.lost)} if gathered.lost else {}),
    }
    return Measurement(protocol.settings(), position.epochs, position.updates, outcomes, figures)


def figure_names(protocol: EvalProtocol, *, pass_at: Sequence[int] | None, envs: Sequence[str]) -> frozenset[str]:
    """The names of all figures that a protocol may have: those of `measure`, `since_start` and `search_gap`."""
    episodes = [
        Episode(env, 0, member, 0, 1, 1, 1, 1) for env in range(len(envs)) for member in range(protocol.samples)
    ]
    zeros = [0.0] * len(episodes)
    gathered = GatheredEpisodes(episodes, zeros, zeros, tokens_generated=0, env_steps=0, lost=1, seconds=0.0)
    made_up = measure(protocol, gathered, Position(epochs=0, updates=0), pass_at=pass_at, envs=envs)
    assert made_up is not None
    gaps = [f"search_gap/{key}" for key in GAPS] if protocol.search is not None else []
    return frozenset([*made_up.figures, *since_start(made_up, made_up), *gaps])


def since_start(start: Measurement | None, now: Measurement) -> dict[str, float]:
    """What a protocol's evaluation solved that the start did not, and the reverse, over the instances in both; nothing
    where the start was not evaluated, or under another protocol.

    An instance that the start never solved is one without a success in the protocol's samples.
    """
    if start is None or start.protocol != now.protocol:
        return {}
    solved = statistics.solved(start.outcomes, now.outcomes)
    if not solved.instances:
        return {}
    return {
        "never_solved_at_start": float(solved.never_before),
        "newly_solved": float(solved.newly),
        "newly_solved_share": _ratio(solved.newly, solved.never_before),
        "no_longer_solved": float(solved.no_longer),
    }


def search_gap(measured: Mapping[str, Measurement], name: str) -> dict[str, float]:
    """A searched protocol's success and return less those of plain sampling, by the same policy on the same instances.

    Nothing where the protocol does not search, or no other one samples the same instances at its temperature.
    """
    searched = measured[name]
    if searched.is_plain:
        return {}
    for plain in measured.values():
        at_temperature = plain.protocol["temperature"] == searched.protocol["temperature"]
        if plain.is_plain and at_temperature and plain.outcomes.keys() == searched.outcomes.keys():
            return {f"search_gap/{key}": searched.figures[key] - plain.figures[key] for key in GAPS}
    return {}


def _success_by_env(outcomes: Mapping[Instance, tuple[int, int]], envs: Sequence[str]) -> dict[str, float]:
    by_env = {id: {one: counts for one, counts in outcomes.items() if envs[one[0]] == id} for id in envs}
    return {f"success_rate/{id}": statistics.success_rate(own) for id, own in by_env.items() if own}


def _ratio(part: float, whole: int) -> float:
    """0 rather than NaN where all episodes were lost."""
    return part / whole if whole else 0.0
