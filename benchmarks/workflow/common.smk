# Config, checked before anything runs, and what the rules share.
import os
import sys

from snakemake.logging import logger
from snakemake.utils import validate

from benchmarks.workflow.content import LIBRARY, REPORT, TRAINING, content_hash
from benchmarks.workflow.lock import FolderInUse, lock_folder
from benchmarks.workflow.screen import hide_noise, stop
from benchmarks.workflow.settings import RUNS, get_cells, get_config, get_pretrained, get_run_name, write_specs
from resireduce.errors import ConfigError

PYTHON = sys.executable
hide_noise(logger, workflow.output_settings.quiet or ())

# Bad input ends the run here, with one line and no traceback; the schema is for editors and has the last word.
try:
    config["run"] = get_run_name(config)
    CELLS = get_cells(config)
except ConfigError as error:
    stop(f"{' '.join(map(os.path.relpath, workflow.configfiles))}: {error}")
validate(config, "../config/schema/run.schema.json")

RUN = f"{RUNS}/{config['run']}"
LOCKS = []
PROGRESS = {"todo": len(CELLS)}


wildcard_constraints:
    cell="|".join(map(re.escape, CELLS)),


onstart:
    if workflow.is_main_process:
        try:
            LOCKS.append(lock_folder(RUN))
        except FolderInUse as error:
            stop(error)
        write_specs(RUN, config, CELLS.values())
        PROGRESS["todo"] = sum(job.rule.name == "cell" for job in workflow.dag.needrun_jobs())
        print(
            f"{RUN}: {len(CELLS)} cells, {PROGRESS['todo']} to run. Ctrl-C stops; the same command goes on.",
            flush=True,
        )
