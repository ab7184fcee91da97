"""The tokenizer: a model's own, or a small one made from the environments' text.

The small one is a byte-level BPE without a merge: its vocabulary is the 256 bytes and the most frequent pieces of the
text whole, which `ignore_merges` finds directly. So any text goes through without loss, no entry is spent on the
fragments that merging would need, and nothing has to be trained.
"""

import re
from collections import Counter
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import cached_file

from tsr_lightning.errors import ConfigError
from tsr_lightning.policy.spec import PolicySpec, Scratch, location

TURN_START, TURN_END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
SYMBOLS = ("#", "_", "O", "√", "X", "P", "S", "G")  # of the grids; always one token each, frequent or not
TAGS = ("<answer>", "</answer>", "<think>", "</think>", "||", " ||")
# a tag, a separator or a word with the space before it stays whole; of all else, every character by itself
PIECE = r"</?[a-z_]+>| ?\|\|| ?\p{Lu}?\p{Ll}+|[\s\S]"
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_SPACE = "Ġ"  # a blank, in the alphabet that byte-level tokenizers write bytes in
_WORD = re.compile(f"{_SPACE}?[A-Z]?[a-z]+")
_ROLES = ("system", "user", "assistant")


def make_tokenizer(texts: Iterable[str], size: int = 1024) -> PreTrainedTokenizerFast:
    """A tokenizer for text like this, of at most `size` entries; equal texts give an equal one."""
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECE), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(piece for piece, _ in split.pre_tokenize_str(text))
    always = [piece for text in (*SYMBOLS, *TAGS, *_ROLES) for piece, _ in split.pre_tokenize_str(text)]
    byte_level = sorted(pre_tokenizers.ByteLevel.alphabet())
    by_frequency = sorted(counts, key=lambda piece: (-counts[piece], piece))
    # a word seen only within a line may open one, and the other way round: such twins take the room that is left
    words = [piece for piece in by_frequency if _WORD.fullmatch(piece)]
    twins = [word.removeprefix(_SPACE) if word.startswith(_SPACE) else _SPACE + word for word in words]
    specials = [TURN_START, TURN_END, PAD]
    pieces = list(dict.fromkeys([*byte_level, *always, *by_frequency, *twins]))[: size - len(specials)]

    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    backend.pre_tokenizer = split
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(specials)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=TURN_END,
        pad_token=PAD,
        additional_special_tokens=[TURN_START],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHATML
    return tokenizer


def load_tokenizer(spec: PolicySpec, texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """The tokenizer of the spec's model; that of a new model is made from `texts`, what its environment may say."""
    if isinstance(spec.model, Scratch):
        return make_tokenizer(texts)
    where = location(spec.model)
    # tokenizer.json as it is: AutoTokenizer rebuilds a Qwen2 model's by the rules of Qwen's own vocabulary
    written = cached_file(where, "tokenizer.json", _raise_exceptions_for_missing_entries=False)
    tokenizer = (PreTrainedTokenizerFast if written else AutoTokenizer).from_pretrained(where)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ConfigError(
            f"model.policy.model is {spec.model}, whose tokenizer is not one of the tokenizers library: save it with a "
            "tokenizer.json first"
        )
    return tokenizer
