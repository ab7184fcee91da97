"""The environments of a run: how they are made, and the sets of them that one thread at a time uses."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from tsr_lightning.envs.base import Branchable
from tsr_lightning.envs.boundary import CallFailed
from tsr_lightning.envs.closing import discard
from tsr_lightning.envs.playing import valid_response
from tsr_lightning.envs.sample_texts import sample_texts
from tsr_lightning.envs.text_env import TextEnv
from tsr_lightning.rollout.answer_notice import AnswerForm
from tsr_lightning.rollout.mixture import MixtureEntry, mixture_of
from tsr_lightning.tool_calls import CallFormatName


@dataclass(frozen=True)
class EnvFactory:
    """Makes the environments of a mixture.

    Args:
        mixture: the entries.
        in_processes: make each in a process of its own.
        step_timeout: seconds that a step or a reset in such a process may take; None for no limit.
        retries: how often a failed reset is tried again.
    """

    mixture: Sequence[MixtureEntry]
    in_processes: bool = False
    step_timeout: float | None = None
    retries: int = 1

    @classmethod
    def of(cls, env: str | Sequence[MixtureEntry], env_kwargs: dict[str, Any] | None = None) -> "EnvFactory":
        """Makes an environment of an id and arguments, or a mixture, in this process."""
        return cls(mixture_of(env, env_kwargs))

    def make(self, entry: MixtureEntry) -> Branchable:
        """An environment of the mixture, in this process or in one of its own."""
        return entry.make_process(self.step_timeout) if self.in_processes else entry.make()

    def make_all(self) -> list[Branchable]:
        """One environment of each entry; none stays open where one cannot be made."""
        made: list[Branchable] = []
        try:
            for entry in self.mixture:
                made.append(self.make(entry))
        except BaseException:
            for env in made:
                discard(env)
            raise
        return made

    def texts(self) -> Iterator[str]:
        """Text of the tasks, for the vocabulary of a new model."""
        for entry in self.mixture:
            env = self.make(entry)
            try:
                yield from sample_texts(env, self.retries)
            finally:
                discard(env)

    def answer_form(self, index: int, call_format: CallFormatName) -> AnswerForm:
        """The form in which the environment with an index of the mixture wants to be answered by a policy that calls
        tools in `call_format`."""
        entry = self.mixture[index]
        style = entry.env_kwargs.get("prompt_style")
        named = entry.env, None if style is None else str(style)
        try:
            env = self.make(entry)
        except CallFailed:  # what it depends on fails, and no run ends for an example
            return AnswerForm(*named, says_form=True, example=None)
        says_form = not isinstance(env, TextEnv) or env.prompt_style.says_form  # one in its own process does not tell
        try:
            return AnswerForm(*named, says_form, valid_response(env, call_format))
        finally:
            discard(env)


class EnvSet(Sequence[Branchable]):
    """One environment of each entry of a mixture, made on first use, and again after they were closed.

    Args:
        factory: makes them.
    """

    def __init__(self, factory: EnvFactory) -> None:
        self._factory = factory
        self._made: Sequence[Branchable] = ()

    def make(self) -> None:
        """Makes the environments unless they exist; indexing calls it."""
        self._made = self._made or self._factory.make_all()

    def close(self) -> None:
        for env in self._made:
            discard(env)
        self._made = ()

    def __len__(self) -> int:
        return len(self._factory.mixture)

    @overload
    def __getitem__(self, index: int) -> Branchable: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Branchable]: ...

    def __getitem__(self, index: int | slice) -> Branchable | Sequence[Branchable]:
        self.make()
        return self._made[index]


class Environments:
    """One environment of each entry of a mixture, and as many again for each worker; made on first use.

    Args:
        factory: makes them.
        workers: threads that step environments while responses are generated.
    """

    def __init__(self, factory: EnvFactory, workers: int = 0) -> None:
        self.factory = factory
        self.envs = EnvSet(factory)
        self.workers = [EnvSet(factory) for _ in range(workers)]

    def another(self) -> "Environments":
        """Environments of the same kind, for another thread."""
        return Environments(self.factory, len(self.workers))

    def make(self) -> None:
        """Makes all, so that no other thread does."""
        for envs in (self.envs, *self.workers):
            envs.make()

    def close(self) -> None:
        """Closes all environments and ends their processes; a further use makes new ones."""
        for envs in (self.envs, *self.workers):
            envs.close()
