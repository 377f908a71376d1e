# One training run each. A cell runs again when the content of its spec, of the library or of the training code changes;
# ancient() keeps file times out of it.
def get_checkpoint(wildcards):
    pretrained = get_pretrained(CELLS[wildcards.cell].model)
    return ancient(pretrained) if pretrained else []


rule cell:
    input:
        spec=ancient(f"{RUN}/specs/{{cell}}.json"),
        checkpoint=get_checkpoint,
    output:
        f"{RUN}/cells/{{cell}}.json",
    log:
        f"{RUN}/logs/{{cell}}.log",
    threads: 2
    params:
        spec=lambda wildcards: CELLS[wildcards.cell].to_dict(),
        library=f"resireduce/ {content_hash(LIBRARY)}",
        training=f"benchmarks/ {content_hash(TRAINING)}",
        checkpoint=lambda wildcards, input: f"--checkpoint {input.checkpoint}" if input.checkpoint else "",
    shell:
        "if line=$({PYTHON:q} -m benchmarks run --cell {input.spec:q} --output {output:q} {params.checkpoint} 2> {log:q}); "
        "then done=$(find {RUN}/cells -name '*.json' ! -name '*.failed.json' -newer {RUN}/.lock | wc -l); "
        'echo "[$done/{PROGRESS[todo]}] $line"; '
        'else echo "FAILED {wildcards.cell}: $(tail -n 1 {log:q}) (see {log})"; exit 1; fi'
