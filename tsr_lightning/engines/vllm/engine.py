"""vLLM behind the engine's contract: token ids and seeds in, ids and log-probabilities out.

vLLM runs in a process of its own. In this one it would bind its threads and memory, seed PyTorch, and replace the
constructors of transformers' models. It gets the weights as files: the whole model once, and before every rollout what
has changed, which is the adapter where there is one.

Departures from the contract: a response is drawn by vLLM's generator of its seed and not by `Key(seed).uniform`, so it
is another one than the default engine's, of the same distribution; and in another batch it can round otherwise.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Prompt, Response
from tsr_lightning.engines.local_model import Model, weights_version
from tsr_lightning.engines.transformers.engine import TransformersEngine
from tsr_lightning.errors import require

# Read where vLLM is imported; who has set them keeps what was set.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

from vllm import LLM, RequestOutput, SamplingParams, TokensPrompt
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform

_RANKS = (8, 16, 32, 64, 128, 256, 512)  # that vLLM has room for
_CRITIC_CACHE_MIB = 1024
# What wakes apart. Level 1 keeps the weights in the host's memory. Level 2 would drop them, with the adapter's and
# all else that only a new start writes, and not every rollout brings new ones.
_MEMORY, _SLEEP_LEVEL = ("weights", "kv_cache"), 1


class VLLMEngine:
    """Samples responses with vLLM. Arguments as of `EngineSpec.build` and `spec.VLLM`."""

    def __init__(
        self,
        model: Model,
        end_ids: frozenset[int],
        context_tokens: int,
        *,
        kv_cache_mib: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        block_size: int,
        enforce_eager: bool,
        sleep: bool,
    ) -> None:
        self.model = model
        self.end_ids = end_ids
        self.context_tokens = context_tokens
        self._costs = Costs()
        # vLLM has no critic: values come from the policy itself
        self._critic = TransformersEngine(model, end_ids, context_tokens, _CRITIC_CACHE_MIB, max_num_seqs)
        self._files = tempfile.TemporaryDirectory(prefix="tsr-vllm-")
        self._folder = Path(self._files.name)
        self._adapter: LoRARequest | None = None
        self._version = weights_version(model)
        self._sleeps = sleep and current_platform.is_sleep_mode_available()
        self._asleep: set[str] = set()  # of _MEMORY
        rank = model.adapter_rank
        require(rank is None or rank <= _RANKS[-1], "model.policy.adapter.rank", rank, f"VLLM takes up to {_RANKS[-1]}")
        model.save_base(self._folder / "model")
        self._llm = LLM(
            model=str(self._folder / "model"),
            skip_tokenizer_init=True,
            generation_config="vllm",  # nothing of the model's own, such as a penalty or top-p
            dtype=str(model.causal_lm.dtype).removeprefix("torch."),
            max_model_len=context_tokens,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max(max_num_batched_tokens, context_tokens),
            block_size=block_size,
            kv_cache_memory_bytes=kv_cache_mib * 2**20,
            gpu_memory_utilization=0.01,  # decides nothing beside the line above, and refuses a GPU that is in use
            enable_sleep_mode=self._sleeps,
            enable_prefix_caching=True,
            # A prompt in parts would draw a token after each, and take it back from the generator, which CPUs cannot.
            enable_chunked_prefill=False,
            enforce_eager=enforce_eager,
            use_tqdm_on_load=False,
            logprobs_mode="processed_logprobs",  # at the sampling temperature
            enable_lora=rank is not None,
            max_lora_rank=next((each for each in _RANKS if each >= (rank or 0)), _RANKS[-1]),
        )
        if rank is not None:
            self._load_adapter(1)

    def take_costs(self) -> Costs:
        costs, self._costs = self._costs + self._critic.take_costs(), Costs()
        return costs

    def sync(self) -> None:
        """Takes over the weights where they have changed: the adapter alone, where there is one, under a new name and
        number, so that nothing can be mistaken for the one before."""
        version = weights_version(self.model)
        if version == self._version:
            return
        self._wake("weights")
        if self._adapter is not None:
            self._load_adapter(self._adapter.lora_int_id + 1)
        else:
            self._reload_weights()
        self._version = version

    def release(self) -> None:
        """Sleeps on a GPU, until it is used again. Gives nothing back on a CPU, where vLLM keeps its memory."""
        self._critic.release()
        if self._sleeps:
            self._llm.sleep(_SLEEP_LEVEL)
            self._asleep.update(_MEMORY)

    def close(self) -> None:
        self._critic.close()
        self._llm.llm_engine.engine_core.shutdown()
        self._files.cleanup()

    def generate(self, prompts: Sequence[Prompt], temperature: float) -> list[list[Response]]:
        """A request for each response, with its own seed; siblings share their prompt's blocks in the prefix cache, as
        those of one request with `n` do, whose seeds vLLM would count up from one."""
        self._wake(*_MEMORY)
        inputs, settings = [], []
        for prompt in prompts:
            for seed in prompt.seeds:
                inputs.append(TokensPrompt(prompt_token_ids=list(prompt.ids)))
                settings.append(
                    SamplingParams(
                        temperature=temperature,
                        seed=seed,
                        max_tokens=prompt.max_new_tokens,
                        stop_token_ids=sorted(self.end_ids),
                        ignore_eos=True,  # end_ids says what ends a response
                        logprobs=0,  # of the sampled token alone
                        detokenize=False,
                    )
                )
        served = self._llm.generate(inputs, settings, use_tqdm=False, lora_request=self._adapter)
        responses = iter([self._response(one) for one in served])
        asked = sum(len(ids["prompt_token_ids"]) for ids in inputs)
        prefilled = asked - sum(one.num_cached_tokens or 0 for one in served)
        generated = sum(len(one.outputs[0].token_ids) for one in served)
        self._costs += Costs(
            tokens_computed=prefilled + generated - len(served),  # the last token of a response is not computed
            tokens_prefilled=prefilled,
            prompt_tokens=asked,
            tokens_generated=generated,
        )
        return [[next(responses) for _ in prompt.seeds] for prompt in prompts]

    def values(self, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        return self._critic.values(prompts)

    def _response(self, served: RequestOutput) -> Response:
        [output] = served.outputs
        ids = tuple(output.token_ids)
        assert output.logprobs is not None
        logprobs = tuple(each[token].logprob for token, each in zip(ids, output.logprobs, strict=True))
        return Response(ids, logprobs, finished=ids[-1] in self.end_ids)

    def _wake(self, *memory: str) -> None:
        """Weights before anything is loaded, keys and values not before they are used: loading takes memory too."""
        asleep = [each for each in memory if each in self._asleep]
        if asleep:
            torch.cuda.empty_cache()  # vLLM's process cannot take what PyTorch keeps for later in this one
            self._llm.wake_up(asleep)
            self._asleep.difference_update(asleep)

    def _load_adapter(self, number: int) -> None:
        folder = self._folder / f"adapter-{number}"
        self.model.save_adapter(folder)
        before, self._adapter = self._adapter, LoRARequest(f"policy-{number}", number, str(folder))
        if before is not None:
            self._llm.llm_engine.remove_lora(before.lora_int_id)
            shutil.rmtree(before.lora_path)
        self._llm.llm_engine.add_lora(self._adapter)
        self._empty_prefix_cache()

    def _reload_weights(self) -> None:
        folder = self._folder / "model"
        self.model.save_base(folder)
        self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        self._empty_prefix_cache()

    def _empty_prefix_cache(self) -> None:
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not empty its prefix cache, which holds keys and values of other weights")
