# Cells as jobs of a Slurm cluster: with the profile in slurm/, which sets the resource `launcher` of rule cell.


# What a cell's job asks for, each a function of the cell and of how often it was tried.
def get_job_resources():
    def resource(name):
        return lambda wildcards, attempt: job_resources(CELLS[wildcards.cell], SITE, attempt)[name]

    def extra(wildcards, attempt):
        wanted = job_resources(CELLS[wildcards.cell], SITE, attempt)
        lost = lost_nodes(Path(RUN), wildcards.cell, wanted["nodes"]) if workflow.is_main_process else []
        return wanted["slurm_extra"] + (f" --exclude={','.join(lost)}" if lost else "")

    if SITE is None:
        return {}
    found = {name: resource(name) for name in job_resources(next(iter(CELLS.values())), SITE)}
    return found | {"slurm_extra": extra}
