"""Bundles that answer: verified, with the sessions that score and estimate from them."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Self

from service.bundle import RESTORE, Bundle, load_bundle
from service.domain.error_bands import ERROR_BANDS_FILE, ErrorBands
from service.domain.errors import ArtefactError
from service.domain.manifest import MODEL_FILE, NEIGHBOURS_FILE, Confidence, Manifest
from service.domain.neighbours import Neighbours
from service.estimator import Estimator
from service.forecast_error import forecast_errors
from service.scorer import Scorer


class Policy:
    """A verified bundle and the sessions that answer from it; each is opened when it is first asked."""

    def __init__(self, bundle: Bundle, *, errors: Mapping[str, float] | None = None) -> None:
        """errors: of its estimator, read from the evaluation where they are not given."""
        self.bundle = bundle
        self.forecast_errors = forecast_errors(bundle.evaluation) if errors is None else errors

    @property
    def manifest(self) -> Manifest:
        """What it promises about itself."""
        return self.bundle.manifest

    @property
    def key(self) -> tuple[str, Confidence]:
        """What it was trained for: the GPU, and how well the workload is known."""
        return self.manifest.gpu, self.manifest.confidence

    @cached_property
    def scorer(self) -> Scorer:
        """The ranker. ArtefactError if its graph cannot be run."""
        return Scorer(self.bundle.model)

    @cached_property
    def estimator(self) -> Estimator | None:
        """The network of the expected numbers, None where the bundle has none. ArtefactError as for the ranker."""
        part = self.bundle.manifest.estimator
        return None if part is None else Estimator(self.bundle.files[part.file])

    @cached_property
    def error_bands(self) -> ErrorBands | None:
        """How far the simulator was from measurements, None where the bundle does not say. ArtefactError."""
        content = self.bundle.files.get(ERROR_BANDS_FILE)
        try:
            return None if content is None else ErrorBands.from_json(json.loads(content))
        except (ValueError, ArtefactError) as error:
            raise ArtefactError(f"{self.bundle.directory / ERROR_BANDS_FILE}: {error}; {RESTORE}") from error

    def verify(self) -> None:
        """Opens everything; ArtefactError if one of it cannot be used."""
        _ = self.scorer, self.estimator, self.error_bands
        content = self.bundle.files.get(NEIGHBOURS_FILE)
        if content is not None:
            try:
                # Read again when somebody asks for reasons, which few do.
                Neighbours.from_bytes(content)
            except ArtefactError as error:
                raise ArtefactError(f"{self.bundle.directory / NEIGHBOURS_FILE}: {error}; {RESTORE}") from error

    def at_rest(self) -> Self:
        """The same without what only some ask for: its sessions, until it is asked, and the files for people."""
        part = self.manifest.estimator
        used = {MODEL_FILE, ERROR_BANDS_FILE, NEIGHBOURS_FILE, part.file if part else MODEL_FILE}
        files = {name: content for name, content in self.bundle.files.items() if name in used}
        return type(self)(replace(self.bundle, files=files), errors=self.forecast_errors)


class Policies:
    """Those that answer: one for each GPU and confidence at most. The primary one stands for what none was trained for.

    ArtefactError where two were trained for the same.
    """

    def __init__(self, primary: Policy, others: Sequence[Policy] = ()) -> None:
        self.primary, self.others = primary, tuple(others)
        self._by_key: dict[tuple[str, Confidence], Policy] = {}
        for policy in self:
            if (earlier := self._by_key.setdefault(policy.key, policy)) is not policy:
                raise ArtefactError(
                    f"{policy.bundle.directory}: {earlier.bundle.directory} answers for {' and '.join(policy.key)} "
                    "workloads already; leave one of them out of MEMORYPOLICY_MORE_BUNDLE_DIRS"
                )

    def __iter__(self) -> Iterator[Policy]:
        yield self.primary
        yield from self.others

    @cached_property
    def sha256(self) -> str:
        """One name for all of them; the bundle's own where it is the only one."""
        if not self.others:
            return self.primary.bundle.sha256
        return hashlib.sha256("\n".join(policy.bundle.sha256 for policy in self).encode()).hexdigest()

    def choose(self, gpu: str, confidence: Confidence) -> Policy:
        """Of that GPU the one of that confidence, else the typical one, else any; the primary for another GPU."""
        found = self._by_key.get((gpu, confidence)) or self._by_key.get((gpu, "typical"))
        return found or next((policy for policy in self if policy.manifest.gpu == gpu), self.primary)

    def with_active(self, active: Policy) -> Self:
        """The same with one in the place of that which was trained for the same, or beside them if none was."""
        if active.key == self.primary.key:
            return type(self)(active, self.others)
        return type(self)(self.primary, [*(one for one in self.others if one.key != active.key), active])


def load_policies(directory: Path, more: Sequence[Path] = ()) -> Policies:
    """The primary policy and further ones, all verified. ArtefactError names what is broken or there twice."""
    return Policies(load_policy(directory), [load_policy(folder).at_rest() for folder in more])


def load_policy(directory: Path) -> Policy:
    """The policy of a bundle directory; ArtefactError if anything about it does not verify."""
    return policy_of(load_bundle(directory))


def policy_of(bundle: Bundle) -> Policy:
    """The policy of a verified bundle; ArtefactError if one of its graphs cannot be run."""
    policy = Policy(bundle)
    policy.verify()
    return policy
