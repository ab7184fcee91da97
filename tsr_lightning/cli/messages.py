"""Errors of the command line, each as one sentence that names the key, the value and the remedy."""

import inspect
import pydoc
import re
import sys
from argparse import ArgumentError
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from tsr_lightning.cli.suggestions import suggestion
from tsr_lightning.errors import ConfigError, RunError, printable

_PACKAGES = ("tsr_lightning", "callbacks")
_ITEM = r".*(?:\n(?!\s*- |Given value).*)*"  # of a list in a message, with the lines that it goes on in
_WORDS = {"NoneType": "null", "int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}


def config_error_sentence(error: BaseException) -> str | None:
    """The sentence of the user's mistake behind an error; None where the error is a fault of the program.

    Libraries wrap a ConfigError in errors of their own, so the causes of `error` are searched too.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConfigError):
            return one_line(str(cause))
        cause = cause.__cause__ or cause.__context__
    if str(error).startswith("Does not validate against any of the Union subtypes"):
        # jsonargparse lists the message of every type that it tried: ours are those that are not in its own words
        messages = re.findall(
            rf"^\s*- (?!Expected |Does not validate |Not a valid subclass of |a class path |a dict with)({_ITEM})",
            str(error),
            re.MULTILINE,
        )
        return _class_cannot_be_made(one_line(messages[0])) if messages else None
    return None


def _class_cannot_be_made(sentence: str) -> str:
    """A message of jsonargparse about what the constructor of a class raised, in fewer words."""
    found = re.fullmatch(r"Problem with given class_path '(?:\S*\.)?(\w+)': (.+)", sentence)
    return f"{found[1]} cannot be made: {found[2]}" if found else sentence


def run_error(error: BaseException) -> RunError | None:
    """The RunError behind an error that a library made of it; None where there is none."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, RunError):
        cause = cause.__cause__ or cause.__context__
    return cause


@contextmanager
def one_sentence_errors(program: str) -> Iterator[None]:
    """Ends the program with one sentence: with status 2 for bad input and paths that cannot be used, and with status 1
    for a run that broke. Other errors pass."""
    try:
        yield
    except RunError as error:
        print(f"{printable(error.details).rstrip()}\n" if error.details else "", end="", file=sys.stderr)
        print(f"{program}: error: {one_line(error.sentence)}", file=sys.stderr)
        sys.exit(1)
    except (ArgumentError, ValueError, ModuleNotFoundError) as error:  # a ConfigError is a ValueError
        sentence = config_error_sentence(error)
        if sentence is None:
            raise
        print(f"{program}: error: {sentence}", file=sys.stderr)
        sys.exit(2)
    except (IsADirectoryError, NotADirectoryError, FileExistsError, PermissionError) as error:
        if error.filename is None:
            raise
        reason = (error.strerror or type(error).__name__).lower()
        print(f"{program}: error: {error.filename} cannot be written or read: {reason}", file=sys.stderr)
        sys.exit(2)


def parser_error_sentence(message: str, keys: Collection[str]) -> str:
    """A message of jsonargparse, many lines long, as one sentence. `keys` are all that may be set."""
    text = one_line(message)
    return next((sentence for rule in _RULES if (sentence := rule(text, keys))), text)


def one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def _unknown_key(text: str, keys: Collection[str]) -> str | None:
    found = re.search(r"(?:unrecognized arguments: (--)?|does not accept option ')([^\s=']+)", text)
    if not found:
        return None
    dashes, name = found[1] or "", found[2]
    remedy = suggestion(name, keys, dashes) or "see tsr fit --help for all keys"
    return f"{dashes}{name} is no key that can be set: {remedy}"


def _missing_key(text: str, keys: Collection[str]) -> str | None:
    if found := re.search(r"the following arguments are required: (.*)", text):
        if key := _key(text):
            return f"{key} has an entry without {found[1].split()[0]}: give it"
        subcommand = found[1].partition(".")[0]
        missing = found[1].replace(f"{subcommand}.", "--")
        return f"tsr {subcommand} needs {missing}: give them, or a file that has them with --config"
    return None


def _no_mapping(text: str, keys: Collection[str]) -> str | None:
    if found := re.search(r'Key "([^"]*)" not found in namespace', text):
        group = found[1].rpartition(".")[0]
        return f"{group} is given as a plain value somewhere: give a mapping of keys, as tsr fit --print_config does"
    if found := re.search(r'Parser key "([^"]*)": Unable to load config \'([^\']*)\'', text):
        return f"{found[1]} is {found[2]}: give a mapping of keys, or set the keys below it"
    return None


def _invalid_yaml(text: str, keys: Collection[str]) -> str | None:
    if found := re.search(r"Problems parsing config: (.*)", text):
        problem = found[1].replace('in "<unicode string>", ', "at ")
        return f"--config names a file that is no valid YAML: {problem}"
    return None


def _unknown_argument(text: str, keys: Collection[str]) -> str | None:
    key, found = _key(text), re.search(r"class_path '([^']*)': Option '([^']*)' is not accepted", text)
    if not key or not found:
        return None
    path, option = found.groups()
    name = path.rpartition(".")[2]
    known = [parameter for parameter in _parameters(path) if parameter != "self"]
    remedy = suggestion(option, known) or (f"it takes {', '.join(known)}" if known else "it takes none")
    return f"{key} gives {name} the argument {option}, which it does not take: {remedy}"


def _unknown_class(text: str, keys: Collection[str]) -> str | None:
    found = (
        re.search(r"Expected a dot import path string: ([^\s.]+)(?: |$)", text)
        or re.search(r"class_path '([^']*)': (?:module '\S+' has no attribute|No module named)", text)
        or re.search(r"Import path '?([\w.]+)'? does not correspond to a subclass of", text)
    )
    key = _key(text)
    if not key or not found:
        return None
    path = found[1]
    absent = re.search(r"No module named '([^']*)'", text)
    if absent and not path.startswith(f"{absent[1]}."):
        return f"{key} is {path}, whose file imports {absent[1]}, which is not there: install it, or correct the import"
    name = path.rpartition(".")[2]
    known = set(_classes())
    remedy = (None if name in known else suggestion(name, known)) or "tsr fit --help lists those that do"
    return f"{key} is {path}, which is no class that fits there: {remedy}"


def _wrong_type(text: str, keys: Collection[str]) -> str | None:
    key = _key(text)
    given = re.findall(r"(?:Given value|Got value): (.*?)(?= Given value|$)", text)
    types = [_type(name) for name in re.findall(r"Expected an? (<class '[^']*'>|typing\.Literal\[[^\]]*\]|\S+)", text)]
    if not key or not given or not types:
        return None
    value = given[-1]
    if nested := _NESTED.fullmatch(value):  # a field of a dataclass that may be null, where null is the dataclass
        key, value = key.replace(".init_args.", "."), nested[1]
        types = [one for one in types if one != "null"] or types
    return f"{key} is {value}: give {' or '.join(dict.fromkeys(types))}"


_NESTED = re.compile(r"NestedArg\(key='[^']*', val='?(.*?)'?\)")


# The first that knows a message explains it.
_RULES = (
    *(_unknown_key, _missing_key, _no_mapping, _invalid_yaml),
    *(_unknown_argument, _unknown_class, _wrong_type),
)


def _key(text: str) -> str:
    """The key that a message is about, through the classes that it lies in."""
    return ".init_args.".join(re.findall(r'Parser key "([^"]*)"', text))


def _type(name: str) -> str:
    if literal := re.fullmatch(r"typing\.Literal\[(.*)\]", name):
        return f"one of {literal[1]}"
    plain = name.removeprefix("<class '").removesuffix("'>").rstrip(".")
    return _WORDS.get(plain, f"a {plain.rpartition('.')[2]}")


def _parameters(path: str) -> list[str]:
    found = pydoc.locate(path)
    return list(inspect.signature(found).parameters) if callable(found) else []


def _classes() -> Iterator[str]:
    """The names of this project's public classes that are loaded."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _PACKAGES:
            yield from (
                key for key, value in vars(module).items() if inspect.isclass(value) and not key.startswith("_")
            )
