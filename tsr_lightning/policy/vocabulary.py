"""The tokenizer: the model's own, or a small one made from the environment's text.

The small one is a byte-level BPE without merges. Its vocabulary is the 256 bytes and the most frequent pieces of the
text, which `ignore_merges` looks up whole. So it is lossless, spends no entry on fragments for merging, and needs no
training.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import cached_file

from tsr_lightning.errors import ConfigError, named
from tsr_lightning.policy.model_files import config_file, location
from tsr_lightning.policy.spec import PolicySpec, Scratch

_TURN_START, _TURN_END, _PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
_SYMBOLS = ("#", "_", "O", "√", "X", "P", "S", "G")  # of the grids; always in the vocabulary
_TAGS = ("<answer>", "</answer>", "<think>", "</think>", "||", " ||")
# a piece is a tag, a separator or a word with the space before it, or else a single character
_PIECE = r"</?[a-z_]+>| ?\|\|| ?\p{Lu}?\p{Ll}+|[\s\S]"
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_SPACE = "Ġ"  # a space in the alphabet of byte-level tokenizers
_WORD = re.compile(f"{_SPACE}?[A-Z]?[a-z]+")
_ROLES = ("system", "user", "assistant")


def make_tokenizer(texts: Iterable[str], size: int = 1024) -> PreTrainedTokenizerFast:
    """A tokenizer of at most `size` entries for text like `texts`, whose order does not matter."""
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECE), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(piece for piece, _ in split.pre_tokenize_str(text))
    required = [piece for text in (*_SYMBOLS, *_TAGS, *_ROLES) for piece, _ in split.pre_tokenize_str(text)]
    byte_level = sorted(pre_tokenizers.ByteLevel.alphabet())
    by_frequency = sorted(counts, key=lambda piece: (-counts[piece], piece))
    # the remaining entries go to the same words with or without the space before them
    words = [piece for piece in by_frequency if _WORD.fullmatch(piece)]
    variants = [word.removeprefix(_SPACE) if word.startswith(_SPACE) else _SPACE + word for word in words]
    specials = [_TURN_START, _TURN_END, _PAD]
    pieces = list(dict.fromkeys([*byte_level, *required, *by_frequency, *variants]))[: size - len(specials)]

    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    backend.pre_tokenizer = split
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(specials)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=_TURN_END,
        pad_token=_PAD,
        additional_special_tokens=[_TURN_START],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHATML
    return tokenizer


def load_tokenizer(spec: PolicySpec, texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """The tokenizer of the spec's model. A new model gets one made from `texts`, samples of its environment's text."""
    if isinstance(spec.model, Scratch):
        return make_tokenizer(texts)
    config_file(spec.model)  # a model that is nowhere is named so
    source = location(spec.model)
    try:
        # tokenizer.json unchanged: for a Qwen2 model AutoTokenizer would apply the rules of Qwen's own vocabulary
        file = cached_file(source, "tokenizer.json", _raise_exceptions_for_missing_entries=False)
        tokenizer = (PreTrainedTokenizerFast if file else AutoTokenizer).from_pretrained(source)
    except Exception as error:  # tokenizers raises nothing narrower
        reason = f"{named(error)}, so write or copy the tokenizer's files anew"
        raise ConfigError(f"model.policy.model is {spec.model!r}: its tokenizer cannot be read: {reason}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ConfigError(
            f"model.policy.model is {spec.model!r}: its tokenizer is not a fast one, so save it as tokenizer.json"
        )
    return tokenizer


def vocabulary_digest(tokenizer: PreTrainedTokenizerFast) -> str:
    """A hash of the entries with their ids, by which checkpoints and policies know their vocabulary again."""
    entries = tuple(sorted(tokenizer.get_vocab().items()))
    return hashlib.blake2b(repr(entries).encode(), digest_size=12).hexdigest()
