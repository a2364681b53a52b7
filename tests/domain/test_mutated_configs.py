"""Whatever a config.json holds, it is read or refused: with the path, the value and what to do."""

from service.domain.architecture import Architecture
from service.domain.config_formula import formulas
from service.domain.errors import InvalidInputError
from service.domain.model_config import parse_config, read_architecture
from service.domain.scenario import MAX_KV_BYTES_PER_TOKEN, MAX_WEIGHT_GB
from tests.domain.mutated_configs import bases, mutated
from tests.domain.reduced_configs import Config

HOW_MANY = 10_000


def outcome(config: Config) -> Architecture | InvalidInputError:
    """What the reader says; any other error is the test's failure."""
    try:
        parsed = parse_config(config)
    except InvalidInputError as error:
        return error
    assert parsed.architecture is not None
    return parsed.architecture


def test_the_originals_are_read() -> None:
    assert all(isinstance(outcome(config), Architecture) for config in bases())


def test_ten_thousand_faulty_configs_are_read_or_refused() -> None:
    read = refused = 0
    for config in mutated(HOW_MANY, seed=0):
        found = outcome(config)
        if isinstance(found, InvalidInputError):
            refused += 1
            assert found.path
            assert found.remedy
            # A hostile value floods neither a message nor a log.
            assert len(str(found)) < 700
            assert repr(found.path) in repr(str(found)) or found.path in str(found)
        else:
            read += 1
            assert 0 < found.kv_bytes_per_token <= MAX_KV_BYTES_PER_TOKEN
            assert 0 < found.weight_bytes / 1e9 <= MAX_WEIGHT_GB
            assert 0 < found.active_parameters <= found.parameters
            assert found.kv_bytes_at(1) == found.kv_bytes_per_token
            assert 0 < found.kv_bytes_at(found.max_context) <= found.max_context * found.kv_bytes_per_token
    # Both happen often, or the faults would prove little.
    assert min(read, refused) > HOW_MANY / 10


def test_reading_leaves_the_config_as_it_was() -> None:
    for config in mutated(500, seed=1):
        before = repr(config)
        outcome(config)
        assert repr(config) == before


def test_what_is_read_is_bounded_by_the_layers_that_a_model_may_have() -> None:
    # The work grows with the layers, and their number is checked before anything is built.
    huge = {**bases()[0], "num_hidden_layers": 10**9}
    assert isinstance(outcome(huge), InvalidInputError)
    most = {**bases()[0], "num_hidden_layers": 1000, "hidden_size": 64, "intermediate_size": 64, "head_dim": 8}
    assert len(formulas(read_architecture(most))) < 20
