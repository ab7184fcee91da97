"""Objects are known by their values, in any process."""

import pickle

from commands import python_output

from tsr_lightning.envs.object_digest import digest


class Held:
    def __init__(self) -> None:
        self.words = {"a", "bc", "def", "ghij"}
        self.deep = [(1, {"k": frozenset({"x", "y", "z"})})]


def test_what_is_equal_has_one_digest():
    held = Held()
    assert digest(held) == digest(Held()) == digest(pickle.loads(pickle.dumps(held)))
    word = "".join(["w", "ord"])  # an object of its own
    assert digest(["word", "word"]) == digest(["word", word])
    held.words |= {"k"}
    assert digest(held) != digest(Held())
    assert len({digest(each) for each in ({"a"}, frozenset({"a"}), ["a"], {"b"}, {"a": {1}}, {"a": {2}})}) == 6


def test_an_object_may_be_within_itself():
    held, other = Held(), Held()
    held.deep, other.deep = [held], [other]
    assert digest(held) == digest(other) != digest(Held())


def test_another_process_has_the_same():
    code = (
        "from tsr_lightning.envs.object_digest import digest\n"
        "class Held: pass\n"
        "held = Held(); held.words = {'a', 'bc', 'def', 'ghij'}; held.deep = [{'k': frozenset({'x', 'y', 'z'})}]\n"
        "print(digest(held))"
    )
    assert len({python_output(code, hash_seed=seed) for seed in ("1", "2")}) == 1
