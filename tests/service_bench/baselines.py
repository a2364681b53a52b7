"""Other ways to answer the same question, each written as the documentation of its framework would write it."""

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import onnxruntime
from fastapi import FastAPI
from numpy.typing import NDArray
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from service.api.answer import answer
from service.api.json_body import parse_object
from service.api.metrics import Metrics
from service.api.observer import Observer
from service.api.query import read_query
from service.api.response_schemas import RecommendAnswer
from service.api.trace_context import TraceContext
from service.domain.candidate import CANDIDATES, Candidate
from service.domain.capacity import CUDA_GRAPHS_GIB
from service.domain.catalogue import model_by_name
from service.domain.gpu import Gpu, gpu_by_name
from service.domain.manifest import Abstention
from service.domain.memory import OVERHEAD_GIB
from service.domain.preference import cautious, prefer
from service.domain.scenario import ModelArch
from service.domain.slo import Slo
from service.policies import Policies, Policy


class ModelIn(BaseModel):
    """A model of the catalogue."""

    name: str


class WorkloadIn(BaseModel):
    """What is announced."""

    prompt_tokens: int
    max_new_tokens: int
    shared_prefix_ratio: float
    concurrency: int


class QuestionIn(BaseModel):
    """The body of a question."""

    model: ModelIn
    gpu: str = "NVIDIA-B200"
    workload: WorkloadIn


def naive_fastapi(policy: Policy) -> FastAPI:
    """As FastAPI's tutorial has it: a pydantic body, a response_model, a session with its defaults, a dict.

    It knows one kind of cache, excludes nothing, checks no training range and guards against no leak, so it does less
    than the service. Where the bundle estimates numbers it gives those of the medians, without errors and regimes.
    """
    app = FastAPI()
    session = onnxruntime.InferenceSession(policy.bundle.model, providers=["CPUExecutionProvider"])
    manifest = policy.bundle.manifest
    estimator = None
    if manifest.estimator is not None:
        content = policy.bundle.files[manifest.estimator.file]
        estimator = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    @app.post("/v1/recommend", response_model=RecommendAnswer)
    async def recommend(question: QuestionIn) -> dict[str, object]:
        model, load, gpu = model_by_name(question.model.name), question.workload, gpu_by_name(question.gpu)
        features = np.array(
            [
                [
                    model.weight_gb,
                    model.num_layers,
                    model.hidden_size,
                    model.kv_bytes_per_token,
                    load.prompt_tokens,
                    load.max_new_tokens,
                    load.shared_prefix_ratio,
                    math.log2(load.concurrency),
                    math.log2(candidate.max_num_seqs),
                    math.log2(candidate.max_num_batched_tokens),
                    candidate.gpu_memory_utilization,
                    float(candidate.enable_prefix_caching),
                ]
                for candidate in (*CANDIDATES, gpu.engine_default)
            ],
            dtype=np.float32,
        )
        scores = session.run(None, {"features": features})[0][:, 0]
        quantiles, ratios, chances = [None] * 3 if estimator is None else estimator.run(None, {"features": features})
        order = _order(scores, chances, manifest.abstention, gpu)
        best = CANDIDATES[order[0]]
        return {
            "recommendation_id": "0",
            "decision": "recommended",
            "reason": None,
            "summary": f"{best.config_id} ranks first for {question.model.name}.",
            "set": best.engine_args(),
            "command": " ".join(["vllm serve", question.model.name, *best.cli_args()]),
            "ranked": [
                {
                    "rank": rank,
                    "config_id": CANDIDATES[index].config_id,
                    "score": float(scores[index]),
                    "p_not_worse_than_engine_default": None if chances is None else float(chances[index, 1]),
                    "p_not_worse_than_fixed": None if chances is None else float(chances[index, 2]),
                    "engine_args": CANDIDATES[index].engine_args(),
                    "cli_args": CANDIDATES[index].cli_args(),
                    "feasible": True,
                    "feasibility": None,
                    "capacity": _capacity(model, load, gpu, CANDIDATES[index]),
                }
                for rank, index in enumerate(order, start=1)
            ],
            "engine_default": gpu.engine_default.engine_args(),
            "engine_default_capacity": {
                "engine_version": manifest.engine_version,
                **_capacity(model, load, gpu, gpu.engine_default),
                "needed_gib": model.weight_gb * 1e9 / 2**30 + OVERHEAD_GIB,
                "available_gib": gpu.engine_default.gpu_memory_utilization * gpu.memory_gib,
            },
            "memory": {
                "gpu_memory_gib": gpu.memory_gib,
                "weights_gib": model.weight_gb * 1e9 / 2**30,
                "overhead_gib": OVERHEAD_GIB,
                "cuda_graphs_gib": CUDA_GRAPHS_GIB,
                "cuda_graphs": "inside",
                "context_tokens": model.max_model_len or 0,
            },
            "expected": None
            if quantiles is None or ratios is None or chances is None
            else {
                "evidence": manifest.evidence,
                "recommended": _side(best, quantiles[order[0]], chances[order[0]], manifest.slo),
                "declined": None,
                "engine_default": _side(gpu.engine_default, quantiles[-1], chances[-1], manifest.slo),
                "change": _three(np.expm1(ratios[order[0]])),
                "slo": asdict(manifest.slo),
                "slo_trained_for": asdict(manifest.slo),
                "told_apart": None,
                "band": {"from_quantile": 0.05, "to_quantile": 0.95},
            },
            "shortfall": None,
            "support": {"in_distribution": True, "out_of_range": []},
            "assumed": {},
            "warnings": [],
            "renders": {},
            "range": None,
            "holds_until": None,
            "explanation": None,
            "policy": {
                "version": manifest.version,
                "sha256": policy.bundle.sha256,
                "feature_schema": manifest.feature_schema,
                "gpu": manifest.gpu,
                "confidence": manifest.confidence,
                "engine_version": manifest.engine_version,
                "evidence": manifest.evidence,
            },
        }

    return app


def _order(
    scores: NDArray[np.float32], chances: NDArray[np.float32] | None, caution: Abstention | None, gpu: Gpu
) -> list[int]:
    """The service's own preference."""
    if caution is None:
        order: list[int] = np.argsort(-scores[:-1], kind="stable").tolist()
        return order
    if chances is not None:
        prices = (caution.risk_price or 0.0, caution.fixed_price or 0.0)
        not_worse = chances[:-1, 1:].copy()
        not_worse[0, 1] = 1.0
        scores = cautious(scores[:-1], not_worse, prices=prices)
    return prefer(
        scores[: len(CANDIDATES)],
        [True] * len(CANDIDATES),
        near_tie=caution.near_tie,
        low_utilisation_gain=caution.low_utilisation_gain,
        shared_gpu=False,
        engine_default=gpu.engine_default,
        safe=None if chances is None or caution.threshold is None else list(chances[:-1, 1] >= caution.threshold),
    )


def _side(
    candidate: Candidate, logarithms: NDArray[np.float32], chances: NDArray[np.float32], slo: Slo
) -> dict[str, object]:
    three = _three(np.exp(logarithms))
    return {
        "config_id": candidate.config_id,
        **three,
        "slo_met_chance": float(chances[0]),
        "meets_slo": {
            "max_p95_ttft_ms": three["ttft_p95_ms"]["value"] <= slo.max_p95_ttft_ms,
            "max_p95_tpot_ms": three["tpot_p95_ms"]["value"] <= slo.max_p95_tpot_ms,
        },
        "regime": "light",
        "simulator_error_unknown": {},
    }


def _three(numbers: NDArray[np.float32]) -> dict[str, dict[str, float]]:
    """[9] low, middle and high of each quantity."""
    names = ("output_throughput_tps", "ttft_p95_ms", "tpot_p95_ms")
    return {
        name: {end: float(value) for end, value in zip(("low", "value", "high"), three, strict=True)}
        for name, three in zip(names, numbers.reshape(3, 3), strict=True)
    }


def _capacity(model: ModelArch, load: WorkloadIn, gpu: Gpu, candidate: Candidate) -> dict[str, object]:
    free_gib = candidate.gpu_memory_utilization * gpu.memory_gib - model.weight_gb * 1e9 / 2**30 - OVERHEAD_GIB
    tokens = int(max(0.0, free_gib) * 2**30 / model.kv_bytes_per_token)
    return {
        "kv_cache_gib": max(0.0, free_gib),
        "kv_cache_tokens": tokens,
        "requests_that_fit": tokens // (load.prompt_tokens + load.max_new_tokens),
        "full_length_request_fits": tokens >= (model.max_model_len or 0),
    }


def bare_starlette(policy: Policy) -> Starlette:
    """The service's own reading, ranking and answering behind one bare route."""
    policies = Policies(policy)

    async def recommend(request: Request) -> Response:
        read = read_query(parse_object(await request.body()), policies=policies, default_gpu=None)
        return Response(to_json(answer(read, recommendation_id="0")), media_type="application/json")

    return Starlette(routes=[Route("/v1/recommend", recommend, methods=["POST"])])


class Unobserving(Observer):
    """Notes nothing of a request."""

    def __init__(self) -> None:
        """Needs neither metrics nor a log."""

    def finished(
        self, scope: Scope, *, status: int, seconds: float, request_id: str, trace: TraceContext | None
    ) -> None:
        """Nothing."""


class Uncounting(Metrics):
    """Counts no ranking and no answer."""

    def observe_ranking(self, seconds: float) -> None:
        """Nothing."""

    def count_answer(self, door: str, content: Mapping[str, Any]) -> None:
        """Nothing."""


def unobserved(app: FastAPI) -> FastAPI:
    """The service's own application without metrics, logs and request ids; limits and the gate stay."""
    for middleware in app.user_middleware:
        if "observer" in middleware.kwargs:
            middleware.kwargs.update(observer=Unobserving(), new_id=lambda: "0")
    app.state.api = replace(app.state.api, metrics=Uncounting())
    return app
