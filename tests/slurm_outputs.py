"""What sinfo prints on several clusters, and the site file."""

from benchmarks.core.paths import ROOT
from benchmarks.launching.slurm.site import DEFAULT_FILE

SMALL = "\n".join(f"gpu*|up|infinite|1-infinite|node{number}|8|32000|1|idle|gpu:a100:2" for number in range(1, 5))
"""The cluster on one machine."""
G = "126|514000|2"
MIXED = "\n".join(
    [
        *(f"gpu|up|1-00:00:00|1-4|g{number}|{G}|idle|gpu:a100:4(S:0-1)" for number in (1, 2, 3)),
        f"gpu|up|1-00:00:00|1-4|g4|{G}|mixed|gpu:a100:8(S:0-1)",
        f"gpu|up|1-00:00:00|1-4|g5|{G}|down*|gpu:a100:4(S:0-1)",
        f"gpu|up|1-00:00:00|1-4|g6|{G}|drained|gpu:a100:4(S:0-1)",
        *(f"cpu*|up|7-00:00:00|1-infinite|c{number}|{G}|idle~|(null)" for number in (1, 2)),
        "old|up|2:00:00|1-infinite|v1|40|191000|2|allocated|gpu:v100:2,nvme:1",
        f"broken|down|infinite|1-infinite|g1|{G}|idle|gpu:a100:4(S:0-1)",
    ]
)
"""Four partitions, several kinds of nodes, some of them down or asleep."""
CPUS = "\n".join(f"batch*|up|30:00|1-infinite|n{number}|8|32000|1|idle|(null)" for number in (1, 2))
"""No GPUs, half an hour at most."""


def shipped_site() -> str:
    """Return the site file that the project comes with."""
    return (ROOT / DEFAULT_FILE).read_text(encoding="utf-8")
