"""How a response calls tools, in the formats that chat templates ask for. Knows texts, and no tool.

A call inside the reasoning at the beginning of a response counts as none. What looks like a call and cannot be read is
a call with a problem.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

CallFormatName = Literal["hermes", "xml", "json", "fenced"]
CALL_FORMAT_NAMES: tuple[CallFormatName, ...] = get_args(CallFormatName)
ONLY = ""  # stands for the name of a tool's only argument, where a format does not name it

_REASONING = re.compile(r"\s*<think>.*?(?:</think>|\Z)", re.DOTALL)
_OPENED = re.compile(r"<tool_call>\s*")
# Names without "<", so that many openings in a row are read in linear time
_FUNCTION = re.compile(r"<function=([^<>\n]*)>(.*?)(</function>|(?=<function=)|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^<>\n]*)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
_FENCE = re.compile(r"```([\w-]+)[ \t]*")


@dataclass(frozen=True, slots=True)
class Call:
    """One call, as it was read."""

    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    spelled: bool = False  # the arguments are texts whatever their type, since the format has no types
    problem: str = ""  # why it cannot be read


@dataclass(frozen=True)
class CallFormat:
    """A format of calls.

    Args:
        read: the calls of a response without its reasoning. The names of the tools that are offered tell calls from
            other text, where the format does not.
        write: a call as text.
        explained: how to write one, for a prompt whose chat template does not say it.
    """

    read: Callable[[str, Collection[str]], list[Call]]
    write: Callable[[str, Mapping[str, Any]], str]
    explained: str


def calls_in(response: str, name: CallFormatName, tools: Collection[str] = ()) -> list[Call]:
    """The calls of a response in a format, in their order.

    Args:
        response: the policy's.
        name: of the format.
        tools: names of those that are offered.
    """
    reasoning = _REASONING.match(response)
    return CALL_FORMATS[name].read(response[reasoning.end() :] if reasoning else response, tools)


def offer_text(schemas: Sequence[Any], name: CallFormatName) -> str:
    """The content of a `tools` message: the schemas and the format of calls, as JSON."""
    return _dumped({"call_format": name, "tools": schemas})


def explained(schemas: Sequence[Any], name: CallFormatName) -> str:
    """A part of the system message that offers tools, where the chat template does not."""
    listed = "\n".join(_dumped(schema) for schema in schemas)
    return f"# Tools\n\nYou may call these functions:\n{listed}\n\n{CALL_FORMATS[name].explained}"


def _read_hermes(text: str, tools: Collection[str]) -> list[Call]:
    calls: list[Call] = []
    end = 0
    for opened in _OPENED.finditer(text):
        if opened.start() < end:  # within a text that a call quotes
            continue
        found, end = _decoded(text, opened.end())
        calls += [_of_json(one) for one in (found if isinstance(found, list) else [found])]
        if isinstance(found, Call):  # what follows cannot be told from it
            break
    return calls


def _read_json(text: str, tools: Collection[str]) -> list[Call]:
    text = text.strip()
    return [_of_json(one) for one in _objects(text)] if text.startswith("{") else []


def _objects(text: str) -> Iterator[Any]:
    """JSON objects that follow each other, with or without a semicolon between."""
    end = 0
    while end < len(text):
        found, end = _decoded(text, end)
        yield found
        if isinstance(found, Call):  # what follows cannot be told from it
            return
        end += len(text[end:]) - len(text[end:].lstrip("; \n\t"))


def _read_xml(text: str, tools: Collection[str]) -> list[Call]:
    calls = [_of_xml(*function.groups()) for function in _FUNCTION.finditer(text)]
    if not calls and _OPENED.search(text):
        return [Call(problem="there is no <function=name> in the <tool_call>")]
    return calls


def _of_xml(name: str, body: str, closing: str) -> Call:
    if not closing:
        return Call(name.strip(), problem="the call has no </function>")
    arguments = {parameter.strip(): _unwrapped(value) for parameter, value in _PARAMETER.findall(body)}
    return Call(name.strip(), arguments, spelled=True)


def _unwrapped(value: str) -> str:
    """A value without the line breaks that are written around it."""
    return value.removeprefix("\n").removesuffix("\n")


def _read_fenced(text: str, tools: Collection[str]) -> list[Call]:
    """Blocks named after a tool are calls. Without any, every block is one."""
    found = list(_blocks(text))
    blocks = [block for block in found if block[0] in tools] or found
    if len(blocks) > 1:
        return [Call(problem=f"give one fenced block in a response, not {len(blocks)}")]
    return [Call(name, {ONLY: body.removesuffix("\n")} if body.strip() else {}, spelled=True) for name, body in blocks]


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """The names and contents of fenced blocks that have a name and an end."""
    name, body = "", list[str]()
    for line in text.split("\n"):
        if not name:
            opened = _FENCE.fullmatch(line)
            name, body = (opened[1], []) if opened else ("", [])
        elif line.rstrip(" \t") == "```":
            yield name, "".join(f"{each}\n" for each in body)
            name = ""
        else:
            body.append(line)


def _decoded(text: str, begin: int) -> tuple[Any, int]:
    """The JSON value that begins at a place and where it ends; a call with a problem, and the text's end."""
    try:
        found, end = json.JSONDecoder(parse_constant=_refuse).raw_decode(text, begin)
    except (ValueError, RecursionError) as error:
        return Call(problem=f"the call is not JSON ({error})"), begin
    return found, end


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _of_json(found: Any) -> Call:
    match found:
        case Call():
            return found
        case {"name": str(name), "arguments": dict(arguments)} | {"name": str(name), "parameters": dict(arguments)}:
            return Call(name, arguments)
        case {"name": str(name), **others} if not {"arguments", "parameters"} & others.keys():
            return Call(name)
        case _:
            return Call(problem='a call is a JSON object with "name" and "arguments"')


def _dumped(value: Any) -> str:
    """JSON as chat templates write it."""
    return json.dumps(value, ensure_ascii=False)


def _write_hermes(name: str, arguments: Mapping[str, Any]) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {_dumped(arguments)}}}\n</tool_call>'


def _write_xml(name: str, arguments: Mapping[str, Any]) -> str:
    values = ((key, value if isinstance(value, str) else _dumped(value)) for key, value in arguments.items())
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values)
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def _write_json(name: str, arguments: Mapping[str, Any]) -> str:
    return f'{{"name": "{name}", "parameters": {_dumped(arguments)}}}'


def _write_fenced(name: str, arguments: Mapping[str, Any]) -> str:
    return "\n".join([f"```{name}", *map(str, arguments.values()), "```"])


CALL_FORMATS: Mapping[CallFormatName, CallFormat] = {
    "hermes": CallFormat(
        _read_hermes,
        _write_hermes,
        "For each call, write a JSON object with the function's name and arguments between <tool_call> and "
        '</tool_call>:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>',
    ),
    "xml": CallFormat(
        _read_xml,
        _write_xml,
        "For each call, write:\n<tool_call>\n<function=function_name>\n<parameter=parameter_name>\nvalue\n"
        "</parameter>\n</function>\n</tool_call>",
    ),
    "json": CallFormat(
        _read_json,
        _write_json,
        'To call one, answer with this JSON alone: {"name": <function-name>, "parameters": <args-json-object>}',
    ),
    "fenced": CallFormat(
        _read_fenced,
        _write_fenced,
        "To call one, write one fenced block that is named like it and holds its argument, such as:\n"
        "```function_name\nargument\n```",
    ),
}
