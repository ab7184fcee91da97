"""How a prompt offers tools: by its chat template, or in the system message where the template does not."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from tsr_lightning.tool_calls import CallFormatName, explained
from tsr_lightning.trajectory import Message, Turn

_CACHED = 2**8  # offers


class Offered(NamedTuple):
    """A conversation and what its chat template is given beside."""

    shown: list[Message | Turn]
    schemas: str  # of the tools, as JSON; "" for none


def offered(shown: list[Message | Turn], template_format: CallFormatName | None) -> Offered:
    """Takes the message of tools out of a conversation.

    Args:
        shown: the conversation.
        template_format: in which the chat template tells how to call tools; None where it does not.
    """
    offers = [each.content for each in shown if isinstance(each, Message) and each.role == "tools"]
    if not offers:
        return Offered(shown, "")
    rest = [each for each in shown if isinstance(each, Turn) or each.role != "tools"]
    call_format, schemas, explanation = _read(offers[-1])
    if call_format == template_format:
        return Offered(rest, schemas)
    return Offered(_instructed(rest, explanation), "")


def _instructed(shown: Sequence[Message | Turn], explanation: str) -> list[Message | Turn]:
    """A conversation whose system message ends with an explanation."""
    first = shown[0]
    if isinstance(first, Message) and first.role == "system":
        return [Message("system", f"{first.content}\n\n{explanation}"), *shown[1:]]
    return [Message("system", explanation), *shown]


@lru_cache(maxsize=_CACHED)
def _read(offer: str) -> tuple[CallFormatName, str, str]:
    """The format of calls, the schemas as JSON, and the same explained."""
    content = json.loads(offer)
    call_format, schemas = content["call_format"], content["tools"]
    return call_format, json.dumps(schemas, ensure_ascii=False), explained(schemas, call_format)
