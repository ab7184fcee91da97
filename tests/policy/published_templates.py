"""The rules of published chat templates, condensed, and a tokenizer of their models' kind.

Calls of tools are left out, since messages here have none. Rules on reasoning, white space, tools' messages and the
generation prompt are as published.
"""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

# Reasoning stays after the last user's message, and the last message always shows some.
_QWEN3 = (
    "{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}{%- for m in messages %}"
    "{%- if m.role in ('user', 'system') %}"
    "{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- elif m.role == 'assistant' %}"
    "{%- set content = m.content %}{%- set thought = '' %}{%- if '</think>' in content %}"
    "{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{%- if loop.index0 > ns.last and (loop.last or thought) %}"
    "{{- '<|im_start|>assistant\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}"
    "{%- else %}{{- '<|im_start|>assistant\n' + content }}{%- endif %}{{- '<|im_end|>\n' }}"
    "{%- elif m.role == 'tool' %}"
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}"
    "{%- endif %}{%- endfor %}"
)
QWEN3 = (
    f"{_QWEN3}{{%- if add_generation_prompt %}}{{{{- '<|im_start|>assistant\n' }}}}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{%- endif %}"
)
QWEN3_THINKING = f"{_QWEN3}{{%- if add_generation_prompt %}}{{{{- '<|im_start|>assistant\n<think>\n' }}}}{{%- endif %}}"
# Turns without reasoning, and those before the last user's message, show an empty one. No token ends a response.
GLM45 = (
    "[gMASK]<sop>{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{{- '<|user|>\n' + m.content }}"
    "{{- '/nothink' if enable_thinking is defined and not enable_thinking and not m.content.endswith('/nothink') }}"
    "{%- elif m.role == 'assistant' %}{{- '<|assistant|>' }}{%- set content = m.content %}{%- set thought = '' %}"
    "{%- if '</think>' in content %}"
    "{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{%- if loop.index0 > ns.last and thought %}{{- '\n<think>' + thought.strip() + '</think>' }}"
    "{%- else %}{{- '\n<think></think>' }}{%- endif %}{%- if content.strip() %}"
    "{{- '\n' + content.strip() }}{%- endif %}{%- elif m.role == 'tool' %}"
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|observation|>' }}{%- endif %}"
    "{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{%- elif m.role == 'system' %}{{- '<|system|>\n' + m.content }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}"
    "{{- '\n<think></think>' if enable_thinking is defined and not enable_thinking }}{%- endif %}"
)
# Reasoning is dropped, but for a response to a tool, before which the generation prompt opens none.
DEEPSEEK_R1 = (
    "{%- set ns = namespace(tool=false, first=true, system='') %}{%- for m in messages %}{%- if m.role == 'system' %}"
    "{%- set ns.system = m.content %}{%- endif %}{%- endfor %}{{- bos_token + ns.system }}{%- for m in messages %}"
    "{%- if m.role == 'user' %}{%- set ns.tool = false %}{{- '<｜User｜>' + m.content }}{%- endif %}"
    "{%- if m.role == 'assistant' %}{%- if ns.tool %}"
    "{{- '<｜tool▁outputs▁end｜>' + m.content + eos_token }}{%- set ns.tool = false %}{%- else %}"
    "{%- set content = m.content %}{%- if '</think>' in content %}"
    "{%- set content = content.split('</think>')[-1] %}{%- endif %}{{- '<｜Assistant｜>' + content + eos_token }}"
    "{%- endif %}{%- endif %}{%- if m.role == 'tool' %}{%- set ns.tool = true %}{%- if ns.first %}"
    "{{- '<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}"
    "{%- set ns.first = false %}{%- else %}"
    "{{- '\n<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}{%- endif %}{%- endif %}{%- endfor %}"
    "{%- if ns.tool %}{{- '<｜tool▁outputs▁end｜>' }}{%- endif %}"
    "{%- if add_generation_prompt and not ns.tool %}{{- '<｜Assistant｜><think>\n' }}{%- endif %}"
)
# Prints the day, and keeps reasoning; without thinking every response has an empty one before it.
SMOLLM3 = (
    "{%- set thinks = enable_thinking is not defined or enable_thinking %}"
    "{{- '<|im_start|>system\nToday Date: ' + strftime_now('%d %B %Y') + '\nReasoning Mode: ' }}"
    "{{- '/think\n' if thinks else '/no_think\n' }}"
    "{%- if messages[0].role == 'system' %}{{- '\n' + messages[0].content.rstrip() + '\n' }}{%- endif %}"
    "{{- '<|im_end|>\n' }}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{{- '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}{%- elif m.role == 'assistant' %}"
    "{{- '<|im_start|>assistant\n' + ('' if thinks else '<think>\n\n</think>\n') + m.content.lstrip('\n') }}"
    "{{- '<|im_end|>\n' }}"
    "{%- elif m.role == 'tool' %}{{- '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\n' + ('' if thinks else '<think>\n\n</think>\n') }}{%- endif %}"
)
PUBLISHED = {
    "qwen3": QWEN3,
    "qwen3_thinking": QWEN3_THINKING,
    "glm45": GLM45,
    "deepseek_r1": DEEPSEEK_R1,
    "smollm3": SMOLLM3,
}
SPECIAL = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|system|>"),
    *("<|observation|>", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
]
ADDED = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<｜User｜>"),
    *("<｜Assistant｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>"),
    "<｜tool▁output▁end｜>",
]
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def published_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer as Qwen's, with added tokens, some of them not special."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    text = "user assistant system tool\n\nTurn the box think answer Up Down Left <think>\n</think>\n\n<answer></answer>"
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator([text] * 4, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED])
    ends = "<｜end▁of▁sentence｜>" if "eos_token" in template else "<|im_end|>"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<｜begin▁of▁sentence｜>", eos_token=ends, pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = template
    return tokenizer
