"""Trajectories become training sequences: the trained ids are the sampled ids, and credit stays on its token."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from tsr_lightning.batching.schedule import collate
from tsr_lightning.batching.sequences import TrainingSequence, training_sequences, with_credit
from tsr_lightning.batching.tensors import Credit, Estimates, Targets, columns
from tsr_lightning.policy.chat import Chat, Context, Full, LastK, SingleTurn
from tsr_lightning.policy.vocabulary import CHATML, make_tokenizer
from tsr_lightning.trajectory import Ended, Origin, Trajectory, Turn, to_messages

# drops the thoughts of earlier turns
REWRITES = CHATML.replace("message['content'] +", "message['content'].split('</think>')[-1] +")


def tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    made = make_tokenizer(["Turn 1\n###\n#P_\n<think>go Up</think><answer>Up || Left</answer>"] * 2)
    made.chat_template = template
    return made


TEMPLATES = {"chatml": CHATML, "default": None, "rewriting": REWRITES}
CONTEXTS: list[Context] = [Full(), LastK(1), LastK(2), SingleTurn()]
CHATS = {
    (name, context): Chat(tokenizer(template), context) for name, template in TEMPLATES.items() for context in CONTEXTS
}
SIZE = len(tokenizer(None))
[CHATML_END] = CHATS["chatml", Full()].end_ids

# any ids of the vocabulary, including control tokens and bytes that are not text
TOKEN = st.integers(0, SIZE - 1) | st.sampled_from([*range(SIZE - 3, SIZE), 128, 255])
# (response ids, observation) of each turn
EXCHANGES = st.lists(st.tuples(st.lists(TOKEN, min_size=1, max_size=6), st.text(max_size=6)), min_size=1, max_size=5)
Exchanges = list[tuple[list[int], str]]


def episode(chat: Chat, exchanges: Exchanges) -> Trajectory:
    """As a rollout makes it: each response to the prompt that it was sampled from, cut at its end token, unfinished
    without one."""
    turns: list[Turn] = []
    for ids, observation in exchanges:
        last = next((i for i, token in enumerate(ids) if token in chat.end_ids), len(ids) - 1)
        response = tuple(ids[: last + 1])
        finished = response[-1] in chat.end_ids
        messages = to_messages(observation, "" if turns else "rules")
        prompt = chat.prompt(turns, messages)
        text = chat.read(response)
        turns.append(Turn(prompt, response, (-1.0,) * len(response), finished, messages, text, 0.0, True, True, text))
    return Trajectory(0, 0, "Sample", Origin.SAMPLED, tuple(turns), Ended.FAILED, (), ())


def contexts(sequence: TrainingSequence) -> list[tuple[int, ...]]:
    """The ids before each trained token."""
    ids = sequence.ids.tolist()
    return [tuple(ids[:i]) for i in sequence.mask.nonzero().flatten().tolist()]


@pytest.mark.parametrize("context", CONTEXTS, ids=repr)
@pytest.mark.parametrize("template", TEMPLATES)
@given(exchanges=EXCHANGES)
def test_the_trained_ids_are_the_sampled_ids(template: str, context: Context, exchanges: Exchanges) -> None:
    """In order, each once, each in the context that it was sampled in, and no others."""
    trajectory = episode(CHATS[template, context], exchanges)
    sequences = training_sequences(trajectory)
    sampled = [token for turn in trajectory.turns for token in turn.response]
    assert torch.cat([sequence.ids[sequence.mask] for sequence in sequences]).tolist() == sampled
    assert sum(sequence.trained_tokens for sequence in sequences) == len(sampled) == trajectory.trained_tokens
    assert [context_of for sequence in sequences for context_of in contexts(sequence)] == [
        turn.prompt + turn.response[:i] for turn in trajectory.turns for i in range(len(turn.response))
    ]


@pytest.mark.parametrize("context", CONTEXTS, ids=repr)
@pytest.mark.parametrize("template", TEMPLATES)
@given(exchanges=EXCHANGES)
def test_a_sequence_is_the_prompt_and_response_of_its_last_turn(
    template: str, context: Context, exchanges: Exchanges
) -> None:
    """A new one starts where a prompt does not extend the previous prompt and response."""
    trajectory = episode(CHATS[template, context], exchanges)
    wholes = [turn.prompt + turn.response for turn in trajectory.turns]
    following = zip(wholes, trajectory.turns[1:], strict=False)
    ends = [whole for whole, turn in following if turn.prompt[: len(whole)] != whole]
    assert [tuple(sequence.ids.tolist()) for sequence in training_sequences(trajectory)] == [*ends, wholes[-1]]


@given(exchanges=EXCHANGES)
def test_the_context_determines_the_number_of_sequences(exchanges: Exchanges) -> None:
    """Of T turns: one with the full history, T without any; with k turns of it, the first k + 1 turns share one,
    because until then nothing is cut."""
    turns = len(exchanges)
    expected = {Full(): 1, SingleTurn(): turns, LastK(1): max(1, turns - 1), LastK(2): max(1, turns - 2)}
    for context, count in expected.items():
        assert len(training_sequences(episode(CHATS["chatml", context], exchanges))) == count


@pytest.mark.parametrize("template", ["chatml", "default"])
@given(exchanges=EXCHANGES)
def test_every_observation_follows_its_response_once(template: str, exchanges: Exchanges) -> None:
    """Under any context: where a prompt does not show the turn before, its observation is appended to that turn."""
    expected: list[int] = []
    for context in CONTEXTS:  # Full() comes first
        chat = CHATS[template, context]
        trajectory = replace(episode(chat, exchanges), final_messages=to_messages("the end"))
        sequences = training_sequences(trajectory, chat.following)
        zeros = torch.zeros(trajectory.trained_tokens)
        estimates, credit = Estimates(zeros, zeros, zeros, 0.0), Credit(*[zeros] * 6)
        observed = []
        for sequence in with_credit(sequences, estimates, credit, observations=True):
            assert sequence.targets is not None
            observed += sequence.ids[sequence.mask][sequence.targets.observation_weights > 0].tolist()
        expected = expected or observed
        assert observed == expected
        assert chat.tokenizer.decode(observed).count("the end") >= 1


def test_the_token_that_closes_an_unfinished_response_is_not_trained() -> None:
    chat = CHATS["chatml", Full()]
    trajectory = episode(chat, [([65, 66], "one"), ([67, CHATML_END], "two"), ([68], "three")])
    [sequence] = training_sequences(trajectory)
    assert sequence.ids[sequence.mask].tolist() == [65, 66, 67, CHATML_END, 68]
    closing = len(trajectory.turns[0].prompt) + 2
    assert sequence.ids[closing] == CHATML_END
    assert not sequence.mask[closing]


@pytest.mark.parametrize("context", CONTEXTS, ids=repr)
@given(exchanges=EXCHANGES)
def test_credit_stays_on_its_token(context: Context, exchanges: Exchanges) -> None:
    """Column c holds 100 c + n at token n of the trajectory, and so at token n of its sequences."""
    trajectory = episode(CHATS["chatml", context], exchanges)
    number = torch.arange(trajectory.trained_tokens, dtype=torch.float32)
    estimates = Estimates(number, number + 100, number + 200, 0.0)
    credit = Credit(*(number + 100 * c for c in range(3, 9)))
    credited = with_credit(training_sequences(trajectory), estimates, credit)
    expected = {
        "old_logprobs": 0,
        "old_values": 100,
        "reference_logprobs": 200,
        "advantages": 300,
        "value_targets": 400,
        "weights": 500,
        "value_weights": 700,
        "supervised_weights": 800,
    }
    assert {f.name for f in columns(Targets)} == {*expected, "turn_starts", "observation_weights"}
    for name, offset in expected.items():
        assert torch.equal(torch.cat([getattr(sequence.targets, name) for sequence in credited]), number + offset)
    assert torch.equal(torch.cat([s.normalizers for s in credited if s.normalizers is not None]), number + 600)
    starts = [float(place == 0) for turn in trajectory.turns for place in range(len(turn.response))]
    assert torch.cat([s.targets.turn_starts for s in credited if s.targets is not None]).tolist() == starts
    sampled = torch.tensor([token for turn in trajectory.turns for token in turn.response])
    batch = collate(credited)  # the order of the batch's tokens is the order of its targets
    assert torch.equal(batch.packed.target_ids[batch.packed.target_index], sampled)
    assert torch.equal(batch.targets.old_logprobs, number)


def test_sequences_without_weight_are_left_out() -> None:
    """Of four sequences of two tokens: one has policy weight, one none, one value weight, one supervised weight."""
    sequences = [
        TrainingSequence(torch.tensor([1, n, n]), torch.tensor([False, True, True]), torch.tensor([1.0, 0.0]))
        for n in (2, 3, 4, 5)
    ]
    zeros = torch.zeros(8)
    policy, value, supervised = (torch.eye(8)[place] for place in (1, 4, 7))
    credit = Credit(zeros, zeros, policy, zeros, value, supervised)
    kept = with_credit(sequences, Estimates(zeros, zeros, zeros, 0.0), credit)
    assert [sequence.ids[1].item() for sequence in kept] == [2, 4, 5]
    assert [sequence.targets.weights.tolist() for sequence in kept if sequence.targets] == [[0, 1], [0, 0], [0, 0]]
