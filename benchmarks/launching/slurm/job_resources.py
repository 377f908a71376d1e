"""The number of nodes for a cell's ranks, and the resources that its job requests from Slurm."""

import shlex
from dataclasses import dataclass
from typing import Any

from benchmarks.core.cell import Cell
from benchmarks.launching.slurm.site import Site
from resireduce.errors import ConfigError


@dataclass(frozen=True)
class Placement:
    """Equally many ranks on each node."""

    nodes: int
    ranks_per_node: int


def place(cell: Cell, site: Site) -> Placement:
    """Return the placement of a cell's ranks: on as many nodes as the cell says, else on as few as can hold them.

    Raises ConfigError if a node cannot hold its ranks, or the ranks cannot be divided evenly.
    """
    most = site.gpus_per_node or site.ranks_per_node
    if cell.nodes is not None:
        on_each = cell.world_size // cell.nodes
        if on_each > most:
            what = f"gpus_per_node: {most}" if site.gpus_per_node else f"ranks_per_node: {most}"
            raise ConfigError(f"nodes: {cell.nodes} would put {on_each} ranks on each, and the site has {what}")
        return Placement(cell.nodes, on_each)
    on_each = max(count for count in range(1, most + 1) if cell.world_size % count == 0)
    return Placement(cell.world_size // on_each, on_each)


def job_resources(cell: Cell, site: Site, attempt: int = 1) -> dict[str, Any]:
    """Return the resources that the cell's job requests in its `attempt`, by the names of Snakemake's resources.

    GPUs are requested per node: a total may be split unevenly over nodes. `mpi` is set and empty, so that the job's
    command is not wrapped in a srun of one task, which would limit every srun within it.
    """
    placement = place(cell, site)
    found: dict[str, Any] = {
        "mpi": "",
        "nodes": placement.nodes,
        "cpus_per_task": site.cpus_per_rank,
        "mem_mb": min(placement.ranks_per_node * site.memory_mb_per_rank * attempt, site.most_memory_mb or 10**9),
        "runtime": min(site.minutes * attempt, site.longest_minutes),
        "slurm_extra": f"--ntasks-per-node={placement.ranks_per_node} {account_option(site)}".strip(),
    }
    if site.gpus_per_node:
        return found | {"gres": f"{site.gres}:{placement.ranks_per_node}"}
    return found | {"tasks": placement.nodes * placement.ranks_per_node}


def account_option(site: Site | None) -> str:
    """Return the option of sbatch that names the account; nothing if the site names none.

    Snakemake's resource slurm_account is not used: each job would look it up in the accounting database, which may be
    down. The executor accepts this form, without a blank, and it comes after the account that the executor guesses.
    """
    return f"-A{shlex.quote(site.account)}" if site is not None and site.account else ""
