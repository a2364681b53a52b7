"""A bundle that was changed in any one place is refused with what is wrong and what to do."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.bundle import load_bundle
from service.domain.errors import ArtefactError
from service.domain.manifest import MANIFEST_FILE, MODEL_FILE
from service.policies import load_policy
from service.settings import DEFAULT_BUNDLE_DIR
from tests.service.bundles import EVALUATION, graph, random_layers, write_bundle

OTHER_SHA = "f" * 64


def edit_manifest(directory: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Rewrites manifest.json in place."""
    path = directory / MANIFEST_FILE
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def test_an_intact_bundle_is_loaded_whole(tmp_path: Path) -> None:
    bundle = load_bundle(write_bundle(tmp_path))
    assert bundle.manifest.version == "1.2.3"
    assert bundle.sha256 == hashlib.sha256((tmp_path / MANIFEST_FILE).read_bytes()).hexdigest()
    assert bundle.model == (tmp_path / MODEL_FILE).read_bytes()
    assert bundle.evaluation == EVALUATION


def test_the_committed_bundle_is_one_that_the_service_serves() -> None:
    manifest = load_policy(DEFAULT_BUNDLE_DIR).bundle.manifest
    assert (manifest.name, manifest.gpu) == (DEFAULT_BUNDLE_DIR.name, "NVIDIA-B200")


def test_a_bundle_without_an_evaluation_is_loaded(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    edit_manifest(tmp_path, lambda manifest: manifest["files"].pop("evaluation.json"))
    assert load_bundle(tmp_path).evaluation is None


@pytest.mark.parametrize("name", [MODEL_FILE, "evaluation.json"])
def test_a_changed_file_is_named_with_both_hashes_and_the_remedy(tmp_path: Path, name: str) -> None:
    write_bundle(tmp_path)
    path = tmp_path / name
    promised = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_bytes(path.read_bytes() + b" ")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(ArtefactError, match="make train") as caught:
        load_bundle(tmp_path)
    assert all(text in str(caught.value) for text in (str(path), promised, found))


@pytest.mark.parametrize("name", [MODEL_FILE, "evaluation.json", MANIFEST_FILE])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    write_bundle(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ArtefactError, match=f"{name}: cannot be read .*make train"):
        load_bundle(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"), [("feature_schema", OTHER_SHA), ("candidates_fingerprint", OTHER_SHA), ("parameters", 9984)]
)
def test_a_bundle_of_another_encoding_is_refused_with_both_values(tmp_path: Path, key: str, value: object) -> None:
    write_bundle(tmp_path)
    edit_manifest(tmp_path, lambda manifest: manifest.update({key: value}))
    with pytest.raises(ArtefactError, match=rf"{key} is {value}, this program needs \w+.*make train"):
        load_bundle(tmp_path)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda m: m.update(schema_version=99), "schema_version 99"),
        (lambda m: m.update(gpu="NVIDIA-B400"), "NVIDIA-B400"),
        (lambda m: m.update(gpu="b200"), "write it as 'NVIDIA-B200'"),
        (lambda m: m.update(evidence="guessed"), "guessed"),
        (lambda m: m.pop("slo"), "slo"),
        (lambda m: m.update(surprise=1), "surprise"),
        (lambda m: m["training_range"].pop("weight_gb"), "training_range"),
        (lambda m: m["training_range"].update(weight_gb=[2, 1]), "weight_gb"),
        (lambda m: m["slo"].update(max_error_rate=7), "max_error_rate"),
        (lambda m: m["files"].pop(MODEL_FILE), "model.onnx"),
        (lambda m: m["files"].update({"../secret": OTHER_SHA}), "../secret"),
        (lambda m: m["files"].update({"/etc/passwd": OTHER_SHA}), "/etc/passwd"),
        (lambda m: m["files"].update({MODEL_FILE: "short"}), "sha256"),
    ],
)
def test_a_manifest_that_breaks_its_format_is_refused(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object], message: str
) -> None:
    write_bundle(tmp_path)
    edit_manifest(tmp_path, edit)
    with pytest.raises(Exception, match=message) as caught:
        load_bundle(tmp_path)
    assert isinstance(caught.value, ArtefactError), repr(caught.value)
    assert MANIFEST_FILE in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"a": NaN}'])
def test_a_manifest_that_is_no_json_object_is_refused(tmp_path: Path, content: bytes) -> None:
    write_bundle(tmp_path)
    (tmp_path / MANIFEST_FILE).write_bytes(content)
    with pytest.raises(ArtefactError, match=r"manifest\.json: not"):
        load_bundle(tmp_path)


def test_a_missing_folder_says_where_bundles_come_from(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"no bundle folder; run 'make train'.*MEMORYPOLICY_BUNDLE_DIR"):
        load_bundle(tmp_path / "none")


def nan_layers() -> list[Any]:
    """Weights that make every score NaN."""
    layers = random_layers()
    layers[2][0][:] = float("nan")
    return layers


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (b"not a graph", "cannot load"),
        (b"\x08\x07", "cannot load"),
        (graph(random_layers(), input_name="x"), "expected"),
        (graph(random_layers(), output_name="y"), "expected"),
        (graph(random_layers(), rows=15), "expected"),
        (graph(random_layers()[1:]), "expected"),
        (graph(nan_layers()), "not finite"),
    ],
    ids=["text", "empty graph", "input name", "output name", "fixed rows", "inputs", "NaN"],
)
def test_a_graph_with_other_ends_is_refused_although_its_hash_is_right(
    tmp_path: Path, model: bytes, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    write_bundle(tmp_path, model=model)
    with pytest.raises(ArtefactError, match=rf"model\.onnx: .*{message}.*make train"):
        load_policy(tmp_path)
    assert capfd.readouterr().err == ""
