"""What the command line's parser complains of, as one sentence that names the key, the value and the remedy."""

import difflib
import inspect
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from importlib import import_module

from tsr_lightning.cli.shipped_configs import config_folder
from tsr_lightning.errors import ConfigError

_OURS = ("tsr_lightning", "callbacks")


def own_sentence(error: BaseException) -> str | None:
    """That of the ConfigError which a library wrapped in its own words; None where there is none."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConfigError):
            return one_line(str(cause))
        cause = cause.__cause__ or cause.__context__
    if str(error).startswith("Does not validate against any of the Union subtypes"):
        # jsonargparse keeps the words of every type that it tried: ours are those that are not its own
        others = re.findall(r"^\s*- (?!Expected |Does not validate )(.*)$", str(error), re.MULTILINE)
        return others[0] if others else None
    return None


def complaint(message: str, keys: Collection[str]) -> str:
    """A message of jsonargparse, many lines long, as one sentence.

    Args:
        message: of the error.
        keys: all that may be set, such as `data.instances`.
    """
    text = one_line(message)
    key = ".init_args.".join(re.findall(r'Parser key "([^"]*)"', text))
    for told in (_unknown_key, _required, _unknown_subcommand, _no_file, _no_mapping, _broken_yaml):
        if sentence := told(text, keys):
            return sentence
    for blamed in (_unknown_argument, _unknown_class, _wrong_value):
        if key and (sentence := blamed(text, key)):
            return sentence
    return text


def one_line(text: str) -> str:
    return " ".join(text.split())


def _unknown_key(text: str, keys: Collection[str]) -> str | None:
    if found := re.search(r"unrecognized arguments: (?:--)?([^\s=]+)", text):
        name, dashes = found[1], "--" if "--" in text else ""
    elif found := re.search(r"does not accept option '([^']+)'", text):
        name, dashes = found[1], ""
    else:
        return None
    remedy = _meant(name, keys, dashes) or "see tsr fit --help for all keys"
    return f"{dashes}{name} is no key that can be set: {remedy}"


def _required(text: str, keys: Collection[str]) -> str | None:
    if found := re.search(r"the following arguments are required: (.*)", text):
        subcommand = found[1].partition(".")[0]
        missing = found[1].replace(f"{subcommand}.", "--")
        return f"tsr {subcommand} needs {missing}: give them, or a file that has them with --config"
    if found := re.search(r'expected "subcommand" to be one of \{(.*?)\}', text):
        return f"no subcommand was given: say tsr {found[1].replace(',', ', tsr ')}, or tsr --help"
    return None


def _unknown_subcommand(text: str, keys: Collection[str]) -> str | None:
    if found := re.search(r"argument subcommand: invalid choice: '([^']*)' \(choose from (.*)\)", text):
        choices = re.findall(r"\w+", found[2])
        return f"{found[1]} is no subcommand: {_meant(found[1], choices) or 'choose from ' + ', '.join(choices)}"
    return None


def _no_file(text: str, keys: Collection[str]) -> str | None:
    found = re.search(r"Parser key \"config\": File does not exist: '([^']*)'", text)
    if not found:
        return None
    folder = config_folder()
    shipped = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.yaml")) if folder else []
    given = next((part for part in sys.argv if part.endswith(".yaml") and found[1].endswith(part)), found[1])
    close = _closest(given.removeprefix("configs/"), shipped)
    remedy = f"did you mean {close}?" if close else f"take a path, or one of {', '.join(shipped)}"
    return f"--config is {given}, which is no file here and none that is shipped: {remedy}"


def _no_mapping(text: str, keys: Collection[str]) -> str | None:
    if found := re.search(r'Key "([^"]*)" not found in namespace', text):
        above = found[1].rpartition(".")[0]
        return (
            f"{above} is given as a plain value somewhere: give it as a mapping of keys, as tsr fit --print_config does"
        )
    if found := re.search(r'Parser key "([^"]*)": Unable to load config \'([^\']*)\'', text):
        return f"{found[1]} is {found[2]}: give a mapping of keys, or set the keys below it"
    return None


def _broken_yaml(text: str, keys: Collection[str]) -> str | None:
    if found := re.search(r"Problems parsing config: (.*)", text):
        said = found[1].replace('in "<unicode string>", ', "at ")
        return f"--config names a file that is no valid YAML: {said}"
    return None


def _unknown_argument(text: str, key: str) -> str | None:
    found = re.search(r"class_path '([^']*)': Option '([^']*)' is not accepted", text)
    if not found:
        return None
    path, option = found.groups()
    known = [name for name in _parameters(path) if name != "self"]
    remedy = _meant(option, known) or (f"it takes {', '.join(known)}" if known else "it takes none")
    return f"{key} gives {path.rpartition('.')[2]} the argument {option}, which it does not take: {remedy}"


def _unknown_class(text: str, key: str) -> str | None:
    found = (
        re.search(r"Expected a dot import path string: ([^\s.]+)(?: |$)", text)
        or re.search(r"class_path '([^']*)': (?:module '\S+' has no attribute|No module named)", text)
        or re.search(r"Import path '?([\w.]+)'? does not correspond to a subclass of", text)
    )
    if not found:
        return None
    name = found[1].rpartition(".")[2]
    known = set(_classes())
    meant = None if name in known else _meant(name, known)
    return f"{key} is {found[1]}, which is no class that fits there: {meant or 'tsr fit --help lists those that do'}"


def _wrong_value(text: str, key: str) -> str | None:
    given = re.findall(r"(?:Given value|Got value): (.*?)(?= Given value|$)", text)
    wanted = [_type(name) for name in re.findall(r"Expected an? (<class '[^']*'>|typing\.Literal\[[^\]]*\]|\S+)", text)]
    if not given or not wanted:
        return None
    return f"{key} is {given[-1]}: give {' or '.join(dict.fromkeys(wanted))}"


def _type(name: str) -> str:
    if literal := re.fullmatch(r"typing\.Literal\[(.*)\]", name):
        return f"one of {literal[1]}"
    plain = name.removeprefix("<class '").removesuffix("'>").rstrip(".")
    spoken = {
        "NoneType": "null",
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "str": "a text",
    }
    return spoken.get(plain, f"a {plain.rpartition('.')[2]}")


def _meant(given: str, known: Iterable[str], dashes: str = "") -> str | None:
    """The known name that is closest as a whole, or else by its last part, as a question."""
    names = sorted(known)
    last_parts = {name.rpartition(".")[2]: name for name in names}
    close = _closest(given, names) or last_parts.get(_closest(given.rpartition(".")[2], last_parts) or "")
    return f"did you mean {dashes}{close}?" if close else None


def _closest(given: str, known: Collection[str]) -> str | None:
    begun = [name for name in known if name.startswith(given)]
    close = begun if len(begun) == 1 else difflib.get_close_matches(given, sorted(known), n=1, cutoff=0.75)
    return close[0] if close else None


def _parameters(path: str) -> list[str]:
    module, _, name = path.rpartition(".")
    try:
        return list(inspect.signature(getattr(import_module(module), name)).parameters)
    except (ImportError, AttributeError, ValueError):
        return []


def _classes() -> Iterator[str]:
    """The names of this project's classes that are loaded."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _OURS:
            yield from (
                key for key, value in vars(module).items() if inspect.isclass(value) and not key.startswith("_")
            )
