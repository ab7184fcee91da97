"""What a file of episodes says of the actor that played them, and an actor's environments and chat format by it."""

from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from tsr_lightning.engines.base import Sampling
from tsr_lightning.episodes.schema import SCHEMA, VERSION, Header
from tsr_lightning.errors import ConfigError
from tsr_lightning.policy.chat import Chat, Context
from tsr_lightning.policy.spec import PolicySpec, Scratch
from tsr_lightning.policy.vocabulary import load_tokenizer
from tsr_lightning.rollout.actor import Actor
from tsr_lightning.rollout.environments import EnvFactory, EnvSet
from tsr_lightning.rollout.mixture import MixtureEntry
from tsr_lightning.search.simulator import TokenLimits, TurnSimulator


def header_of(actor: Actor, phase: str, epoch: int, temperature: float | None = None) -> Header:
    """The header of what an actor played.

    Args:
        actor: that played.
        phase: `ROLLOUT` or a protocol.
        epoch: epochs that its run had trained for.
        temperature: of the responses; None takes the actor's own.
    """
    spec = actor.spec
    return Header(
        schema=SCHEMA,
        version=VERSION,
        phase=phase,
        epoch=epoch,
        envs=[
            {"env": each.env, "env_kwargs": each.env_kwargs, "name": each.label}
            for each in actor.environments.factory.mixture
        ],
        policy=asdict(actor.policy.spec),
        context=saved_context(spec.context),
        limits={
            "context": actor.context_tokens,
            "episode": spec.episode_tokens,
            "model": actor.policy.context_length,
            "response": spec.sampling.max_response_tokens,
        },
        temperature=spec.sampling.temperature if temperature is None else temperature,
    )


def saved_context(context: Context) -> dict[str, Any]:
    """`Header.context` of a context."""
    kind = type(context)
    return {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": asdict(context)}


@dataclass(frozen=True)
class SavedTask:
    """What the episodes of a file were played in: environments and the chat format, without a model."""

    simulator: TurnSimulator
    envs: EnvSet

    def close(self) -> None:
        """Closes the environments."""
        self.envs.close()

    @classmethod
    def of(cls, header: Header, model: str | None = None) -> "SavedTask":
        """Of a file's header.

        Args:
            header: names the environments, which are imported.
            model: a folder or name whose tokenizer to take; None for that of the file.

        Raises:
            ConfigError: an environment cannot be made so, or a model is not there.
        """
        factory = EnvFactory([MixtureEntry(each["env"], each["env_kwargs"]) for each in header.envs])
        envs = EnvSet(factory)
        given = model or _model(header.policy["model"])
        prefix, arguments = header.policy["response_prefix"], header.policy["template_arguments"]
        spec = PolicySpec(given, response_prefix=prefix, template_arguments=arguments)
        chat = Chat.of(spec, load_tokenizer(spec, factory.texts()), _context(header.context))
        limits, response = header.limits, header.limits["response"] or 1
        tokens = TokenLimits(limits["context"] or 1, limits["episode"], limits["model"])
        envs.make()
        return cls(TurnSimulator(envs, chat, Sampling(header.temperature, response), tokens), envs)


def _model(saved: str | dict[str, Any]) -> str | Scratch:
    if isinstance(saved, str):
        return saved
    try:
        return Scratch(**saved)
    except TypeError as error:
        raise ConfigError(f"the episodes' model has the sizes {saved}, of which none can be made: {error}") from error


def _context(saved: dict[str, Any]) -> Context:
    module, _, name = saved["class_path"].rpartition(".")
    try:
        made = getattr(import_module(module), name)(**saved["init_args"])
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(f"the episodes' context is {saved['class_path']}, which cannot be made: {error}") from error
    if not isinstance(made, Context):
        raise ConfigError(f"the episodes' context is {saved['class_path']}, which is no Context")
    return made
