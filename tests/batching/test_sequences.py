"""From rollout to training: the trained ids are the sampled ids, the mask covers them and nothing else; and every row
is trained on once a pass, whoever shares the work."""

from collections import Counter
from dataclasses import fields
from itertools import chain, groupby
from operator import itemgetter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from tsr_lightning.batching.packing import cut, in_order, shard
from tsr_lightning.batching.sequences import (
    Batch,
    TrainingSequence,
    Updates,
    batched,
    collate,
    rows_of,
    schedule,
    with_credit,
)
from tsr_lightning.objectives.base import Credit, Estimates, Targets
from tsr_lightning.policy.chat import Chat, Context, Full, LastK, SingleTurn
from tsr_lightning.policy.vocabulary import CHATML, make_tokenizer
from tsr_lightning.rng import Key
from tsr_lightning.trajectory import Origin, Trajectory, Turn

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

# any ids of the vocabulary, control tokens and bytes that are no text among them
TOKEN = st.integers(0, SIZE - 1) | st.sampled_from([*range(SIZE - 3, SIZE), 128, 255])
SAID = st.lists(st.tuples(st.lists(TOKEN, min_size=1, max_size=6), st.text(max_size=6)), min_size=1, max_size=5)


def lived(chat: Chat, said: list[tuple[list[int], str]]) -> Trajectory:
    """An episode as a rollout makes it: each response to the prompt that it was sampled from, cut at its end token,
    unfinished where it has none."""
    turns: list[Turn] = []
    for ids, observation in said:
        cut = next((i for i, token in enumerate(ids) if token in chat.end_ids), len(ids) - 1)
        response = tuple(ids[: cut + 1])
        finished = response[-1] in chat.end_ids
        prompt = chat.prompt("rules", turns, observation)
        text = chat.read(response)
        turns.append(Turn(prompt, response, (-1.0,) * len(response), finished, observation, text, 0.0, True, True))
    return Trajectory(0, 0, "Sample", Origin.SAMPLED, tuple(turns), False, False, (), "")


# -- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", CONTEXTS, ids=repr)
@pytest.mark.parametrize("template", TEMPLATES)
@given(said=SAID)
def test_the_trained_ids_are_the_sampled_ids(
    template: str, context: Context, said: list[tuple[list[int], str]]
) -> None:
    """Under any template and context: in order, each once, each in the very context it was sampled in, nothing else."""
    trajectory = lived(CHATS[template, context], said)
    rows = rows_of(trajectory)
    sampled = [token for turn in trajectory.turns for token in turn.response]
    assert torch.cat([row.ids[row.mask] for row in rows]).tolist() == sampled
    assert sum(row.trained for row in rows) == len(sampled) == trajectory.trained_tokens
    assert [context_of for row in rows for context_of in contexts(row)] == [
        turn.prompt + turn.response[:i] for turn in trajectory.turns for i in range(len(turn.response))
    ]


@pytest.mark.parametrize("context", CONTEXTS, ids=repr)
@pytest.mark.parametrize("template", TEMPLATES)
@given(said=SAID)
def test_a_row_is_prompts_and_responses_verbatim(
    template: str, context: Context, said: list[tuple[list[int], str]]
) -> None:
    """A row is its last turn's prompt and response; the turns of all rows are the trajectory's, in order."""
    trajectory = lived(CHATS[template, context], said)
    wholes = [turn.prompt + turn.response for turn in trajectory.turns]
    rows = [tuple(row.ids.tolist()) for row in rows_of(trajectory)]
    following = zip(wholes, trajectory.turns[1:], strict=False)
    breaks = [whole for whole, turn in following if turn.prompt[: len(whole)] != whole]
    assert rows == [*breaks, wholes[-1]]


@given(said=SAID)
def test_how_many_rows_there_are(said: list[tuple[list[int], str]]) -> None:
    """Of T turns: one row with the whole history, one a turn with none; with k turns of it, the first k + 1 share a
    row, because until then nothing was cut."""
    count = len(said)
    expected = {Full(): 1, SingleTurn(): count, LastK(1): max(1, count - 1), LastK(2): max(1, count - 2)}
    for context, rows in expected.items():
        assert len(rows_of(lived(CHATS["chatml", context], said))) == rows


def test_the_token_that_closes_an_unfinished_response_is_not_trained_on() -> None:
    chat = CHATS["chatml", Full()]
    trajectory = lived(chat, [([65, 66], "one"), ([67, CHATML_END], "two"), ([68], "three")])
    [row] = rows_of(trajectory)
    trained = row.ids[row.mask].tolist()
    assert trained == [65, 66, 67, CHATML_END, 68]
    at = len(trajectory.turns[0].prompt) + 2
    assert row.ids[at] == CHATML_END  # closes the first response, which did not
    assert not row.mask[at]


def contexts(row: TrainingSequence) -> list[tuple[int, ...]]:
    """What stands before each trained token of a row."""
    ids = row.ids.tolist()
    return [tuple(ids[:i]) for i in row.mask.nonzero().flatten().tolist()]


# -- credit ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", CONTEXTS, ids=repr)
@given(said=SAID)
def test_credit_falls_on_the_token_that_it_is_of(context: Context, said: list[tuple[list[int], str]]) -> None:
    """Each figure of token n of the trajectory, told apart by hundreds, is found at token n of the rows."""
    trajectory = lived(CHATS["chatml", context], said)
    count = trajectory.trained_tokens
    places = torch.arange(count, dtype=torch.float32)
    estimates = Estimates(places, places + 100, places + 200, 0.0)
    credit = Credit(places + 300, places + 400, places + 500, places + 600, places + 700)
    filled = with_credit(rows_of(trajectory), estimates, credit)
    expected = {
        "logprobs": 0,
        "values": 100,
        "reference": 200,
        "advantages": 300,
        "returns": 400,
        "weights": 500,
        "value_weights": 700,
    }
    assert {f.name for f in fields(Targets)} == set(expected)
    for name, offset in expected.items():
        assert torch.equal(torch.cat([getattr(row.targets, name) for row in filled]), places + offset)
    assert torch.equal(torch.cat([row.normalizers for row in filled if row.normalizers is not None]), places + 600)
    sampled = torch.tensor([token for turn in trajectory.turns for token in turn.response])
    batch = collate(filled)  # the order of the batch's tokens is the order of its targets
    assert torch.equal(batch.packed.sampled[batch.packed.places], sampled)
    assert torch.equal(batch.targets.logprobs, places)


def test_rows_that_would_train_nothing_are_left_out() -> None:
    """Of three rows of two tokens: one weighs for the policy, one for neither, one for the critic alone."""
    rows = [TrainingSequence(torch.tensor([1, n, n]), torch.tensor([False, True, True])) for n in (2, 3, 4)]
    zeros = torch.zeros(6)
    credit = Credit(zeros, zeros, torch.tensor([0, 1, 0, 0, 0, 0.0]), zeros, torch.tensor([0, 0, 0, 0, 1, 0.0]))
    kept = with_credit(rows, Estimates(zeros, zeros, zeros, 0.0), credit)
    assert [row.ids[1].item() for row in kept] == [2, 4]
    assert [row.targets.weights.tolist() for row in kept if row.targets] == [[0, 1], [0, 0]]


# -- schedule ----------------------------------------------------------------------------------------------------------


def filled(lengths: list[tuple[int, int]]) -> list[TrainingSequence]:
    """Rows of (prompt, response) lengths, told apart by their first id, of varied weights and shares."""
    rows = []
    for name, (prompt, response) in enumerate(lengths):
        ids = torch.cat([torch.tensor([name]), torch.ones(prompt + response - 1, dtype=torch.int64)])
        mask = torch.arange(prompt + response) >= prompt
        figures = torch.full((response,), float(name))
        weight = torch.full((response,), 0.5 + name % 3)
        targets = Targets(figures, figures, figures, figures, figures, weight, 2 * weight)
        rows.append(TrainingSequence(ids, mask, targets, normalizers=weight.clone()))
    return rows


def names(batch: Batch, *, dummy: bool = False) -> list[int]:
    """The rows of a batch that weigh, or those that do not."""
    return [name for name, weights in weights_of(batch) if any(weights) is not dummy]


def weights_of(batch: Batch) -> list[tuple[int, list[float]]]:
    """Each row of a batch by its name, which all its targets carry, with its weights."""
    figures = zip(batch.targets.logprobs.tolist(), batch.targets.weights.tolist(), strict=True)
    return [(int(name), [weight for _, weight in own]) for name, own in groupby(figures, key=itemgetter(0))]


ROWS = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 8)), min_size=1, max_size=24).map(filled)
UPDATES = st.builds(Updates, st.integers(1, 3), st.integers(1, 5), st.integers(1, 120))
RANKS = st.integers(1, 3)
AT_LEAST = st.integers(1, 3)


def scheduled(
    rows: list[TrainingSequence], updates: Updates, ranks: int, at_least: int = 1, key: int = 1
) -> list[list[list[Batch]]]:
    """[rank][step][micro-batch]."""
    return [schedule(rows, updates, Key(key), rank=rank, ranks=ranks, at_least=at_least) for rank in range(ranks)]


@given(ROWS, UPDATES, RANKS, AT_LEAST)
def test_every_row_is_trained_on_once_a_pass(
    rows: list[TrainingSequence], updates: Updates, ranks: int, at_least: int
) -> None:
    """Over the steps, micro-batches and ranks of a pass."""
    plan = scheduled(rows, updates, ranks, at_least)
    steps = min(updates.minibatches, len(rows))
    for mine in plan:
        assert len(mine) == updates.epochs * steps
    for epoch in range(updates.epochs):
        span = slice(epoch * steps, (epoch + 1) * steps)
        seen = Counter(name for mine in plan for step in mine[span] for batch in step for name in names(batch))
        assert seen == Counter(range(len(rows)))


@given(ROWS, UPDATES, RANKS, AT_LEAST)
def test_the_weights_of_a_step_sum_to_one(
    rows: list[TrainingSequence], updates: Updates, ranks: int, at_least: int
) -> None:
    """Across its micro-batches and ranks, for the policy's terms and the critic's; proportions are kept."""
    for step in zip(*scheduled(rows, updates, ranks, at_least), strict=True):
        targets = [batch.targets for batch in chain.from_iterable(step)]
        weights = torch.cat([part.weights for part in targets])
        assert weights.sum().item() == pytest.approx(1, abs=1e-5)
        assert sum(part.value_weights.sum().item() for part in targets) == pytest.approx(1, abs=1e-5)
        own = torch.cat([part.logprobs for part in targets]) % 3 + 0.5  # what `filled` gave
        assert_proportional(weights, own)


@given(ROWS, UPDATES)
def test_any_number_of_ranks_takes_the_same_steps(rows: list[TrainingSequence], updates: Updates) -> None:
    """The rows of each optimizer step and their weights are the same for 1, 2 and 3 ranks, however they are dealt."""
    steps = [
        [contents(chain.from_iterable(step)) for step in zip(*scheduled(rows, updates, ranks), strict=True)]
        for ranks in (1, 2, 3)
    ]
    assert steps[0] == steps[1] == steps[2]


@given(ROWS, UPDATES, RANKS, AT_LEAST)
def test_all_ranks_have_equally_many_micro_batches_in_every_step(
    rows: list[TrainingSequence], updates: Updates, ranks: int, at_least: int
) -> None:
    """So that nobody waits for a gradient that never comes; the last of a step, and no other, closes it."""
    plan = scheduled(rows, updates, ranks, at_least)
    counts = {len(step) for mine in plan for step in mine}
    assert len(counts) == 1
    assert counts.pop() >= at_least
    for step in chain.from_iterable(plan):
        assert [batch.is_last_micro_batch for batch in step] == [False] * (len(step) - 1) + [True]
        assert all(len(batch.packed) for batch in step)


@given(ROWS, UPDATES, RANKS, AT_LEAST)
def test_the_token_budget_is_kept(rows: list[TrainingSequence], updates: Updates, ranks: int, at_least: int) -> None:
    """Only a row that is longer by itself goes through, alone. What fits at once is not cut."""
    batches = flat(scheduled(rows, updates, ranks, at_least))
    assert all(len(batch.packed) <= updates.micro_batch_tokens or len(weights_of(batch)) == 1 for batch in batches)
    roomy = Updates(updates.epochs, updates.minibatches, sum(map(len, rows)))
    assert {len(step) for mine in scheduled(rows, roomy, ranks, at_least) for step in mine} == {at_least}


@given(ROWS, UPDATES, RANKS)
def test_a_weightless_row_fills_up_where_there_are_too_few(
    rows: list[TrainingSequence], updates: Updates, ranks: int
) -> None:
    """It weighs nothing for either term and is a row of the rollout, so that it runs like any other."""
    for step in chain.from_iterable(scheduled(rows, updates, ranks, at_least=3)):
        for batch in step:
            for name in names(batch, dummy=True):
                assert name in range(len(rows))
                assert len(weights_of(batch)) == 1
                assert not batch.targets.value_weights.any()


def test_one_row_for_three_ranks_is_trained_on_by_one() -> None:
    plan = scheduled(filled([(3, 2)]), Updates(1, 4, 100), ranks=3)
    assert sorted(names(batch) for batch in flat(plan)) == [[], [], [0]]
    assert [len(batch.packed) for batch in flat(plan)] == [4] * 3  # the last sampled token is not fed


@given(ROWS, UPDATES)
def test_the_shuffle_is_the_keys(rows: list[TrainingSequence], updates: Updates) -> None:
    one, again = (scheduled(rows, updates, 2) for _ in range(2))
    assert contents(flat(one)) == contents(flat(again))
    assert [[names(b) for b in step] for step in one[0]] == [[names(b) for b in step] for step in again[0]]


def test_passes_and_keys_shuffle_differently() -> None:
    rows = filled([(2, 2)] * 24)
    steps = [[sorted(names(batch)) for batch in step] for step in scheduled(rows, Updates(3, 4, 1000), 1)[0]]
    passes = [steps[:4], steps[4:8], steps[8:]]
    assert passes[0] != passes[1] != passes[2] != passes[0]
    other = scheduled(rows, Updates(1, 4, 1000), 1, key=2)[0]
    assert [[sorted(names(batch)) for batch in step] for step in other] != passes[0]


@given(ROWS, st.integers(1, 120))
def test_a_pass_without_an_update_sees_every_row_once(rows: list[TrainingSequence], micro_batch_tokens: int) -> None:
    seen: list[int] = []
    for indices, batch in batched(rows, micro_batch_tokens):
        assert len(batch.packed) <= micro_batch_tokens or len(indices) == 1
        assert [name for name, _ in weights_of(batch)] == indices
        seen += indices
    assert sorted(seen) == list(range(len(rows)))


# -- sharing -----------------------------------------------------------------------------------------------------------

# of two letters, so that rows begin alike; a mask never covers a row's first
TREES = st.lists(
    st.lists(st.tuples(st.integers(0, 1), st.booleans()), min_size=2, max_size=9), min_size=1, max_size=20
).map(lambda rows: [lettered(row) for row in rows])


def lettered(row: list[tuple[int, bool]]) -> TrainingSequence:
    ids, mask = zip(*row, strict=True)
    return TrainingSequence(torch.tensor(ids), torch.tensor([False, *mask[1:-1], True]))


@given(TREES)
def test_what_is_fed_is_the_trie_of_the_contexts(rows: list[TrainingSequence]) -> None:
    """Each distinct prefix that something was sampled after, or that leads there, once: counted by brute force."""
    packed = collate(rows).packed
    prefixes = {tuple(row.ids[:length].tolist()) for row in rows for length in range(1, len(row))}
    assert len(packed) == len(prefixes)
    assert packed.unshared == sum(len(row) - 1 for row in rows)
    whole: dict[int, tuple[int, ...]] = {}  # packed token -> the prefix that ends with it
    total = 0
    for segment in packed.segments:
        for place in range(total, total + segment.length):
            path = segment.path[: len(segment.path) - (total + segment.length - place) + 1]
            assert path[-1] == place
            whole[place] = tuple(packed.ids[path].tolist())
            assert packed.positions[place] == len(path) - 1
        total += segment.length
    assert set(whole.values()) == prefixes
    read = [whole[place] for place in packed.reads[packed.places].tolist()]
    expected = [context for row in rows for context in contexts(row)]
    assert read == expected
    assert packed.sampled[packed.places].tolist() == [token for row in rows for token in row.ids[row.mask].tolist()]
    target_ids = set(zip(read, packed.sampled[packed.places].tolist(), strict=True))
    assert len(packed.reads) == len(target_ids)  # read once where rows share it


@given(TREES, st.integers(1, 40), st.integers(1, 4))
def test_rows_that_share_stay_together(rows: list[TrainingSequence], micro_batch_tokens: int, ranks: int) -> None:
    """The budget counts what is fed; every part of a deal has rows where there are enough of them."""
    reads = [row.read for row in rows]
    order = in_order(reads)
    assert [reads[i].tolist() for i in order] == sorted(read.tolist() for read in reads)
    ordered = [reads[i] for i in order]
    packs = cut(ordered, micro_batch_tokens)
    sizes = [len(collate([rows[order[i]] for i in pack]).packed) for pack in packs]
    assert [i for pack in packs for i in pack] == list(range(len(rows)))
    for pack, size, following in zip(packs, sizes, [*packs[1:], None], strict=True):
        assert size <= micro_batch_tokens or len(pack) == 1
        if following is not None:  # no pack has room for one more
            more = [rows[order[i]] for i in (*pack, following[0])]
            assert len(collate(more).packed) > micro_batch_tokens
    parts = shard(ordered, ranks)
    assert [i for part in parts for i in part] == list(range(len(rows)))
    assert sum(len(part) > 0 for part in parts) == min(len(rows), ranks)


def test_a_row_without_a_sampled_token_is_fed_whole() -> None:
    packed = collate([TrainingSequence(torch.tensor([3, 4, 5]), torch.zeros(3, dtype=torch.bool))]).packed
    assert packed.ids.tolist() == [3, 4, 5]
    assert len(packed.reads) == len(packed.places) == 0


def flat(plan: list[list[list[Batch]]]) -> list[Batch]:
    return [batch for mine in plan for step in mine for batch in step]


def contents(batches: "chain[Batch] | list[Batch]") -> list[tuple[int, list[float]]]:
    """Each row that weighs, with its weights: what makes an optimizer step, however it is cut."""
    return sorted((name, weights) for batch in batches for name, weights in weights_of(batch) if any(weights))


def assert_proportional(weights: Tensor, own: Tensor) -> None:
    weighing = weights > 0
    ratios = weights[weighing] / own[weighing]
    assert torch.allclose(ratios, ratios[:1].expand_as(ratios), rtol=1e-5)
