"""What the benchmark of interruptions looks for; the runs themselves are `python -m benchmarks.interruptions`."""

import torch

from benchmarks.interruptions.cases import Case, Result, cases, table
from benchmarks.interruptions.end import equal, faults_of_an_end, repeated_evaluations

SENTENCE = "tsr: stopped by SIGTERM: saved is run/checkpoints/last.ckpt; go on with tsr fit"


def test_runs_are_spread_over_loggers_and_every_second_is_interrupted_twice():
    made = cases({"kill": 3, "SIGTERM": 1}, ["tensorboard", "none"])
    assert made == [
        Case("tensorboard", "kill", 0, 1),
        Case("none", "kill", 1, 2),
        Case("tensorboard", "kill", 2, 1),
        Case("tensorboard", "SIGTERM", 0, 1),
    ]


def test_states_are_equal_to_the_bit_alone():
    state = {"weights": torch.tensor([1.0, 2.0]), "steps": [1, (2, "a")]}
    assert equal(state, {"weights": torch.tensor([1.0, 2.0]), "steps": [1, (2, "a")]})
    for other in (
        {**state, "weights": torch.tensor([1.0, 2.0 + 1e-6])},
        {**state, "steps": [1, (2, "b")]},
        {**state, "steps": [1]},
        {"weights": state["weights"]},
    ):
        assert not equal(state, other)


def test_a_wrong_status_a_missing_sentence_and_a_traceback_are_faults():
    assert faults_of_an_end("SIGTERM", 143, SENTENCE, "update") == []
    assert faults_of_an_end("kill", -9, "", "update") == []
    assert len(faults_of_an_end("SIGTERM", 0, "", "update")) == 2
    assert len(faults_of_an_end("Ctrl-C", 130, f"Traceback (most ...\n{SENTENCE}", "update")) == 2
    assert faults_of_an_end("SIGTERM", 0, "the run is in run", "update") == []  # it had come to its end


def test_an_evaluation_of_the_policy_that_was_loaded_is_a_fault():
    begun = "evaluation after 0 epochs: success\nepoch 0: rollout of 4\nevaluation after 2 epochs: success\n"
    went_on = "epoch 2: rollout of 4\nevaluation after 4 epochs: success\n"
    assert repeated_evaluations(begun) == repeated_evaluations(went_on) == []
    again = repeated_evaluations(f"evaluation after 2 epochs: success\n{went_on}")
    assert again == ["the policy after 2 epochs was evaluated again"]


def test_the_table_counts_by_logger_and_signal():
    results = [
        Result(Case("none", "kill", 0, 1), ["rollout"]),
        Result(Case("none", "kill", 1, 2), ["rollout", "start"], ["its evaluations differ"]),
    ]
    assert table(results).splitlines()[2:] == ["| none | kill | 2 | 1 | 2 rollout, 1 start |"]
