"""The training scenarios of a bundle: written, read back, and found by their likeness."""

import gzip
import json
import math

import pytest

from service.domain.errors import ArtefactError
from service.domain.neighbours import STATE_NAMES, Neighbour, Neighbours, Numbers

NONE_SEEN = Numbers(0.0, None, None)
RANGES = {
    "weight_gb": (1.0, 16.0),
    "num_layers": (16.0, 64.0),
    "hidden_size": (1024.0, 8192.0),
    "kv_bytes_per_token": (1e4, 1e6),
    "prompt_tokens": (16.0, 16384.0),
    "max_new_tokens": (1.0, 4096.0),
    "shared_prefix_ratio": (0.0, 1.0),
    "log2_concurrency": (0.0, 8.0),
}


def row(
    *, prompt: float = 512.0, ratio: float = 0.0, clients: float = 4.0, config_id: str = "s128-b2048-g0.85-p1"
) -> Neighbour:
    """A scenario of which most is always the same."""
    features = (4.0, 32.0, 4096.0, 1e5, prompt, 256.0, ratio, clients)
    return Neighbour(features, config_id, Numbers(900.0, 120.0, 9.5), NONE_SEEN)


def test_what_is_written_is_read_back() -> None:
    written = Neighbours(rows=(row(), row(prompt=6000.0, ratio=0.7)))
    content = written.to_bytes()
    assert Neighbours.from_bytes(content) == written
    assert written.to_bytes() == content


def test_the_nearest_come_first_by_factors_of_lengths_and_differences_of_shares() -> None:
    question = row().features
    # Of ten factors of two from 16 to 16,384 tokens, 1024 is one away and 2048 two; half of the ratio's range is half.
    rows = (row(ratio=0.5), row(prompt=2048.0), row(prompt=1024.0), row(clients=6.0))
    found = Neighbours(rows=rows).nearest(question, ranges=RANGES, count=3)
    assert [one for one, _ in found] == [rows[2], rows[1], rows[3]]
    assert [distance for _, distance in found] == pytest.approx([0.1, 0.2, 0.25])


def test_distances_of_several_features_add_up_as_squares() -> None:
    found = Neighbours(rows=(row(prompt=1024.0, ratio=0.2),)).nearest(row().features, ranges=RANGES, count=3)
    assert [distance for _, distance in found] == pytest.approx([math.sqrt(0.1**2 + 0.2**2)])


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(ArtefactError, match="row 0 has numbers that are none from 0 on"):
        Neighbours(rows=(row()._replace(best=Numbers(900.0, math.nan, 9.5)),))


def changed(**changes: object) -> bytes:
    """A file with another content."""
    content = json.loads(gzip.decompress(Neighbours(rows=(row(),)).to_bytes()))
    return gzip.compress(json.dumps({**content, **changes}).encode())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "neighbours"),
        (b"{}", "BadGzipFile"),
        (gzip.compress(b"{"), "JSONDecodeError"),
        (gzip.compress(b"[]"), "TypeError"),
        (changed(schema_version=2), "schema_version 2"),
        (changed(features=[*STATE_NAMES[1:], STATE_NAMES[0]]), "this program reads 1"),
        (changed(rows=[]), "0 rows"),
        (
            changed(
                rows=[
                    {
                        "features": [1, 2],
                        "config_id": "s128-b2048-g0.85-p1",
                        "best": [1, 2, 3],
                        "engine_default": [1, 2, 3],
                    }
                ]
            ),
            "row 0",
        ),
        (
            changed(rows=[{"features": [1.0] * 8, "config_id": "s1", "best": [1, 2, 3], "engine_default": [1, 2, 3]}]),
            "'s1'",
        ),
        (changed(rows=[{"features": [1.0] * 8, "best": [1, 2, 3], "engine_default": [1, 2, 3]}]), "config_id"),
        (
            changed(
                rows=[
                    {
                        "features": [1.0] * 8,
                        "config_id": "s128-b2048-g0.85-p1",
                        "best": [1],
                        "engine_default": [1, 2, 3],
                    }
                ]
            ),
            "TypeError",
        ),
    ],
)
def test_a_file_that_is_none_is_refused_by_what_is_wrong(content: bytes, message: str) -> None:
    with pytest.raises(ArtefactError, match=message):
        Neighbours.from_bytes(content)
