from collections.abc import Mapping

import pytest

from service.health_check import address


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "http://127.0.0.1:8000/healthz"),
        ({"MEMORYPOLICY_HOST": "0.0.0.0", "MEMORYPOLICY_PORT": "81"}, "http://127.0.0.1:81/healthz"),
        ({"MEMORYPOLICY_HOST": "::"}, "http://[::1]:8000/healthz"),
        ({"MEMORYPOLICY_HOST": "192.0.2.7", "MEMORYPOLICY_PORT": ""}, "http://192.0.2.7:8000/healthz"),
        ({"MEMORYPOLICY_TLS_CERT_FILE": "tls.crt"}, "https://127.0.0.1:8000/healthz"),
    ],
)
def test_it_asks_where_the_service_of_the_same_environment_listens(
    environment: Mapping[str, str], expected: str
) -> None:
    assert address(environment) == expected
