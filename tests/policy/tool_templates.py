"""The rules of chat templates that offer tools, condensed: tests/extras/test_tool_templates.py has published ones."""

from collections.abc import Mapping
from functools import cache

from tests.policy.published_templates import published_tokenizer
from tsr_lightning.policy.chat import Chat, Context, Full

_TOOLS = "{%- for tool in tools %}{{- '\n' + tool | tojson }}{%- endfor %}"
_CHATML_TOOL = (
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\n<tool_response>\n' + content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}"
)
HERMES = (
    "{%- if tools %}{{- '<|im_start|>system\n' }}"
    "{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}"
    f"{{{{- '# Tools\n<tools>' }}}}{_TOOLS}"
    """{{- '\n</tools>\n<tool_call>\n{"name": <name>, "arguments": <args>}\n</tool_call><|im_end|>\n' }}"""
    "{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}"
    "{%- endif %}{%- for m in messages %}{%- set content = m.content %}{%- if m.role == 'user' %}"
    "{{- '<|im_start|>user\n' + content + '<|im_end|>\n' }}{%- elif m.role == 'assistant' %}"
    "{{- '<|im_start|>assistant\n' + content }}{%- for call in m.tool_calls or [] %}"
    "{%- if content or not loop.first %}{{- '\n' }}{%- endif %}"
    """{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}"""
    "{{- call.function.arguments | tojson }}{{- '}\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }}"
    f"{{%- elif m.role == 'tool' %}}{_CHATML_TOOL}{{%- endif %}}{{%- endfor %}}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
# Strips contents, keeps reasoning after the last user's message alone, opens it, and writes calls as XML.
XML = (
    "{%- if tools %}{{- '<|im_start|>system\n# Tools\n<tools>' }}"
    f"{_TOOLS}{{{{- '\n</tools>' }}}}{{%- if messages[0].role == 'system' %}}"
    "{{- '\n\n' + messages[0].content | trim }}{%- endif %}{{- '<|im_end|>\n' }}"
    "{%- elif messages[0].role == 'system' %}"
    "{{- '<|im_start|>system\n' + messages[0].content | trim + '<|im_end|>\n' }}{%- endif %}"
    "{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}{%- for m in messages %}"
    "{%- set content = m.content | trim %}{%- if m.role == 'user' %}"
    "{{- '<|im_start|>user\n' + content + '<|im_end|>\n' }}{%- elif m.role == 'assistant' %}"
    "{%- set thought = '' %}{%- if '</think>' in content %}"
    "{%- set thought = content.split('</think>')[0].split('<think>')[-1] | trim %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}{{- '<|im_start|>assistant\n' }}"
    "{%- if loop.index0 > ns.last %}{{- '<think>\n' + thought + '\n</think>\n\n' }}{%- endif %}{{- content }}"
    "{%- for call in m.tool_calls or [] %}{{- '\n\n' if loop.first and content else '\n' if not loop.first }}"
    "{{- '<tool_call>\n<function=' + call.function.name + '>\n' }}"
    "{%- for name, value in call.function.arguments | items %}"
    "{{- '<parameter=' + name + '>\n' + value | string + '\n</parameter>\n' }}{%- endfor %}"
    "{{- '</function>\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }}"
    f"{{%- elif m.role == 'tool' %}}{_CHATML_TOOL}{{%- endif %}}{{%- endfor %}}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}{%- endif %}"
)
# Offers tools in the first user's message, and quotes their answers as JSON.
JSON = (
    "{{- '<|system|>\n' }}{%- if messages[0].role == 'system' %}{{- messages[0].content | trim }}"
    "{%- set messages = messages[1:] %}{%- endif %}{{- '<|im_end|>' }}{%- if tools %}"
    """{{- '<|user|>\nRespond as {"name": function name, "parameters": its arguments}.\n\n' }}"""
    "{%- for tool in tools %}{{- tool | tojson(indent=4) + '\n\n' }}{%- endfor %}"
    "{{- messages[0].content | trim + '<|im_end|>' }}{%- set messages = messages[1:] %}{%- endif %}"
    "{%- for m in messages %}{%- if m.tool_calls %}{%- set call = m.tool_calls[0].function %}"
    """{{- '<|assistant|>\n{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}<|im_end|>' }}"""
    "{%- elif m.role == 'tool' %}{{- '<|observation|>\n' + m.content | tojson + '<|im_end|>' }}"
    "{%- else %}{{- '<|' + m.role + '|>\n' + m.content | trim + '<|im_end|>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\n' }}{%- endif %}"
)
FULL = Full()
SILENT = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONDENSED: Mapping[str, tuple[str, str | None]] = {  # the template and the format that it shows
    "hermes": (HERMES, "hermes"),
    "xml": (XML, "xml"),
    "json": (JSON, "json"),
    "silent": (SILENT, None),
}


@cache
def condensed(name: str, context: Context = FULL) -> Chat:
    tokenizer = published_tokenizer(SILENT)
    tokenizer.chat_template = CONDENSED[name][0]
    return Chat(tokenizer, context)
