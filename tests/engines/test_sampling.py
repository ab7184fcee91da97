"""Draws from logits against the inverse of a cumulative sum over the whole vocabulary, in float64."""

import numpy as np
import pytest
import torch

from tests.native_kernels import needs_compiler
from tsr_lightning.engines.transformers.sampling import product_sums, sample
from tsr_lightning.modeling.kernels import Operators
from tsr_lightning.modeling.native.native_operators import NativeOperators
from tsr_lightning.modeling.torch_operators import TorchOperators

SIZES = (1, 2, 3, 15, 16, 17, 255, 1000, 5001)
BORDER = 1e-6  # of a draw to the end of a token's interval; nearer, float32 decides

TORCH = TorchOperators()
by_both = pytest.mark.parametrize(
    "operators",
    [
        TORCH,
        pytest.param(NativeOperators(), marks=needs_compiler),
    ],
    ids=["torch", "native"],
)


def cumulative(logits: torch.Tensor, removed: dict[int, float]) -> np.ndarray:
    whole = logits.double().softmax(dim=-1).numpy()
    left = whole.copy()
    for token, part in removed.items():
        left[token] *= 1.0 - part
    chances = left if left.sum() > 1e-6 else whole  # nothing is removed where too little would be left
    return np.asarray(np.cumsum(chances) / chances.sum())


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("removes", [False, True])
@by_both
def test_tokens_are_those_of_the_whole_cumulative_sum(
    size: int, temperature: float, removes: bool, operators: Operators
) -> None:
    generator = np.random.default_rng(size)
    logits = torch.from_numpy(generator.normal(scale=4.0, size=(5, size))).float()
    rows, draws = generator.integers(0, 5, 400), generator.random(400)
    removed: list[dict[int, float]] = [{} for _ in rows]
    if removes and size > 2:  # a third of the samples, of some two tokens each, the likeliest among them
        for i in range(0, 400, 3):
            removed[i] = {int(logits[rows[i]].argmax()): 0.9, int(generator.integers(0, size)): 1.0}
    tokens, logprobs = sample(logits, rows, draws, temperature, operators, removed)
    compared = 0
    for row, draw, parts, token, logprob in zip(rows, draws, removed, tokens, logprobs, strict=True):
        expected = (logits[row].double() / temperature).log_softmax(dim=-1)
        assert logprob == pytest.approx(float(expected[token]), abs=2e-6)
        ends = cumulative(logits[row] / temperature, parts)
        if np.abs(ends - draw).min() > BORDER or size == 1:
            assert token == np.searchsorted(ends, draw, side="right")
            compared += 1
    assert compared > 350


@by_both
def test_what_cannot_be_is_never_drawn(operators: Operators) -> None:
    """Whole blocks of tokens without probability, and draws at the ends of all intervals."""
    logits = torch.full((1, 300), -torch.inf)
    logits[0, [17, 130, 299]] = torch.tensor([0.0, 1.0, -40.0])
    ends = cumulative(logits[0], {})
    near = np.nextafter(np.concatenate([ends, ends]), np.repeat([0.0, 1.0], len(ends)))
    draws = np.clip(np.concatenate([[0.0], ends, near]), 0.0, 1 - 2.0**-53)
    none = np.zeros(len(draws), dtype=np.int64)
    tokens, _ = sample(logits, none, draws, 1.0, operators)
    assert set(tokens) <= {17, 130, 299}
    removed = [{17: 1.0, 299: 0.5}] * len(draws)
    assert set(sample(logits, none, draws, 1.0, operators, removed)[0]) <= {130, 299}


def test_a_sample_does_not_depend_on_what_else_is_sampled() -> None:
    generator = np.random.default_rng(0)
    logits = torch.from_numpy(generator.normal(size=(40, 777))).float()
    rows, draws = generator.integers(0, 40, 90), generator.random(90)
    together = sample(logits, rows, draws, 1.0, TORCH)
    alone = [
        sample(logits[[row]], np.array([0]), np.array([draw]), 1.0, TORCH)
        for row, draw in zip(rows, draws, strict=True)
    ]
    assert together == ([token for [token], _ in alone], [logprob for _, [logprob] in alone])


@pytest.mark.parametrize("size", [3, 300])
@by_both
def test_logits_that_are_not_finite_give_such_logprobs(size: int, operators: Operators) -> None:
    """The rollout stops on those and says what to do."""
    rows, draws = np.array([0, 1, 1]), np.array([0.0, 0.5, 0.9])
    tokens, logprobs = sample(torch.full((2, size), torch.nan), rows, draws, 1.0, operators)
    assert all(0 <= token < size for token in tokens)
    assert np.isnan(logprobs).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("width", "size"), [(2, 1), (5, 2), (100, 8), (777, 32), (4099, 64)])
@by_both
def test_sums_over_blocks(width: int, size: int, dtype: torch.dtype, operators: Operators) -> None:
    logits = 5 * torch.randn(3, width, generator=torch.Generator().manual_seed(width))
    logits[0, 0], logits[1, -1] = -torch.inf, 40.0
    logits = logits.to(dtype)
    highest, sums = operators.block_sums(logits, size, 0.7)
    assert torch.equal(highest, logits.float().amax(dim=-1))
    weights = ((logits.double() - highest.double()[:, None]) / 0.7).exp()
    parts = weights.split(size, dim=-1)
    expected = torch.stack([part.sum(dim=-1) for part in parts], dim=-1)
    torch.testing.assert_close(sums.double(), expected, atol=1e-12, rtol=3e-6)


@pytest.mark.parametrize("size", [1, 255, 256, 257, 800])
def test_running_sums_by_products(size: int) -> None:
    """The running sums that sampling takes on a GPU."""
    x = torch.rand(3, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    torch.testing.assert_close(product_sums(x), x.cumsum(dim=-1), atol=1e-12, rtol=1e-12)
