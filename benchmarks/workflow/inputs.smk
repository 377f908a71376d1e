# What a run starts from.
localrules:
    specs,


rule specs:
    output:
        config=f"{RUN}/config.json",
        specs=expand(f"{RUN}/specs/{{cell}}.json", cell=CELLS),
    log:
        f"{RUN}/logs/specs.log",
    params:
        config={key: config[key] for key in ("run", "defaults", "matrix") if key in config},
        cells=[cell.to_dict() for cell in CELLS.values()],
    script:
        "specs.py"


# Once for all cells and all runs: the file's name holds a hash of the recipe, the code and the data's packages.
rule pretrained:
    output:
        "results/cache/{model}-{content}.pt",
    log:
        "results/cache/{model}-{content}.log",
    threads: 2
    shell:
        "echo 'Pretraining {wildcards.model}, once for all its cells ...'; "
        "{PYTHON:q} -m benchmarks pretrain --model {wildcards.model} --output {output:q} > {log:q} 2>&1 "
        "|| {{ echo 'FAILED pretraining of {wildcards.model}, see {log}:'; tail -n 3 {log:q}; exit 1; }}"
