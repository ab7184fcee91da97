"""Tools: typed Python functions with a docstring, which an environment offers to the policy. Knows no model."""

import ast
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, NotRequired, Protocol, get_type_hints, runtime_checkable

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from typing_extensions import TypedDict  # pydantic's own, which Python 3.11 lacks

from tsr_lightning.errors import ConfigError
from tsr_lightning.tool_calls import ONLY, Call, CallFormatName, offer_text
from tsr_lightning.trajectory import Message

_TOO_DEEP = "the arguments are nested too deeply"


class RefusedCall(Exception):
    """A call that cannot be played; the message says why, to the policy."""


@dataclass(frozen=True)
class Tool:
    """A function that the policy may call. Its name, its type hints and its docstring, with a line for each argument
    under `Args:`, are what the policy is told. A `self` is left out.

    Args:
        function: of JSON values, such as `str`, `int`, `list[str]` or `Literal["up", "down"]`.
    """

    function: Callable[..., Any]

    def __post_init__(self) -> None:
        for parameter in _parameters(self.function):
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise self._unfit(f"takes {parameter}; name each argument")
            if parameter.annotation is parameter.empty:
                raise self._unfit(f"has no type hint for {parameter.name!r}; give one, such as {parameter.name}: str")
        try:
            _adapter(self.function)
        except (PydanticUserError, NameError) as error:
            reason = str(error).partition(".")[0]
            raise self._unfit(f"has a type hint that is no type of JSON values ({reason})") from error

    @property
    def name(self) -> str:
        return self.function.__name__

    def schema(self) -> dict[str, Any]:
        """The JSON schema, as chat templates take it.

        Raises:
            ConfigError: the docstring lacks what it needs.
        """
        return _schema(self)

    def arguments(self, call: Call) -> dict[str, Any]:
        """The arguments of a call, checked; those that have a default may be left out.

        Raises:
            RefusedCall: one is missing, unknown or of another type.
        """
        given = dict(call.arguments)
        if ONLY in given:
            names = [parameter.name for parameter in _parameters(self.function)]
            if len(names) != 1:
                raise RefusedCall(f"{self.name} takes {len(names)} arguments, and one fenced block gives one")
            given = {names[0]: given[ONLY]}
        return _checked(self, given, call.spelled)

    def _unfit(self, problem: str) -> ConfigError:
        return ConfigError(f"the tool {self.name!r} {problem}")


class Offer(NamedTuple):
    """What an episode offers."""

    tools: Sequence[Tool]
    call_format: CallFormatName  # in which responses call them

    def message(self) -> Message:
        """The same for the policy's chat template."""
        schemas = [tool.schema() for tool in self.tools]
        return Message("tools", offer_text(schemas, self.call_format))


@runtime_checkable
class OffersTools(Protocol):
    """An environment whose responses call tools. `reset` gets the format in which the policy's chat template writes
    calls as `options["call_format"]`; an environment may prefer another one."""

    def offer(self) -> Offer:
        """That of the current episode."""


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function, or those of a method after its `self`."""
    parameters = list(inspect.signature(function).parameters.values())
    is_method = (
        bool(parameters) and parameters[0].name == "self" and parameters[0].annotation is inspect.Parameter.empty
    )
    return parameters[is_method:]


@cache
def _schema(tool: Tool) -> dict[str, Any]:
    # Imported here: it loads PyTorch, which the process of an environment does not need
    from transformers.utils import get_json_schema
    from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException

    try:
        schema: dict[str, Any] = get_json_schema(tool.function)
    except (DocstringParsingException, TypeHintParsingException) as error:
        raise ConfigError(
            f"the tool {tool.name!r} needs a docstring with a line for each argument under 'Args:' ({error})"
        ) from error
    schema["function"].pop("return", None)  # which no template shows to the policy as more than noise
    return schema


@cache
def _adapter(function: Callable[..., Any]) -> TypeAdapter[Any]:
    """Checks the arguments of a function: strictly, none too many."""
    hints = get_type_hints(function)
    fields = {
        each.name: hints[each.name] if each.default is each.empty else NotRequired[hints[each.name]]
        for each in _parameters(function)
    }
    made: Any = TypedDict  # mypy knows the types that are written out alone
    arguments = made(function.__name__, fields)
    arguments.__pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    return TypeAdapter(arguments)


def _checked(tool: Tool, given: dict[str, Any], spelled: bool) -> dict[str, Any]:
    """Arguments of the types that the tool asks for; those that are only spelled are read where they must be."""
    try:
        return dict(_adapter(tool.function).validate_json(json.dumps(given, ensure_ascii=False).encode()))
    except RecursionError as error:
        raise RefusedCall(_TOO_DEEP) from error
    except UnicodeEncodeError as error:
        raise RefusedCall("the arguments hold half of a surrogate pair, which is no character") from error
    except ValidationError as error:
        wrong = {str(one["loc"][0]) for one in error.errors() if one["loc"]} & given.keys()
        read = {name: _value(given[name]) for name in wrong} if spelled else {}
        if spelled and read and any(read[name] != given[name] for name in read):
            return _checked(tool, {**given, **read}, spelled=False)
        raise RefusedCall("; ".join(_told(one) for one in error.errors(include_url=False))) from error


def _value(text: str) -> Any:
    """The value of JSON that a text spells, in JSON or as Python does; else the text."""
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text)
            json.dumps(value)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
        return value
    return text


def _told(error: Mapping[str, Any]) -> str:
    where = ".".join(map(str, error["loc"]))
    match error["type"]:
        case "missing":
            return f"the argument {where!r} is missing"
        case "json_invalid":  # JSON of our own making, deeper than pydantic reads
            return _TOO_DEEP
        case "extra_forbidden":
            return f"there is no argument {where!r}"
        case _:
            return f"the argument {where!r} is wrong: {error['msg'][:1].lower()}{error['msg'][1:]}"
