"""The README.md of an exported policy: what it is, how it was trained, what is known of it and how it is used."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tsr_lightning.policy.spec import NF4

Form = Literal["adapter", "merged", "whole"]

FORMS: dict[Form, str] = {
    "adapter": "a LoRA adapter",
    "merged": "a whole model, its adapter merged",
    "whole": "a whole model",
}
_CLASSES: dict[Form, tuple[str, str, str]] = {  # library, module and class that load it
    "adapter": ("peft", "peft", "AutoPeftModelForCausalLM"),
    "merged": ("transformers", "transformers", "AutoModelForCausalLM"),
    "whole": ("transformers", "transformers", "AutoModelForCausalLM"),
}
_TEMPLATE = """---
library_name: {library}
pipeline_tag: text-generation
tags:
- reinforcement-learning
- tsr-lightning
---

# {name}

{says}

| | |
|---|---|
{rows}

## Figures

{figures}

## Use

```python
from transformers import AutoTokenizer
from {module} import {loader}
{before}
tokenizer = AutoTokenizer.from_pretrained("{name}")
model = {loader}.from_pretrained("{name}"{load_arguments})
chat = [{{"role": "user", "content": "..."}}]  # the task's instructions and observation, as in training
{inputs}
answer = model.generate(**inputs, do_sample=True, {sampling})
print(tokenizer.decode(answer[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
```
{further}"""
_QUANTISED = """from transformers import BitsAndBytesConfig

quantised = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant={double_quant},
    bnb_4bit_compute_dtype=torch.{compute_dtype},
)
"""
_INPUTS = 'inputs = tokenizer.apply_chat_template(chat, {arguments}, return_dict=True, return_tensors="pt")'
_PREFIXED = """prompt = tokenizer.apply_chat_template(chat, {arguments}, tokenize=False) + {prefix}
inputs = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")"""
_FURTHER = """
Training goes on from it with `tsr fit --config ... --model.policy.model PATH`, the path of this folder.
"""


@dataclass(frozen=True)
class Figure:
    """A success rate on held-out instances.

    Args:
        protocol: of the evaluation.
        epochs: that the policy had been trained for.
        instances: held out.
        success: the rate.
        interval: of 95%.
    """

    protocol: str
    epochs: int
    instances: int
    success: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Card:
    """Contents of a model card.

    Args:
        name: of the folder.
        base: the model that training began with.
        form: of the weights.
        quantisation: of the base weights in training, with which an adapter's base is loaded.
        dtype: of its weights that are not quantised.
        tasks: the environments with their arguments.
        training: what was chosen for it, by name.
        epochs: that the policy was trained for.
        updates: of these.
        figures: known of it.
        temperature: that it was sampled at.
        max_response_tokens: of a response.
        version: of this project.
        end_ids: tokens that end a response.
        template_arguments: of the chat template, by name.
        response_prefix: that ends every prompt.
    """

    name: str
    base: str
    form: Form
    quantisation: NF4 | None
    dtype: str
    tasks: tuple[str, ...]
    training: tuple[tuple[str, str], ...]
    epochs: int
    updates: int
    figures: tuple[Figure, ...]
    temperature: float
    max_response_tokens: int
    version: str
    end_ids: tuple[int, ...] = ()
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    response_prefix: str = ""

    def text(self) -> str:
        """The whole file."""
        library, module, loader = _CLASSES[self.form]
        rows = [
            ("weights", FORMS[self.form]),
            ("base model", f"`{self.base}`"),
            *([("quantisation", f"`{self.quantisation}`")] if self.quantisation else []),
            *(("task", f"`{task}`") for task in self.tasks),
            ("trained for", f"{self.epochs} epochs, {self.updates} updates"),
            *((key, f"`{value}`") for key, value in self.training),
        ]
        games = " and ".join(f"`{task.partition('(')[0]}`" for task in self.tasks)
        return _TEMPLATE.format(
            library=library,
            module=module,
            loader=loader,
            name=self.name,
            says=f"A policy that plays {games}, trained with TSR Lightning {self.version}.",
            rows=_table(rows),
            figures=self._figures(),
            before="import torch\n" * (self.form == "adapter") + self._quantised(),
            load_arguments=self._load_arguments(),
            inputs=self._inputs(),
            sampling=self._sampling(),
            further="" if self.form == "adapter" else _FURTHER,
        )

    def _load_arguments(self) -> str:
        """For an adapter, whose base has a precision of its own."""
        if self.form != "adapter":
            return ""
        return f", dtype=torch.{self.dtype}" + (", quantization_config=quantised" if self.quantisation else "")

    def _quantised(self) -> str:
        if self.quantisation is None or self.form != "adapter":  # merged weights are dequantised
            return ""
        return _QUANTISED.format(**asdict(self.quantisation))

    def _sampling(self) -> str:
        given = f"temperature={self.temperature:g}, top_k=0, max_new_tokens={self.max_response_tokens}"
        if self.form != "adapter":  # whose base has a generation configuration of its own
            return given
        return f"{given}, top_p=1.0, repetition_penalty=1.0, eos_token_id={list(self.end_ids)}"

    def _inputs(self) -> str:
        given = {"add_generation_prompt": True, **self.template_arguments}
        arguments = ", ".join(f"{name}={value!r}" for name, value in given.items())
        form = _PREFIXED if self.response_prefix else _INPUTS
        return form.format(arguments=arguments, prefix=repr(self.response_prefix))

    def _figures(self) -> str:
        if not self.figures:
            return "None: no evaluation is in the checkpoint."
        rows = [
            (
                one.protocol,
                f"{one.epochs} epochs",
                f"{one.success:.3f} [{one.interval[0]:.3f}, {one.interval[1]:.3f}]",
                str(one.instances),
            )
            for one in self.figures
        ]
        head = "| protocol | after | success rate, 95% interval | held-out instances |\n"
        return f"{head}|---|---|---|---|\n{_table(rows)}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)
