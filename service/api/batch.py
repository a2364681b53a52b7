"""Many questions in one body: what is wrong with one refuses that one, and the network runs once for the rest."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.api.answer import answers
from service.api.model_catalogue import ModelCatalogue
from service.api.problem import Detail, RefusedError
from service.api.query import ReadQuery, read_query, refuse_measured_fields
from service.policies import Policies

MOST_ITEMS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One question of a batch: as it was read and the answer to it."""

    read: ReadQuery
    content: dict[str, Any]


def read_items(body: Mapping[str, Any]) -> list[Any]:
    """The questions of a batch, whatever each of them is; RefusedError where the batch itself cannot be used."""
    around = {name: value for name, value in body.items() if name != "items"}
    refuse_measured_fields(around, foreign=())
    if around:
        raise _refused(f"$.{next(iter(around))}", "unknown field; known here: items")
    if "items" not in body:
        raise _refused("$.items", "this field is required")
    items = body["items"]
    if not isinstance(items, list) or not 1 <= len(items) <= MOST_ITEMS:
        raise _refused("$.items", f"give a list of 1 to {MOST_ITEMS} questions", items)
    return items


def answer_items(
    items: Sequence[Any], policies: Policies, *, default_gpu: str, models: ModelCatalogue, new_id: Callable[[], str]
) -> list[Answered | RefusedError]:
    """What becomes of each question, in order."""
    found = [_read(item, policies, default_gpu=default_gpu, models=models) for item in items]
    reads = [one for one in found if isinstance(one, ReadQuery)]
    contents = iter(answers(reads, new_id=new_id))
    return [one if isinstance(one, RefusedError) else Answered(read=one, content=next(contents)) for one in found]


def _read(item: object, policies: Policies, *, default_gpu: str, models: ModelCatalogue) -> ReadQuery | RefusedError:
    if not isinstance(item, dict):
        return _refused("$", "give a JSON object", item)
    try:
        return read_query(item, policies=policies, default_gpu=default_gpu, models=models)
    except RefusedError as refusal:
        return refusal


def _refused(path: str, message: str, value: object = None) -> RefusedError:
    return RefusedError(
        "invalid_request", f"{path}: {message}", details=[Detail(path=path, message=message, value=value)]
    )
