# Tables, figures and one page, from the records alone.
from benchmarks.analysis.tables.table_list import FIGURE_FORMS, TRADE_OFF, all_tables


localrules:
    report,


# A function, so that a cell's job, which reads these files too, does not make 5,000 names that it has no use for.
def get_records(wildcards):
    return [f"{RUN}/cells/{cell}.json" for cell in CELLS]


rule report:
    input:
        cells=get_records,
    output:
        expand(f"{RUN}/tables/{{table}}.{{form}}", table=all_tables(), form=("csv", "md", "tex")),
        expand(f"{RUN}/figures/{{figure}}.{{form}}", figure=(*all_tables(), TRADE_OFF), form=FIGURE_FORMS),
        expand(f"{RUN}/{{claims}}", claims=("claims.json", "tables/claims.csv", "tables/claims.md")),
        page=f"{RUN}/report.html",
    log:
        f"{RUN}/logs/report.log",
    params:
        config=get_config(config),
        report=f"benchmarks/analysis {content_hash(REPORT)}",
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
