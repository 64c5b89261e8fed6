"""What an audit found, as a record and in words."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """A lower bound on epsilon beside the claim.

    Attributes
    ----------
    lower_bound : float
        With probability at least `confidence` the true epsilon at `delta` is at least this.
    sharper_bound : float or None
        The same under the assumption that the release is Gaussian and not sampled; None where it is not.
    claimed : float
        What the accountant says of what was played; infinite without noise.
    delta, confidence : float
    kind : str
        "step", "training" or "one run".
    releases : str
        Which releases the adversary saw: "gradient", "histogram" or "together".
    attack : str
    games : int
        Games that were counted (one run: canaries).
    detail : str
        Hits and games, in words.
    """

    lower_bound: float
    claimed: float
    delta: float
    confidence: float
    kind: str
    releases: str
    attack: str
    games: int
    detail: str
    sharper_bound: float | None = None

    @property
    def passed(self) -> bool:
        """Whether no bound is above the claim."""
        return max(self.lower_bound, self.sharper_bound or 0.0) <= self.claimed

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready record."""
        return {**dataclasses.asdict(self), "passed": self.passed}

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        verdict = (
            "PASSED: this attack found no contradiction. That is evidence, not a proof"
            if self.passed
            else "FAILED: what was released shows more than the claim allows"
        )
        sharper = "" if self.sharper_bound is None else f" ({self.sharper_bound:.3f} if it is Gaussian)"
        return (
            f"audit of {self.kind}, {self.releases}, {self.attack} attack: epsilon is at least "
            f"{self.lower_bound:.3f}{sharper} at {self.confidence:.0%} confidence, claimed is "
            f"{self.claimed:.3f} at delta {self.delta:g}; {self.detail}. {verdict}."
        )
