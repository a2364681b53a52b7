"""The answer that is to be verified: asked of the service's own program, or read from a file of it."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from bench_runner.files import read_json
from service.domain.candidate import Candidate
from service.domain.catalogue import CATALOGUE
from service.domain.errors import ArtefactError, InvalidInputError
from service.domain.scenario import ModelArch, Workload
from service.domain.slo import Slo

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What to verify. answer: the body of POST /v1/recommend, None where a person named the configuration."""

    candidate: Candidate
    answer: dict[str, Any] | None

    @classmethod
    def of_answer(cls, answer: dict[str, Any]) -> Self:
        """ArtefactError if the answer recommends nothing, or is none."""
        try:
            decision, flags, first = answer["decision"], answer["set"], answer["ranked"][0]["engine_args"]
            if decision != "recommended":
                raise ArtefactError(
                    f"the answer is {decision} ({answer['reason']}): it sets no flag, so there is nothing to verify; "
                    "give --config to measure a configuration against the engine's default all the same"
                )
            # Flags that the user had fixed are in the first row and not in `set`.
            return cls(candidate=Candidate(**{**first, **flags}), answer=answer)
        except (KeyError, IndexError, TypeError, InvalidInputError) as error:
            raise ArtefactError(f"not an answer of /v1/recommend: {error!r}; save the whole body") from error

    @classmethod
    def read(cls, path: Path) -> Self:
        """From a file that holds the body."""
        return cls.of_answer(read_json(path))


def ask(model: ModelArch, workload: Workload, *, gpu: str, slo: Slo) -> Recommendation:
    """`python -m service recommend --json` in the service's own environment, else in this one."""
    own = ROOT / ".venv" / "bin" / "python"
    command = [str(own if own.exists() else sys.executable), "-m", "service", "recommend", "--json"]
    command += [*_model_options(model), f"--gpu={gpu}", *_options(workload, slo)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise ArtefactError(
            f"the service gives no recommendation: {(done.stderr.strip().splitlines() or ['no output'])[-1]}; "
            "give --answer FILE or --config"
        )
    answer: dict[str, Any] = json.loads(done.stdout)
    return Recommendation.of_answer(answer)


def _model_options(model: ModelArch) -> list[str]:
    name = str(model.name)
    if any(entry.name == name for entry in CATALOGUE):
        return [f"--model={name}"]
    config = Path(name) / "config.json"
    if config.is_file():
        return [f"--config={config.absolute()}"]
    numbers = ("weight_gb", "num_layers", "hidden_size", "kv_bytes_per_token")
    return [f"--{number.replace('_', '-')}={getattr(model, number)}" for number in numbers]


def _options(workload: Workload, slo: Slo) -> list[str]:
    values = {
        "prompt-tokens": workload.prompt_tokens,
        "max-new-tokens": workload.max_new_tokens,
        "shared-prefix-ratio": workload.shared_prefix_ratio,
        "concurrency": workload.concurrency,
        "max-p95-ttft-ms": slo.max_p95_ttft_ms,
        "max-p95-tpot-ms": slo.max_p95_tpot_ms,
        "max-error-rate": slo.max_error_rate,
    }
    return [f"--{name}={value}" for name, value in values.items()]
