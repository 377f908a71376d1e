"""What scontrol prints on several clusters, in the forms of Slurm 22.05, 23.11 and 24.05, and the site file."""

from benchmarks.core.paths import ROOT
from benchmarks.launching.slurm.site import DEFAULT_FILE

NODE_22 = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=8  CPUAlloc=0 CPUEfctv=8 CPUTot=8 CPULoad=2.41 "
    "AvailableFeatures=(null) ActiveFeatures=(null) Gres={gres} NodeAddr=10.77.0.11 NodeHostName={name} "
    "Version=22.05.8 "
    "OS=Linux 6.1.0 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=32000 AllocMem=0 FreeMem=21567 Sockets=1 Boards=1 "
    "State=IDLE ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions={partitions}  "
    "BootTime=2024-05-01T02:01:09 SlurmdStartTime=2024-05-01T02:02:09 LastBusyTime=2024-05-01T02:02:09 "
    "CfgTRES=cpu=8,mem=32000M,billing=8 AllocTRES= CapWatts=n/a CurrentWatts=0 AveWatts=0"
)
NODE_23 = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=32  CPUAlloc=0 CPUEfctv={cpus} CPUTot=128 CPULoad=0.10 "
    "AvailableFeatures=ib ActiveFeatures=ib Gres={gres} GresDrain=N/A GresUsed=gpu:a100:0(IDX:N/A) NodeAddr={name} "
    "NodeHostName={name} Version=23.11.4 OS=Linux 5.14.0-362.el9.x86_64 #1 SMP Thu Nov 9 09:37:13 UTC 2023  "
    "RealMemory={memory} AllocMem=0 FreeMem=500000 Sockets=2 Boards=1 MemSpecLimit=1024 State={state} ThreadsPerCore=2 "
    "TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions={partitions}  CfgTRES=cpu=128,mem=515000M,gres/gpu=4 "
    "AllocTRES= Reason={reason}"
)
PARTITION = (
    "PartitionName={name} AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default={default} QoS=N/A "
    "DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes={nodes} MaxTime={time} "
    "MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=n[1-4] PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO "
    "OverSubscribe=NO OverTimeLimit=NONE PreemptMode=OFF State={state} TotalCPUs=32 TotalNodes=4 "
    "SelectTypeParameters=NONE JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerNode={memory} "
    "TRES=cpu=32,mem=125G,node=4,billing=32,gres/gpu=8"
)


def partition(
    name: str,
    default: str = "NO",
    nodes: str = "UNLIMITED",
    time: str = "UNLIMITED",
    state: str = "UP",
    memory: str = "UNLIMITED",
) -> str:
    return PARTITION.format(name=name, default=default, nodes=nodes, time=time, state=state, memory=memory)


def node_22(name: str, gres: str = "gpu:a100:2", partitions: str = "gpu") -> str:
    return NODE_22.format(name=name, gres=gres, partitions=partitions)


def node_23(
    name: str,
    gres: str = "gpu:a100:4(S:0-1)",
    state: str = "IDLE",
    partitions: str = "gpu",
    cpus: int = 126,
    memory: int = 515000,
    reason: str = "none [root@2024-05-01T02:01:09]",
) -> str:
    return NODE_23.format(
        name=name, gres=gres, state=state, partitions=partitions, cpus=cpus, memory=memory, reason=reason
    )


SMALL = {
    "partition": partition("gpu", default="YES"),
    "node": "\n".join(node_22(f"node{number}") for number in range(1, 5)),
}
"""Slurm 22.05: the cluster on one machine."""
MIXED = {
    "partition": "\n".join(
        [
            partition("cpu", default="YES", time="7-00:00:00"),
            partition("gpu", nodes="4", time="1-00:00:00", memory="400000"),
            partition("old", time="02:00:00"),
            partition("broken", state="DOWN"),
        ]
    ),
    "node": "\n".join(
        [
            *(node_23(f"g{number}", partitions="gpu,broken") for number in range(1, 4)),
            node_23("g4", "gpu:a100:8(S:0-1)", "MIXED+CLOUD"),
            node_23("g5", state="DOWN*", reason="Not responding [slurm@2024-05-12T10:00:00]"),
            node_23("g6", state="IDLE+DRAIN", reason="gpu 3 = bad [admin@2024-05-12T10:00:00]"),
            *(node_23(f"c{number}", "(null)", "IDLE+CLOUD+POWERED_DOWN", "cpu") for number in range(1, 3)),
            node_23("v1", "gpu:v100:2,nvme:1", "ALLOCATED", "old", cpus=40, memory=191000),
        ]
    ),
}
"""Slurm 23.11: four partitions, several kinds of nodes, some of them down."""
CPUS = {
    "partition": partition("batch", default="YES", time="30:00"),
    "node": "\n".join(node_22(f"n{number}", "(null)", partitions="batch") for number in range(1, 3)),
}
"""Slurm 24.05: no GPUs, half an hour at most."""


def shipped_site() -> str:
    """Return the site file that the project comes with."""
    return (ROOT / DEFAULT_FILE).read_text(encoding="utf-8")
