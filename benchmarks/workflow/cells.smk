# One training run each. A cell runs again when the content of its spec, of the library or of the training code changes, or
# the version of a package that they compute with, or the digest of the image that they run in; never because a file is
# younger.
rule cell:
    input:
        weights=get_weights,
        image=get_image_files,
    output:
        f"{RUN}/cells/{{cell}}.json",
    log:
        f"{RUN}/logs/{{cell}}.log",
    threads: 2
    params:
        spec_file=f"{RUN}/specs/{{cell}}.json",
        spec=lambda wildcards: CELLS[wildcards.cell].to_dict(),
        library=f"resireduce/ {content_hash(LIBRARY)}",
        training=f"benchmarks/ {content_hash(TRAINING)}",
        packages=get_packages() if IMAGE is None else get_digest,
        options=lambda wildcards, input: " ".join(
            [f"--weights {input.weights}"] * bool(input.weights) + ([] if IMAGE is None else [IMAGE.options])
        ),
    shell:
        "if line=$(python -m benchmarks run --cell {params.spec_file:q} --output {output:q} {params.options} 2> {log:q}); "
        "then cd $(dirname {output:q}); done=$(find . -name '*.json' ! -name '*.failed.json' -newer ../.lock | wc -l); "
        'echo "[$done/${{CELLS_TO_RUN:-?}}] $line"; '
        'else echo "FAILED {wildcards.cell}: $(tail -n 1 {log:q}) (see {log})"; exit 1; fi'
