"""Chooses answers that the user's model can give: the probe's tasks are put to any vocabulary."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tsr_lightning.errors import ConfigError
from tsr_lightning.policy.chat import Chat
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import PolicySpec
from tsr_lightning.policy.vocabulary import load_tokenizer
from tsr_lightning.trajectory import Message

_SURE = 0.9  # a token likelier than this belongs to the prefix
_ENOUGH = 0.25  # the chance of a right answer at the start, or more
_LEAST = 0.02  # below, no reward would be found
_LONGEST = 8  # tokens of a prefix
_PROMPTS = tuple(f"{'AB'[number % 2]} {number} 0\n1 left" for number in (3, 20, 112, 267, 404, 535, 718, 861))


@dataclass(frozen=True)
class Answers:
    """What the model is asked for.

    Args:
        spec: of the model, which begins its responses with the prefix.
        right: first characters of right answers.
        wrong: of the likeliest other answer.
        chance: that the model gives a right one before training.
    """

    spec: PolicySpec
    right: tuple[str, ...]
    wrong: str
    chance: float

    @property
    def env_kwargs(self) -> dict[str, object]:
        return {"right": list(self.right), "wrong": self.wrong, "prefix": self.spec.response_prefix}


def choose(spec: PolicySpec, temperature: float, seed: int) -> Answers:
    """Chooses a prefix after which the model hesitates, and right answers among those that it may give then.

    Raises:
        ConfigError: it never hesitates.
    """
    tokenizer = load_tokenizer(spec, _PROMPTS)
    policy = Policy(spec, tokenizer, critic=False, seed=seed).eval()
    chat = Chat.of(spec, tokenizer)
    chances = _first_tokens(policy, chat, temperature)
    for _ in range(_LONGEST):
        likeliest = int(chances.argmax())
        if chances[likeliest] <= _SURE or likeliest in chat.end_ids:
            break
        begun = spec.response_prefix + tokenizer.backend_tokenizer.decode([likeliest], skip_special_tokens=False)
        spec = replace(spec, response_prefix=begun)
        chat = Chat.of(spec, tokenizer)
        chances = _first_tokens(policy, chat, temperature)
    by_character: dict[str, float] = {}
    for character, own in zip(first_characters(spec, chat, len(chances)), chances.tolist(), strict=True):
        if character:
            by_character[character] = by_character.get(character, 0.0) + own
    ranked = sorted((own, character) for character, own in by_character.items())
    right, chance = [], 0.0
    for each, character in ranked[:-1]:
        right.append(character)
        chance += each
        if chance >= _ENOUGH:
            break
    if chance < _LEAST:
        raise ConfigError(
            f"model.policy.model is {spec.model!r}: it answers the probe's tasks with one character in "
            f"{1 - chance:.1%} of its samples, so that no other one could be rewarded; give a "
            "higher data.sampling.temperature, or a model that was trained less"
        )
    return Answers(spec, tuple(reversed(right)), ranked[-1][1], chance)


def first_characters(spec: PolicySpec, chat: Chat, tokens: int) -> list[str]:
    """The first character of the answer that each token of a vocabulary is; "" where it is none."""
    return [chat.read((token,)).removeprefix(spec.response_prefix).strip()[:1] for token in range(tokens)]


@torch.no_grad()
def _first_tokens(policy: Policy, chat: Chat, temperature: float) -> Tensor:
    """The mean chances of the first token of a response: [V]."""
    prompts = [chat.prompt((), [Message("user", text)]) for text in _PROMPTS]
    logits = [policy.causal_lm(torch.tensor([prompt])).logits[0, -1].float() for prompt in prompts]
    return (torch.stack(logits) / temperature).softmax(-1).mean(0)
