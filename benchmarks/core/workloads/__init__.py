"""How each model is trained: data, optimizer, learning rate, length. Imports no torch."""

from benchmarks.core.workloads.paper import PAPER
from benchmarks.core.workloads.readmes import READMES
from benchmarks.core.workloads.recipe import Workload
from benchmarks.core.workloads.schedule import Schedule
from benchmarks.core.workloads.small import LARGER, SMALL

__all__ = ["LARGER", "PAPER", "READMES", "SMALL", "WORKLOADS", "Schedule", "Workload"]

WORKLOADS: dict[str, Workload] = {workload.model: workload for workload in (*SMALL, *LARGER, *PAPER, *READMES)}
"""The recipe of each model that cells can name."""
