# One training run each. A cell runs again when the content of its spec, of the library or of the training code changes, or
# the version of a package that they compute with, or the digest of the image that they run in; never because a file is
# younger. The wildcard `run` is there for Slurm: a job's comment has it, by which `make resume` knows whose the job is.
rule cell:
    input:
        weights=get_weights,
        image=get_image_files,
    output:
        f"{RUNS}/{{run}}/cells/{{cell}}.json",
    log:
        f"{RUNS}/{{run}}/logs/{{cell}}.log",
    threads: 2
    resources:
        **get_job_resources(),
        launcher="here",
    params:
        spec_file=f"{RUN}/specs/{{cell}}.json",
        keep=f"{RUNS}/{{run}}/finished/{{cell}}.json",
        spec=lambda wildcards: CELLS[wildcards.cell].to_dict(),
        library=f"resireduce/ {content_hash(LIBRARY)}",
        training=f"benchmarks/ {content_hash(TRAINING)}",
        packages=get_packages() if IMAGE is None else get_digest,
        options=lambda wildcards, input: " ".join(
            [f"--weights {input.weights}"] * bool(input.weights)
            + ([] if IMAGE is None else [IMAGE.options])
            + ([] if SITE is None else [f"--site {shlex.quote(config['site'])}"])
        ),
    shell:
        "if line=$(python -m benchmarks run --cell {params.spec_file:q} --output {output:q} "
        "--keep {params.keep:q} --launcher {resources.launcher} {params.options} 2> {log:q}); "
        "then run={RUNS}/{wildcards.run}; "
        "done=$(find $run/cells/ -name '*.json' ! -name '*.failed.json' -newer $run/.lock | wc -l); "
        'echo "[$done/${{CELLS_TO_RUN:-?}}] $line"; echo "$line" >> {log:q}; '
        'else echo "FAILED {wildcards.cell}: $(tail -n 1 {log:q}) (see {log})"; exit 1; fi'
