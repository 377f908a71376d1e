# Models that cells start from, trained once for all cells and all runs: the name of the file holds a hash of the recipe,
# the code and the packages that the data come from.
rule pretrained:
    output:
        "results/cache/{model}-{content}.pt",
    log:
        "results/cache/{model}-{content}.log",
    threads: 1
    resources:
        slurm_extra=account_option(SITE),
    shell:
        "echo 'Pretraining {wildcards.model}, once for all its cells ...'; "
        "python -m benchmarks data pretrain --model {wildcards.model} --output {output:q} > {log:q} 2>&1 "
        "|| {{ echo 'FAILED pretraining of {wildcards.model}, see {log}:'; tail -n 3 {log:q}; exit 1; }}"
