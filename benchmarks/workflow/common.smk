# Config, checked before anything runs, and what the rules share.
import os
import shlex
import sys
from functools import cache, partial
from pathlib import Path

from snakemake.logging import logger

from benchmarks.core.config_reader import read_yaml
from benchmarks.core.content import LIBRARY, REPORT, TRAINING, content_hash, get_packages, get_pretrained
from benchmarks.core.files import lock
from benchmarks.core.paths import RUNS
from benchmarks.core.record import RecordError
from benchmarks.core.run_config import (
    check_records,
    get_cells,
    get_config,
    get_run_name,
    keep_earlier,
    write_specs,
)
from benchmarks.launching.slurm.step import account_option, job_resources
from benchmarks.launching.slurm.queue import LOST, lost_nodes
from benchmarks.launching.slurm.working import forget
from benchmarks.workflow.resume import check_leftovers
from benchmarks.workflow.run_progress import FailedTries, Finished, hide_noise, stop
from benchmarks.workflow.where import check_places, get_image, get_site
from resireduce.errors import ConfigError

# The interpreter that runs this one, also where no virtual environment is active.
os.environ.update(PATH=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]))
hide_noise(logger, workflow.output_settings.quiet or ())

# Bad input ends the run here, with one line and no traceback.
try:
    for path in workflow.configfiles:
        read_yaml(Path(path))  # refuses a key that is there twice, of which Snakemake takes the last
    config["run"] = get_run_name(config)
    SITE = get_site(config, workflow.resource_settings.overwrite_resources)
    CELLS = get_cells(config)
    if SITE is not None:
        check_places(CELLS.values(), SITE)
    IMAGE = get_image(config)
except ConfigError as error:
    stop(f"{' '.join(map(os.path.relpath, workflow.configfiles))}: {error}")

RUN = f"{RUNS}/{config['run']}"
# Not again in each job, which reads all of this too.
if workflow.is_main_process:
    try:
        check_records(RUN, CELLS)
    except RecordError as error:
        stop(error)
LOCKS = []
# What looks after cells that finish.
WATCHERS = []


wildcard_constraints:
    run=re.escape(config["run"]),
    # Not all of their names: Snakemake searches the pattern ten times for each cell, which took 20 s for 5,860 cells.
    cell="[^/]+",
    model="[^/]+",


# Once for a model, not for each of its cells: it reads source files and the versions of packages.
find_pretrained = cache(get_pretrained)


# ancient() keeps file times out of it, but only for a file that is there: what ancient() marks is not looked at any further
# when the job that makes it must run.
def get_weights(wildcards):
    pretrained = find_pretrained(CELLS[wildcards.cell].model)
    if pretrained and os.path.exists(pretrained):
        return ancient(pretrained)
    return pretrained or []


onstart:
    if workflow.is_main_process:
        try:
            LOCKS.append(lock(Path(RUN) / ".lock", RUN))
            check_leftovers(Path(RUN))
            jobs = {job.rule.name for job in workflow.dag.needrun_jobs()}
            cell_jobs = {job.wildcards.cell: job for job in workflow.dag.needrun_jobs() if job.rule.name == "cell"}
            if IMAGE:
                LOCKS.append(IMAGE.prepare(jobs))
        except (ConfigError, OSError) as error:
            stop(error)
        write_specs(RUN, config, CELLS.values())
        keep_earlier(RUN, cell_jobs)
        (Path(RUN) / LOST).unlink(missing_ok=True)
        forget(Path(RUN) / f"finished/{name}.json" for name in CELLS if name not in cell_jobs)
        os.environ.update(CELLS_TO_RUN=str(len(cell_jobs)))
        if SITE is not None:
            logger.addHandler(FailedTries())
        ends = {name: partial(workflow.dag.finished, job) for name, job in cell_jobs.items()}
        WATCHERS.append(Finished(Path(RUN), ends, say=SITE is not None))
        again = "the same command goes on" if SITE is None else f"make resume RUN={config['run']} goes on"
        print(
            f"{RUN}: {len(CELLS)} cells, {len(cell_jobs)} to run{IMAGE or ''}. Ctrl-C stops; {again}.",
            flush=True,
        )
