"""How each model is trained: data, optimizer, learning rate, length. Imports no torch."""

from benchmarks.workloads.paper import PAPER
from benchmarks.workloads.readmes import READMES
from benchmarks.workloads.recipe import Workload
from benchmarks.workloads.schedule import Schedule
from benchmarks.workloads.small import SMALL

__all__ = ["PAPER", "READMES", "SMALL", "WORKLOADS", "Schedule", "Workload"]

WORKLOADS: dict[str, Workload] = {workload.model: workload for workload in (*SMALL, *PAPER, *READMES)}
"""The recipe of each model that cells can name."""
