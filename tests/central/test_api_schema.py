"""The OpenAPI document, held against the running API by schemathesis: no 500, no status, no shape it does not name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from tests.central.rows import row
from tests.central.served import Central, central
from tests.central.test_access import ROLES
from tests.patience import PATIENCE_S

EXAMPLES = 8
CHECKS = [
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
]
# The live feed has no end; how it speaks is shown elsewhere.
OPERATIONS = [*sorted(set(ROLES) - {("get", "/v1/events")}), ("get", "/livez"), ("get", "/readyz")]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Central]:
    with central(tmp_path_factory.mktemp("schema")) as running:
        secret, guid = running.join("orders")
        running.push(secret, [row(number, guid, phase="COMMITTED") for number in range(5)])
        yield running


@pytest.fixture(scope="module")
def schema(here: Central) -> Any:
    return schemathesis.openapi.from_dict(httpx.get(here.url + "/openapi.json", timeout=PATIENCE_S).json())


@pytest.mark.parametrize("mode", [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE])
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_the_api_does_what_its_document_says(
    here: Central, schema: Any, method: str, path: str, mode: schemathesis.GenerationMode
) -> None:
    """With what the document allows, and with what it does not, as a principal whom the route is open to."""
    operation = schema[path][method.upper()]
    is_service = ROLES.get((method, path)) == frozenset({"service"})
    secret = here.join("fuzzed")[0] if is_service else here.token("fuzzer", "operations")

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:
        case.call_and_validate(
            base_url=here.url, headers={"Authorization": f"Bearer {secret}"}, checks=CHECKS, timeout=PATIENCE_S
        )

    try:
        ask()
    except Unsatisfiable:
        assert mode is schemathesis.GenerationMode.NEGATIVE, "a route that takes nothing cannot be asked wrongly"
