"""How far a run may be from its reference, by quantity and by the devices that both were measured on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.analysis.check.reference_rows import PEAKS, QUANTITY_WORDS
from benchmarks.analysis.labels import percent
from benchmarks.core.cell import Cell

CPU = "cpu"
GPU_BYTES = 0.0025
"""Relative, for the model states on a GPU."""
INEXACT_PEAKS = 0.05
"""Relative, for the fullest moment on a GPU or with another release of torch, whose temporaries it includes."""
GPU_SAVING = 0.0025
"""Share of the baseline: a quarter of a point."""
INEXACT_PEAK_SAVING = 0.02
UNEVEN = (
    *("dgc", "dgc+packed", "dgc-momentum", "dgc-simple", "threshold", "topk+packed"),
    *("gaussian", "redsync", "redsync-trim", "sidco-exp", "sidco-gp", "sidco-gamma", "adtopk-threshold", "ok-topk"),
)
"""Compressors whose message length depends on the values, and with it the bytes in flight."""
THROUGHPUT = 0.15
"""Relative, for the ratio to the baseline; on shared cores it varies by a tenth."""
METRIC = 0.03
"""Relative; other machines and versions of torch sum in other orders."""


@dataclass(frozen=True)
class Bands:
    """The conditions that decide the bands between one reference and one run."""

    exact_bytes: bool
    """Whether both were measured on a CPU."""
    same_device: bool
    same_torch: bool
    """Whether both have the same release of torch, such as 2.13."""
    same_machine: bool
    """Whether processor or GPU, torch and Python are the same: metrics then agree in every digit."""

    @classmethod
    def between(cls, reference: Mapping[str, Any], run: Mapping[str, Any]) -> "Bands":
        """Return the bands for two provenances, as made by `reference.provenance_of`."""
        same = {name: reference.get(name) == run.get(name) for name in ("device", "torch", "python", "cpu")}
        return cls(
            exact_bytes=reference.get("device") == run.get("device") == CPU,
            same_device=same["device"],
            same_torch=_release(reference.get("torch")) == _release(run.get("torch")),
            same_machine=all(same.values()),
        )

    def of(self, quantity: str, setting: Cell | None = None) -> float | None:
        """Return the band of a quantity of a setting, or of those with the narrowest bands.

        It is absolute for savings, else relative; None if the quantity is not compared.
        """
        uneven = setting is not None and (setting.compressor in UNEVEN or _by_time(setting))
        exact_peaks = self.exact_bytes and self.same_torch and not uneven
        if quantity == "saving":
            return 0.0 if self.exact_bytes else GPU_SAVING
        if quantity == "throughput_ratio":
            return THROUGHPUT if self.same_device else None
        if quantity == "metric":
            return METRIC
        if quantity in (*PEAKS, "peak_saving"):
            inexact = INEXACT_PEAK_SAVING if quantity == "peak_saving" else INEXACT_PEAKS
            return None if not self.same_device else 0.0 if exact_peaks else inexact
        return 0.0 if self.exact_bytes else GPU_BYTES

    def words(self) -> list[str]:
        """Say in a line each what is compared, and how exactly."""
        names = {"total_bytes": "model states"}
        told = ("total_bytes", "peak_states_bytes", "throughput_ratio", "metric")
        lines = [f"{names.get(one, QUANTITY_WORDS[one])} {_how(self.of(one))}" for one in told]
        smaller = "; on this machine any smaller difference is named too" if self.same_machine else ""
        return [*lines[:-1], lines[-1] + smaller]


def _by_time(setting: Cell) -> bool:
    """Return whether it is a matter of time which messages are under way at the fullest moment of a step."""
    return setting.update == "in_backward" and setting.world_size > 1


def _how(band: float | None) -> str:
    if band is None:
        return "not compared (another device)"
    return "to the byte" if band == 0 else f"within {percent(band)}" if band > 0.005 else f"within {100 * band:g} %"


def _release(version: object) -> tuple[str, ...] | None:
    return tuple(version.split(".")[:2]) if isinstance(version, str) else None
