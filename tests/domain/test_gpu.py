import pytest

from service.domain.errors import UnknownNameError
from service.domain.gpu import B200, ENGINE_VERSION, GPUS, gpu_by_name


@pytest.mark.parametrize(
    ("name", "config_id"),
    [
        # At least 160 GiB: 1024 sequences, 16384 tokens.
        ("B200", "s1024-b16384-g0.92-p1"),
        # At least 70 GiB and no A100: 1024 sequences, 8192 tokens.
        ("H200", "s1024-b8192-g0.92-p1"),
        ("H100", "s1024-b8192-g0.92-p1"),
        # Every other GPU: 256 sequences, 2048 tokens. An 80 GB A100 is one of them.
        ("A100", "s256-b2048-g0.92-p1"),
        ("A100-40GB", "s256-b2048-g0.92-p1"),
        ("L40S", "s256-b2048-g0.92-p1"),
        ("A10", "s256-b2048-g0.92-p1"),
        ("L4", "s256-b2048-g0.92-p1"),
    ],
)
def test_what_vllm_0_28_starts_with_when_nothing_is_set(name: str, config_id: str) -> None:
    assert ENGINE_VERSION == "0.28.0"
    assert gpu_by_name(name).engine_default.config_id == config_id


def test_the_b200_has_one_usable_memory_everywhere() -> None:
    assert B200.memory_gib == 178.0
    assert gpu_by_name("B200") is B200


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("NVIDIA-B200", "NVIDIA-B200"),
        ("nvidia b200", "NVIDIA-B200"),
        (" b200 ", "NVIDIA-B200"),
        ("nvidia-h100", "NVIDIA-H100-80GB-HBM3"),
        # What nvidia-smi prints.
        ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB"),
        ("a100-80gb", "NVIDIA-A100-SXM4-80GB"),
    ],
)
def test_aliases_ignore_case_and_outer_spaces(spelling: str, name: str) -> None:
    assert gpu_by_name(spelling).name == name


def test_no_alias_names_two_gpus() -> None:
    spellings = [alias.casefold() for gpu in GPUS for alias in {gpu.name, *gpu.aliases}]
    assert len(spellings) == len(set(spellings))


def test_every_gpu_is_found_by_its_name_and_each_alias() -> None:
    for gpu in GPUS:
        assert all(gpu_by_name(spelling) is gpu for spelling in (gpu.name, *gpu.aliases))


@pytest.mark.parametrize("name", ["TPU-v5e", "", "B20", "B2000", "x" * 10_000])
def test_an_unknown_gpu_lists_the_known_ones(name: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        gpu_by_name(name)
    assert caught.value.path == "gpu"
    assert caught.value.known == tuple(gpu.name for gpu in GPUS)
    assert all(gpu.name in str(caught.value) for gpu in GPUS)
    assert len(str(caught.value)) < 500
