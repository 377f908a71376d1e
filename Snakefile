# The workflow: from a matrix of cells to records, tables, figures and one page.
#   snakemake --cores all                      the smoke matrix, results/runs/smoke
#   snakemake -n                               what would run, and why
#   --configfile FILE --config run=NAME        another matrix, another folder
#   --config part=NAME,...                     parts of a matrix
#   --config runtime=docker                    in an image, built first; image=NAME
from snakemake.utils import min_version

min_version("9.27")


# Without a file of one's own, the smoke matrix.
if not workflow.configfiles:

    configfile: "benchmarks/config/smoke.yaml"


# Config, cells, content hashes, the lock of the run folder.
include: "benchmarks/workflow/common.smk"
# What cells may run in.
include: "benchmarks/workflow/images.smk"
# What jobs of a cluster ask for.
include: "benchmarks/workflow/slurm.smk"
# What some cells start from.
include: "benchmarks/workflow/pretrained.smk"
# One training run each.
include: "benchmarks/workflow/cells.smk"
# Tables, figures, the page.
include: "benchmarks/workflow/report.smk"


rule all:
    default_target: True
    input:
        get_records,
        rules.report.output,
