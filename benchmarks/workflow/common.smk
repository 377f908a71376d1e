# Config, checked before anything runs, and what the rules share.
import os
import shlex
import sys
from functools import cache
from pathlib import Path

from snakemake.logging import logger
from snakemake.utils import validate

from benchmarks.cells import read_yaml
from benchmarks.extends import extend
from benchmarks.cluster.lost import lost_nodes
from benchmarks.cluster.placement import job_resources
from benchmarks.record import RecordError
from benchmarks.workflow.content import LIBRARY, REPORT, TRAINING, check_syntax, content_hash
from benchmarks.workflow.image import get_image, start_engine
from benchmarks.workflow.lock import FolderInUse, lock_folder
from benchmarks.workflow.screen import hide_noise, stop
from benchmarks.workflow.cluster import check_places, get_site
from benchmarks.workflow.settings import (
    RUNS,
    check_records,
    find_cell,
    get_cells,
    get_config,
    get_packages,
    get_pretrained,
    get_run_name,
    keep_earlier,
    write_specs,
)
from resireduce.errors import ConfigError

# The interpreter that runs this one, also where no virtual environment is active.
os.environ.update(PATH=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]))
hide_noise(logger, workflow.output_settings.quiet or ())

# Bad input ends the run here, with one line and no traceback; the schema is for editors and has the last word.
try:
    whole = extend(config, Path(workflow.configfiles[-1]).parent, read_yaml)
    config.clear()
    config.update(whole)
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
    validate(config, "../config/schema/run.schema.json")
    try:
        check_records(RUN, CELLS)
    except RecordError as error:
        stop(error)
LOCKS = []


wildcard_constraints:
    run=re.escape(config["run"]),
    # Not all of their names: Snakemake searches the pattern ten times for each cell, which took 20 s for 5,860 cells.
    cell="[^/]+",
    model="[^/]+",


# Once for a model, not for each of its cells: it reads source files and the versions of packages.
@cache
def find_pretrained(model):
    return get_pretrained(model, IMAGE.content if IMAGE else None)


# ancient() keeps file times out of it, but only for a file that is there: what ancient() marks is not looked at any further
# when the job that makes it must run.
def get_weights(wildcards):
    pretrained = find_pretrained(find_cell(CELLS, wildcards.cell).model)
    if pretrained and os.path.exists(pretrained):
        return ancient(pretrained)
    return pretrained or []


onstart:
    if workflow.is_main_process:
        try:
            check_syntax((*LIBRARY, *TRAINING))
            LOCKS.append(lock_folder(RUN))
            jobs = {job.rule.name for job in workflow.dag.needrun_jobs()}
            if IMAGE and IMAGE.needs_engine(jobs):
                LOCKS.append(start_engine())
            if IMAGE:
                IMAGE.check_stored(jobs)
        except (ConfigError, FolderInUse) as error:
            stop(error)
        write_specs(RUN, config, CELLS.values())
        to_run = [job.wildcards.cell for job in workflow.dag.needrun_jobs() if job.rule.name == "cell"]
        keep_earlier(RUN, to_run)
        os.environ.update(CELLS_TO_RUN=str(len(to_run)))
        print(
            f"{RUN}: {len(CELLS)} cells, {len(to_run)} to run{IMAGE or ''}. Ctrl-C stops; the same command goes on.",
            flush=True,
        )
