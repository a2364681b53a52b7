"""Generated requests, valid and not, for every documented operation: no 500 and no answer beside the document."""

import json
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from service.app import openapi_text

load_all_checks()
# positive_data_acceptance is left out: which names, configs and contexts are possible is beyond a schema.
CHECKS = [
    not_a_server_error,
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
]
# An operation that takes nothing cannot be sent anything wrong.
OPERATIONS = [
    (method.upper(), path, mode)
    for path, methods in json.loads(openapi_text())["paths"].items()
    for method, operation in methods.items()
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    if mode.is_positive or {"requestBody", "parameters"} & operation.keys()
]


@pytest.mark.parametrize(("method", "path", "mode"), OPERATIONS)
def test_the_service_keeps_to_its_document(app: FastAPI, method: str, path: str, mode: GenerationMode) -> None:
    operation = schemathesis.openapi.from_asgi("/openapi.json", app)[path][method]
    examples = 150 if operation.body else 10

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(checks=CHECKS)

    check()
