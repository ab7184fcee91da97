"""Exports the policy of a checkpoint, with a model card of what the checkpoint and the configuration know."""

from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from tsr_lightning.files import write_whole
from tsr_lightning.policy.chat import Chat
from tsr_lightning.policy.export import export
from tsr_lightning.policy.export_folder import Exported, digest, size_of
from tsr_lightning.policy.model_card import FORMS, Card, Figure, Form
from tsr_lightning.policy.spec import PolicySpec
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.lightning_compat import Position

_EVALUATION = "Evaluation"  # begins the key of the callback's state


def planned(checkpoint: Mapping[str, Any], ckpt_path: str, spec: PolicySpec, *, merge: bool) -> Exported:
    """What an export would write."""
    form: Form = "whole" if spec.adapter is None else "merged" if merge else "adapter"
    return Exported(digest(checkpoint["state_dict"]), form, ckpt_path)


def write(exported: Exported, folder: Path, agent: Agent, data: RolloutDataModule, checkpoint: dict[str, Any]) -> None:
    """Writes the agent's policy, which has the checkpoint's weights, and says so."""
    position = Position.in_checkpoint(checkpoint)
    with exported.written_to(folder) as part:
        export(agent.policy, agent.tokenizer, part, merged=exported.form == "merged")
        write_whole(part / "README.md", card(exported, folder, agent, data, checkpoint).text())
    rank_zero_info(
        f"exported {FORMS[exported.form]} to {folder} ({size_of(folder)}): the policy of {exported.checkpoint}, "
        f"trained for {position.epochs} epochs; {folder / 'README.md'} says how to use it"
    )


def card(
    exported: Exported, folder: Path, agent: Agent, data: RolloutDataModule, checkpoint: Mapping[str, Any]
) -> Card:
    """The model card of an export."""
    spec, position = agent.spec, Position.in_checkpoint(dict(checkpoint))
    training = {
        "adapter": spec.adapter,
        "objective": agent.objective,
        "rollouts": data.plan,
        "optimizer": agent.optimizer,
        "instances per epoch": data.instances_per_epoch,
        "context": data.context,
        "seed": data.seed,
    }
    return Card(
        name=folder.name,
        base=spec.model if isinstance(spec.model, str) else repr(spec.model),
        form=exported.form,
        quantisation=spec.quantisation,
        dtype=spec.dtype,
        tasks=tuple(map(str, data.mixture)),
        training=tuple((key, str(value)) for key, value in training.items() if value is not None),
        epochs=position.epochs,
        updates=position.updates,
        figures=tuple(figures(checkpoint)),
        temperature=data.sampling.temperature,
        max_response_tokens=data.sampling.max_response_tokens,
        version=_version(),
        end_ids=tuple(sorted(Chat.of(spec, agent.tokenizer).end_ids)),
        template_arguments=spec.template_arguments,
        response_prefix=spec.response_prefix,
    )


def figures(checkpoint: Mapping[str, Any]) -> Iterator[Figure]:
    """The success rates that a checkpoint's run measured at its start and last, by protocol."""
    for key, state in checkpoint.get("callbacks", {}).items():
        if not key.startswith(_EVALUATION):
            continue
        for protocol in {**state["before"], **state["latest"]}:
            for measured in (state["before"].get(protocol), state["latest"].get(protocol)):
                if measured is not None:
                    low, high = measured["success_interval"]
                    rate, count = measured["figures"]["success_rate"], len(measured["instances"])
                    yield Figure(protocol, measured["epochs"], count, rate, (low, high))


def _version() -> str:
    try:
        return version("tsr-lightning")
    except PackageNotFoundError:  # run from a folder
        return "(not installed)"
