"""Hidden tests, run so that the code under test cannot decide their outcome.

A test is a function whose every assertion is `assert expression == literal`. The process with the code under test is
given the expressions alone, on a copy of the package without anything else of the policy's folder; what they come to
is written down there, and compared here. So a patched `assert`, an `__eq__` that is always true, a plugin, a forged
report or an exit before the end win nothing: the right values have to be known, and they are not there.
"""

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tsr_lightning.errors import EnvFault
from tsr_lightning.worlds.swe.folder import Folder, Kind, folder_of
from tsr_lightning.worlds.swe.sandbox import Limits, Sandbox

RUN_TESTS = "run_tests"  # the module that tests import `raised` from

NO_ANSWER = "no answer"

_LIMITS = Limits(seconds=30, output=1 << 20)
_LONGEST = 4000  # characters of a value
_PROGRAM = """
import json, os, resource, sys, types
tests = json.loads(sys.argv[1])
out = os.fdopen(os.dup(1), "w")
null = os.open(os.devnull, os.O_RDWR)
os.dup2(null, 1); os.dup2(null, 2)
helper = types.ModuleType("run_tests")
def raised(function, *args):
    try:
        function(*args)
    except Exception as error:
        return type(error).__name__
    return "None"
helper.raised = raised
def play(begin):
    sys.path.insert(0, os.getcwd())
    sys.modules["run_tests"] = helper
    for number in range(begin, len(tests)):
        values = []
        try:
            space = {"__emit__": lambda value: values.append(repr(value)[:LONGEST])}
            exec(compile(tests[number][0], "test", "exec"), space)
            space[tests[number][1]]()
        except BaseException as error:
            values.append("raised " + type(error).__name__)
        out.write(json.dumps([number, values]) + chr(10))
        out.flush()
begin = 0
while begin < len(tests):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (2, 2))
        os.close(read)
        real, out = out, os.fdopen(write, "w")
        play(begin)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as lines:
        for line in lines:
            out.write(line)
            out.flush()
            try:
                begin = max(begin, int(line[1:].split(",")[0]))
            except ValueError:
                pass
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):  # it hangs or is out of memory: what comes after it is not asked
        break
    begin += 1
""".replace("LONGEST", str(_LONGEST))

# the same as a program of its own, for tasks that others play: the answers stay with the process that compares
CHECKER = f"""
import json, os, shutil, subprocess, sys, tempfile
here = os.path.dirname(os.path.abspath(__file__))
exam = json.load(open(os.path.join(here, "exam.json")))
PROGRAM = {_PROGRAM!r}
with tempfile.TemporaryDirectory() as copy:
    shutil.copytree(os.path.join(sys.argv[1], exam["package"]), os.path.join(copy, exam["package"]))
    open(os.path.join(copy, "exam.py"), "w").write(PROGRAM)
    output = subprocess.run(
        [sys.executable, "-s", "-S", "-B", "exam.py", json.dumps(exam["questions"])],
        cwd=copy, stdout=subprocess.PIPE, timeout=100, text=True, env={{"PATH": os.defpath, "PYTHONHASHSEED": "0"}},
    ).stdout
given = {{}}
for line in output.splitlines():
    try:
        number, values = json.loads(line)
        given.setdefault(number, values)
    except (ValueError, TypeError):
        pass
passed = [given.get(number) == answers for number, answers in enumerate(exam["answers"])]
print(float(all(passed)))
""".lstrip()


@dataclass(frozen=True)
class Test:
    """One test.

    Args:
        name: of the function, which no other test of a package has.
        questions: the module of the test alone, with assertions turned into questions.
        answers: what they have to come to, as Python writes it.
        asked: the expressions, for people.
    """

    name: str
    questions: str
    answers: tuple[str, ...]
    asked: tuple[str, ...]


class UnfitTest(Exception):
    """A test is not of the form that can be asked."""


def read_tests(path: str, text: str) -> list[Test]:
    """The tests of a file."""
    body = ast.parse(text, path).body
    tests = [node for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    shared = [node for node in body if node not in tests]
    return [_read_test(node, shared, path) for node in tests]


@dataclass(frozen=True)
class Marks:
    """What tests came to, in their order: whether each passed, and the first wrong answer of those that did not."""

    passed: tuple[bool, ...]
    wrong: tuple[str, ...]  # "" for a test that passed

    @property
    def hangs(self) -> bool:
        """True if the tests were not asked to the end, which may depend on the machine."""
        return NO_ANSWER in self.wrong


def examine(sandbox: Sandbox, source: Folder, tests: Sequence[Test], hash_seed: int = 0) -> Marks:
    """Runs tests on the modules of a package.

    Args:
        hash_seed: of Python's hashes of strings.
    """
    questions = json.dumps([[test.questions, test.name] for test in tests])
    program = source.with_files({"exam.py": _PROGRAM.encode(), "questions.json": questions.encode()})
    python = f"PYTHONPATH= PYTHONHASHSEED={hash_seed} exec python -s -S -B -P"
    result = sandbox.run(program, f'{python} exam.py "$(cat questions.json)"', _LIMITS)
    if result.exit_code == 127:
        raise EnvFault(f"an examination did not begin: {result.output.strip()}")
    given = _given(result.output, len(tests))
    wrong = tuple(_first_wrong(test, given.get(number)) for number, test in enumerate(tests))
    return Marks(tuple(not text for text in wrong), wrong)


def questions_of(tests: Sequence[Test], failing: Sequence[bool]) -> dict[str, object]:
    """What `CHECKER` reads beside the name of the package.

    Args:
        failing: for each test, whether the fault breaks it.
    """
    names = {
        broken: [test.name for test, one in zip(tests, failing, strict=True) if one is broken]
        for broken in (True, False)
    }
    return {
        "FAIL_TO_PASS": names[True],
        "PASS_TO_PASS": names[False],
        "questions": [[test.questions, test.name] for test in tests],
        "answers": [list(test.answers) for test in tests],
    }


def modules_of(folder: Folder, package: str) -> Folder:
    """The Python files of a package in a folder, without links, and nothing else."""
    return folder_of(
        {
            entry.path: entry
            for entry in folder.entries
            if entry.path.startswith(f"{package}/") and entry.path.endswith(".py")
            if entry.kind in (Kind.FILE, Kind.PROGRAM)
        }
    )


def _read_test(node: ast.FunctionDef, shared: Sequence[ast.stmt], path: str) -> Test:
    answers, asked, body = list[str](), list[str](), list[ast.stmt]()
    for statement in node.body:
        if not isinstance(statement, ast.Assert):
            body.append(statement)
            continue
        match statement.test:
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                answers.append(repr(ast.literal_eval(right)))
                asked.append(ast.unparse(left))
                emit = ast.Call(ast.Name("__emit__", ast.Load()), [left], [])
                body.append(ast.Expr(emit))
            case _:
                raise UnfitTest(f"{path}:{statement.lineno} is no `assert expression == literal`")
    function = ast.FunctionDef(node.name, node.args, body, [])
    module = ast.fix_missing_locations(ast.Module([*shared, function], []))
    return Test(node.name, ast.unparse(module), tuple(answers), tuple(asked))


def _given(output: str, count: int) -> Mapping[int, list[str]]:
    """The first answers that were written down for each test."""
    given = dict[int, list[str]]()
    for line in output.splitlines():
        try:
            number, values = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            continue
        if isinstance(number, int) and 0 <= number < count and isinstance(values, list):
            given.setdefault(number, [str(value) for value in values])
    return given


def _first_wrong(test: Test, values: Sequence[str] | None) -> str:
    if values is None:
        return NO_ANSWER
    for place, answer in enumerate(test.answers):
        value = values[place] if place < len(values) else "nothing"
        if value != answer:
            return f"{test.asked[place]} is {value} and should be {answer}"
    return "" if len(values) == len(test.answers) else values[-1]
