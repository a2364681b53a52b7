import pytest

from service.domain.errors import UnknownNameError
from service.domain.gpu import B200, ENGINE_VERSION, GPUS, Gpu, gpu_by_name, leaves_size_open, spelling


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
    ("given", "name"),
    [
        ("NVIDIA-B200", "NVIDIA-B200"),
        ("nvidia b200", "NVIDIA-B200"),
        (" b200 ", "NVIDIA-B200"),
        ("nvidia-h100", "NVIDIA-H100-80GB-HBM3"),
        # What nvidia-smi prints.
        ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB"),
        ("a100-80gb", "NVIDIA-A100-SXM4-80GB"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA-A100-80GB-PCIe"),
        ("NVIDIA A100-PCIE-40GB", "NVIDIA-A100-PCIE-40GB"),
        ("NVIDIA H100 NVL", "NVIDIA-H100-NVL"),
        ("h100-pcie", "NVIDIA-H100-PCIe"),
        ("NVIDIA B300 SXM6 AC", "NVIDIA-B300-SXM6-AC"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"),
        ("rtx_pro_6000", "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"),
        ("NVIDIA RTX 6000 Ada Generation", "NVIDIA-RTX-6000-Ada-Generation"),
        ("Tesla V100-SXM2-32GB", "Tesla-V100-SXM2-32GB"),
        ("Tesla T4", "Tesla-T4"),
        # What people write.
        ("H100 80GB", "NVIDIA-H100-80GB-HBM3"),
        ("H100-80GB", "NVIDIA-H100-80GB-HBM3"),
        ("h100 sxm5", "NVIDIA-H100-80GB-HBM3"),
        ("H200 SXM", "NVIDIA-H200"),
        ("A100-80", "NVIDIA-A100-SXM4-80GB"),
        ("A100 40", "NVIDIA-A100-SXM4-40GB"),
        ("RTX A6000", "NVIDIA-RTX-A6000"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA-GeForce-RTX-4090"),
        ("rtx 4090", "NVIDIA-GeForce-RTX-4090"),
        ("L20", "NVIDIA-L20"),
        # Node labels.
        ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("NVIDIA-L40S", "NVIDIA-L40S"),
        ("Tesla-V100-PCIE-16GB", "Tesla-V100-PCIE-16GB"),
    ],
)
def test_a_gpu_is_found_as_nvidia_smi_a_node_label_or_a_person_spells_it(given: str, name: str) -> None:
    assert gpu_by_name(given).name == name


def test_no_alias_names_two_gpus() -> None:
    names = [name for gpu in GPUS for name in {spelling(alias) for alias in (gpu.name, *gpu.aliases)}]
    assert len(names) == len(set(names))


def test_every_gpu_is_found_by_its_name_and_each_alias() -> None:
    for gpu in GPUS:
        assert all(gpu_by_name(name) is gpu for name in (gpu.name, *gpu.aliases))


@pytest.mark.parametrize(
    ("name", "is_open"), [("A100", True), ("nvidia_a100", True), ("V100", True), ("A100-80", False)]
)
def test_a_name_that_devices_of_two_sizes_have_leaves_it_open(name: str, is_open: bool) -> None:
    assert leaves_size_open(name) is is_open


# MiB as nvidia-smi shows them. CUDA gives the engine less of them: up to 3 % on small devices.
SHOWN_MIB = {
    "B200": 183_359, "B300": 275_040, "GB200": 189_471, "H200": 143_771, "GH200": 97_871, "H100": 81_559, "H20": 97_871,
    "H100 NVL": 95_830, "A100": 81_920, "A100-40GB": 40_960, "RTX PRO 6000": 97_887, "RTX 6000 Ada": 49_140,
    "L40S": 46_068, "L40": 46_068, "A10": 23_028, "A10G": 23_028, "L4": 23_034, "A30": 24_576, "V100-32GB": 32_768,
    "V100": 16_384, "T4": 15_360, "RTX A6000": 49_140, "L20": 46_068, "RTX 4090": 24_564,
}  # fmt: skip


@pytest.mark.parametrize(("name", "mib"), SHOWN_MIB.items())
def test_the_engine_gets_a_little_less_memory_than_nvidia_smi_shows(name: str, mib: int) -> None:
    assert 0.945 * mib / 1024 < gpu_by_name(name).memory_gib < mib / 1024


@pytest.mark.parametrize(
    "name", ["NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "NVIDIA-L40S-SHARED", "NVIDIA H100 80GB HBM3 MIG 3g.40gb"]
)
def test_a_slice_or_a_share_of_a_device_is_not_the_device(name: str) -> None:
    with pytest.raises(UnknownNameError):
        gpu_by_name(name)


@pytest.mark.parametrize(
    ("name", "memory_gib", "config_id"),
    [
        ("NVIDIA A100X", 79.0, "s256-b2048-g0.92-p1"),
        ("some new device", 160.0, "s1024-b16384-g0.92-p1"),
        ("some new device", 159.9, "s1024-b8192-g0.92-p1"),
        ("some new device", 69.9, "s256-b2048-g0.92-p1"),
    ],
)
def test_the_default_of_a_device_in_no_list_goes_by_its_memory(name: str, memory_gib: float, config_id: str) -> None:
    assert Gpu(name=name, memory_gib=memory_gib).engine_default.config_id == config_id


def test_a_cpu_is_known_by_name_and_not_offered() -> None:
    found = gpu_by_name("cpu")
    assert (found.name, found.cache_only) == ("CPU", True)
    # Of one worker, whatever its memory.
    assert found.engine_default.config_id == "s128-b2048-g0.92-p1"
    assert found not in GPUS


@pytest.mark.parametrize("name", ["TPU-v5e", "", "B20", "B2000", "x" * 10_000])
def test_an_unknown_gpu_lists_the_known_ones(name: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        gpu_by_name(name)
    assert caught.value.path == "gpu"
    assert caught.value.known == tuple(gpu.short_name for gpu in GPUS)
    assert all(gpu.short_name in str(caught.value) for gpu in GPUS)
    assert len(str(caught.value)) < 500
