# Tables, figures and one page, from the records alone.
from benchmarks.report.tables import TABLES


localrules:
    report,


rule report:
    input:
        cells=expand(f"{RUN}/cells/{{cell}}.json", cell=CELLS),
    output:
        expand(f"{RUN}/tables/{{table}}.{{form}}", table=TABLES, form=("csv", "md")),
        expand(f"{RUN}/figures/{{table}}.png", table=TABLES),
        page=f"{RUN}/report.html",
    log:
        f"{RUN}/logs/report.log",
    params:
        config=get_config(config),
        report=f"benchmarks/report {content_hash(REPORT)}",
    shell:
        "python -m benchmarks report --run $(dirname {output.page:q}) > {log:q} 2>&1 "
        "|| {{ echo 'FAILED report, see {log}:'; tail -n 3 {log:q}; exit 1; }}"


onsuccess:
    for watcher in WATCHERS:
        watcher.look()
    if os.path.exists(f"{RUN}/report.html"):
        print(f"Report: {RUN}/report.html", flush=True)


# Some cells failed: show what there is, and what is missing and why.
onerror:
    for watcher in WATCHERS:
        watcher.look()
    shell("python -m benchmarks report --run {RUN:q} && python -m benchmarks report --run {RUN:q} --show")
