"""Software tasks: the packages, faults, the environment, branching, and the same in every process."""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tsr_lightning.envs.checker import check_branchable
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key
from tsr_lightning.tool_calls import CALL_FORMATS
from tsr_lightning.worlds.swe import bubblewrap
from tsr_lightning.worlds.swe.bubblewrap import open_bubblewrap
from tsr_lightning.worlds.swe.env import SWEEnv
from tsr_lightning.worlds.swe.exam import UnfitTest, examine, modules_of, read_tests
from tsr_lightning.worlds.swe.faults import OPERATORS, inject, sites
from tsr_lightning.worlds.swe.folder import Folder
from tsr_lightning.worlds.swe.generate import DIFFICULTIES, GeneratedTasks
from tsr_lightning.worlds.swe.library import HELD_OUT, package, package_names
from tsr_lightning.worlds.swe.scores import Ratio
from tsr_lightning.worlds.swe.stage import Stage
from tsr_lightning.worlds.swe.task import Grade, Task

pytestmark = pytest.mark.usefixtures("sandbox_here")

ROOT = Path(__file__).resolve().parents[2]


def source(difficulty: Any = "easy", names: tuple[str, ...] = package_names()) -> GeneratedTasks:
    return GeneratedTasks(open_bubblewrap(os.getpid()), names, difficulty)


def bash(command: str) -> str:
    return CALL_FORMATS["fenced"].write("bash", {"command": command})


def made(**kwargs: Any) -> SWEEnv:
    return SWEEnv(**{"packages": ["calc"], "call_format": "fenced", "task_count": 1, **kwargs})


@pytest.mark.parametrize(
    "name",
    [name if name in ("calc", "stats") else pytest.param(name, marks=pytest.mark.slow) for name in package_names()],
)
def test_a_package_without_a_fault_passes_its_tests(name: str) -> None:
    whole = package(name)
    tests = (*whole.visible, *whole.hidden)
    assert len(whole.modules) >= 2
    assert len({test.name for test in tests}) == len(tests)
    sandbox, modules = open_bubblewrap(os.getpid()), modules_of(whole.folder({}), name)
    for hash_seed in (0, 1):
        assert set(examine(sandbox, modules, tests, hash_seed).wrong) == {""}


def test_there_are_enough_packages_and_some_are_held_out() -> None:
    assert len(package_names()) >= 20
    assert set(package_names("train")) | set(HELD_OUT) == set(package_names())
    assert package_names("test") == HELD_OUT
    assert not set(package_names("train")) & set(HELD_OUT)


def test_the_policy_sees_no_hidden_test() -> None:
    files = source().task(0).folder.files
    assert not [path for path in files if "hidden" in path]
    assert {"README.md", "run_tests.py"} < set(files)


def test_an_assertion_of_another_form_is_refused() -> None:
    with pytest.raises(UnfitTest, match="test_a"):
        read_tests("test_a.py", "def test_it():\n    assert 1 < 2\n")


class TestOperators:
    """SWE-smith's, each on a small function."""

    CASES = (
        ("OperationChange", "def f(a, b):\n    return a + b\n", "a - b"),
        ("OperationFlipOperator", "def f(a, b):\n    return a < b\n", "a >= b"),
        ("OperationSwapOperands", "def f(a, b):\n    return a - b\n", "b - a"),
        ("OperationBreakChains", "def f(a, b):\n    return a + b + 1\n", "return a + 1"),
        ("OperationChangeConstants", "def f(a):\n    return a[0]\n", "a[1]"),
        (
            "ControlIfElseInvert",
            "def f(a):\n    if a:\n        x = 1\n    else:\n        x = 2\n",
            "if a:\n        x = 2\n",
        ),
        ("ControlShuffleLines", "def f(a):\n    a = 1\n    a += 2\n", "    a += 2\n    a = 1\n"),
        ("RemoveLoop", "def f(a):\n    for x in a:\n        print(x)\n    return 1\n", "def f(a):\n    return 1\n"),
        ("RemoveConditional", "def f(a):\n    if a:\n        a = 1\n    return a\n", "def f(a):\n    return a\n"),
        ("RemoveAssign", "def f(a):\n    a = 1\n    return a\n", "def f(a):\n    return a\n"),
        (
            "RemoveWrapper",
            "def f(a):\n    try:\n        a()\n    except ValueError:\n        a = 1\n",
            "def f(a):\n    a()\n",
        ),
        ("ClassRemoveBases", "class A(B):\n    x = 1\n", "class A:\n"),
        ("ClassRemoveFuncs", "class A:\n    def f(self):\n        pass\n    x = 1\n", "class A:\n    x = 1\n"),
        (
            "ClassShuffleMethods",
            "class A:\n    def f(self):\n        pass\n    def g(self):\n        pass\n",
            "def g(self):\n        pass\n    def f(self)",
        ),
    )

    def test_all_of_them_are_here(self) -> None:
        assert {name for name, _, _ in self.CASES} == set(OPERATORS)

    @pytest.mark.parametrize(("operator", "text", "expected"), CASES, ids=[case[0] for case in CASES])
    def test_operator(self, operator: str, text: str, expected: str) -> None:
        faulty = [inject(text, [site]) for site in sites("f.py", text, (operator,))]
        assert any(expected in one for one in faulty)
        assert text not in faulty


def check_task(task: Task, key: Key) -> None:
    """It is unsolved, solved by the true repair alone, and by no other edit."""
    sandbox = open_bubblewrap(os.getpid())
    begun = task.grader(sandbox, task.folder)
    assert begun.repaired == 0
    assert begun.kept == 1
    assert begun.visible < 1
    assert begun.hidden < 1
    assert task.grader(sandbox, task.folder.with_files(task.solution)) == Grade(1, 1, 1, 1)
    for edited in (random_edit(task, key), task.folder.without(lambda path: path.startswith("tests")), Folder(())):
        assert not task.grader(sandbox, edited).solved


def random_edit(task: Task, key: Key) -> Folder:
    """The folder without a random line of the module with the fault."""
    path = task.places[0].path
    lines = task.folder.files[path].splitlines(keepends=True)
    number = int(key.uniform() * len(lines))
    return task.folder.with_files({path: b"".join(lines[:number] + lines[number + 1 :])})


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_tasks(difficulty: Any) -> None:
    task = source(difficulty, ("calc",)).task(1)
    check_task(task, Key(1))
    fewest, most = DIFFICULTIES[difficulty].faults
    assert fewest <= len(task.places) <= most


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_three_hundred_tasks() -> None:
    begun = time.monotonic()
    for difficulty in DIFFICULTIES:
        for seed in range(100):
            check_task(source(difficulty).task(seed), Key(seed))
    print(f"300 tasks in {time.monotonic() - begun:.0f} s")


PRINT = """
import hashlib, os, sys
from tsr_lightning.worlds.swe.bubblewrap import open_bubblewrap
from tsr_lightning.worlds.swe.generate import GeneratedTasks
from tsr_lightning.worlds.swe.library import package_names
source = GeneratedTasks(open_bubblewrap(os.getpid()), package_names(), sys.argv[1])
for seed in map(int, sys.argv[2:]):
    task = source.task(seed)
    print(task.folder.digest, hashlib.sha256(repr((task.instruction, task.solution, task.places)).encode()).hexdigest())
"""


@pytest.mark.parametrize(
    ("difficulty", "seeds"), [("hard", [7]), pytest.param("medium", [*range(20)], marks=pytest.mark.exhaustive)]
)
def test_a_seed_is_the_same_task_in_another_process(difficulty: Any, seeds: list[int]) -> None:
    found = subprocess.run(
        [sys.executable, "-c", PRINT, difficulty, *map(str, seeds)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "123"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    for place, seed in enumerate(seeds):
        task = source(difficulty).task(seed)
        of_task = hashlib.sha256(repr((task.instruction, task.solution, task.places)).encode()).hexdigest()
        assert found[2 * place : 2 * place + 2] == [task.folder.digest, of_task]


@pytest.mark.parametrize(
    "kwargs",
    [
        pytest.param({"call_format": "fenced"}, marks=pytest.mark.exhaustive),
        pytest.param({"difficulty": "hard", "score": "oracle", "reward": "ratio"}, marks=pytest.mark.exhaustive),
        pytest.param({"score": "imports", "unsafe": True}, marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_it_is_branchable(kwargs: dict[str, Any]) -> None:
    kwargs = {"packages": ["calc"], "task_count": 1, "max_turns": 4, **kwargs}
    report = check_branchable("tsr/SWE-v0", kwargs=kwargs, noisy=False, seeds=[0], turns=2, keys=1)
    assert report.skipped == ()


def branch(count: int) -> tuple[float, float]:
    """Random branchings, each compared with what the same response in the same state did before; seconds of getting and
    setting a state."""
    env, others = made(max_turns=8), made(max_turns=8)
    env.reset(seed=0)
    seen: dict[tuple[Any, str], Any] = {}
    states = [env.get_state()]
    getting = setting = 0.0
    key = Key(5)
    for number in range(count):
        draw = key.fold_in(number)
        state = states[int(draw.uniform() * len(states))]
        player = (env, others)[number % 2]
        begun = time.perf_counter()
        player.set_state(state)
        setting += time.perf_counter() - begun
        legal = player.legal_actions()
        response = legal[int(draw.uniform(1) * len(legal))]
        observation, *outcome = player.step(response)
        begun = time.perf_counter()
        after = player.get_state()
        getting += time.perf_counter() - begun
        record = (tuple(observation), outcome, after, player.score(), player.state_key(), player.remaining())
        assert seen.setdefault((state, response), record) == record
        if not (outcome[1] or outcome[2]) and len(states) < 60:
            states.append(after)
    return getting / count, setting / count


def test_branching_is_exact() -> None:
    branch(12)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_two_thousand_branchings_are_exact() -> None:
    getting, setting = branch(2000)
    print(f"get_state {getting * 1e6:.1f} µs, set_state {setting * 1e6:.1f} µs")
    assert setting < 1e-3


@pytest.mark.parametrize("difficulty", ["easy", pytest.param("hard", marks=pytest.mark.slow)])
def test_the_oracle_solves(difficulty: Any) -> None:
    env = made(difficulty=difficulty, max_turns=20)
    env.reset(seed=0)
    scores = [env.score()]
    while True:
        _, reward, terminated, _, info = env.step(env.oracle())
        scores.append(env.score())
        if terminated:
            break
    assert (reward, info["success"], scores[-1]) == (1.0, True, 1.0)
    assert scores[0] < scores[-2] < 1


def test_what_a_turn_shows() -> None:
    env = made(output=200)
    env.reset(seed=0)
    [answer], *_ = env.step(bash("echo out; echo err >&2; exit 3"))
    assert answer.content == "out\nerr\n[exit code 3]"
    [answer], *_ = env.step(bash("seq 1000"))
    assert "bytes cut" in answer.content
    assert answer.content.startswith("1\n2\n")
    assert answer.content.endswith("1000\n[exit code 0]")
    [answer], reward, *_, info = env.step("I would look at the files.")
    assert (reward, info["action_is_valid"]) == (-0.1, False)
    *_, info = env.step(bash("touch made"))
    assert info["action_is_effective"]
    *_, info = env.step(bash("ls"))
    assert not info["action_is_effective"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("echo a\0b", "bash: a command takes no NUL character."),
        ("echo " + "a" * 100_000, "bash: the command is longer than 100,000 bytes."),
    ],
    ids=["nul", "long"],
)
def test_what_no_program_can_be_given_ends_no_run(command: str, said: str) -> None:
    env = SWEEnv(packages=["calc"], task_count=1, call_format="hermes")
    env.reset(seed=0)
    [answer], *_ = env.step(CALL_FORMATS["hermes"].write("bash", {"command": command}))
    assert answer.content == said


def test_a_folder_that_could_not_be_written_again_is_too_large() -> None:
    """Hard links become copies, each in pages of its own."""
    env = made()
    env.reset(seed=0)
    links = 'echo a > one; for i in $(seq 1900); do ln one "link$i"; done'
    [answer], *_ = env.step(bash(links))
    assert "undone: the folder has more than" in answer.content
    [after], *_ = env.step(bash("ls | grep -c link"))
    assert after.content == "0\n[exit code 1]"
    [answer], *_ = env.step(bash(links.replace("1900", "900")))
    assert answer.content == "[exit code 0]"


def test_pytest_is_there() -> None:
    """As models expect, with the tests' own imports."""
    env = made()
    env.reset(seed=0)
    [answer], *_ = env.step(bash("python -m pytest -q -p no:cacheprovider tests"))
    assert "failed" in answer.content
    assert answer.content.endswith("[exit code 1]")


def test_replace() -> None:
    env = SWEEnv(packages=["calc"], task_count=1, call_format="hermes")
    env.reset(seed=0)
    for arguments, answer in (
        ({"path": "README.md", "old": "# calc", "new": "# CALC"}, "Replaced."),
        ({"path": "README.md", "old": "# calc", "new": ""}, "The text is in README.md 0 times."),
        ({"path": "none", "old": "a", "new": "b"}, "There is no file none."),
    ):
        [shown], *_ = env.step(CALL_FORMATS["hermes"].write("replace", arguments))
        assert shown.content == answer
    assert env.state.folder.files["README.md"].startswith(b"# CALC\n")


def test_a_program_stays_one_when_a_text_of_it_is_replaced() -> None:
    env = SWEEnv(packages=["calc"], task_count=1, call_format="hermes")
    env.reset(seed=0)
    write = CALL_FORMATS["hermes"].write
    env.step(write("bash", {"command": "printf '#!/bin/sh\\necho one\\n' > r.sh; chmod +x r.sh"}))
    env.step(write("replace", {"path": "r.sh", "old": "one", "new": "two"}))
    [answer], *_ = env.step(write("bash", {"command": "./r.sh"}))
    assert answer.content == "two\n[exit code 0]"


def test_parts_of_a_reward() -> None:
    assert Ratio()(Grade(repaired=0.5, kept=1.0, hidden=0.9, visible=1.0)) == 0.5
    assert Ratio()(Grade(repaired=1.0, kept=0.5, hidden=0.9, visible=1.0)) == 0.5


class TestBadInput:
    """One sentence each."""

    @pytest.mark.parametrize(
        ("kwargs", "sentence"),
        [
            ({"difficulty": "none"}, "SWEEnv.difficulty is 'none': take one of easiest, easy, medium, hard"),
            ({"split": "held"}, "SWEEnv.split is 'held'"),
            (
                {"packages": ["numpy"]},
                "SWEEnv.packages has 'numpy', and there is no such package: take some of addresses",
            ),
            ({"reward": "dense"}, "SWEEnv.reward is 'dense'"),
            ({"score": "hidden"}, "SWEEnv.score is 'hidden'"),
            ({"task_count": 0}, "SWEEnv.task_count is 0"),
            ({"output": 1}, "SWEEnv.output is 1"),
            ({"seconds": 0}, "SWEEnv.seconds is 0"),
            ({"tasks": "nowhere"}, "SWEEnv.tasks is 'nowhere': there is no such folder"),
        ],
        ids=str,
    )
    def test_arguments(self, kwargs: dict[str, Any], sentence: str) -> None:
        with pytest.raises(ConfigError) as refused:
            SWEEnv(**kwargs)
        assert str(refused.value).startswith(sentence)
        assert "\n" not in str(refused.value)

    @pytest.mark.parametrize(
        ("old", "new", "sentence"),
        [
            ("return left + right", "return left - right", "which fails its tests without a fault: evaluate("),
            ("==> calc/", "==> other/", "which is no package: give files of calc/"),
            ("assert evaluate(", "assert not evaluate(", "whose tests cannot be asked: tests/test_calc.py:"),
        ],
    )
    def test_packages_of_ones_own(self, tmp_path: Path, old: str, new: str, sentence: str) -> None:
        text = (Path(bubblewrap.__file__).parent / "packages/calc.txt").read_text()
        path = tmp_path / "calc.txt"
        path.write_text(text)
        assert SWEEnv(packages=[str(path)], task_count=1).reset(seed=0)
        (tmp_path / "broken").mkdir()
        path = tmp_path / "broken/calc.txt"
        path.write_text(text.replace(old, new))
        with pytest.raises(ConfigError) as refused:
            SWEEnv(packages=[str(path)])
        assert str(refused.value).startswith(f"SWEEnv.packages has {str(path)!r}, {sentence}")

    def test_no_libcst(self) -> None:
        code = (
            "import sys; sys.modules['libcst'] = None\n"
            "from tsr_lightning.envs.make import make_env\nfrom tsr_lightning.errors import ConfigError\n"
            "import tsr_lightning\ntry:\n    make_env('tsr/SWE-v0')\nexcept ConfigError as error:\n    print(error)"
        )
        found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        assert found.stdout.startswith("tsr/SWE-v0 needs the package libcst, which is missing: install the extra")

    def test_no_bubblewrap(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bubblewrap, "find_spec", lambda name: None)
        monkeypatch.setenv("PATH", "")
        with pytest.raises(ConfigError, match=r"needs bubblewrap, which is missing: .*unsafe: true"):
            bubblewrap.find_program()

    def test_no_user_namespaces(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As where a container or a kernel setting forbids them: bubblewrap itself says so, and ends."""
        program = tmp_path / "bwrap"
        program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
        program.chmod(0o755)
        monkeypatch.setattr(bubblewrap, "find_program", lambda: bubblewrap.Program(str(tmp_path), "bwrap"))
        monkeypatch.setattr(bubblewrap, "staged", lambda paths: Stage((), tuple(paths)))
        with pytest.raises(ConfigError, match=r"No permissions to create new namespace.*unsafe: true") as refused:
            open_bubblewrap.__wrapped__(0)
        assert "\n" not in str(refused.value)
