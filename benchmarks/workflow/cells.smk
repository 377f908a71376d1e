# One training run each. A cell runs again when the content of its spec, of the library or of the training code changes,
# never because a file is younger. (ancient() for files that are there only: what it marks is not looked at further when the
# job that makes it must run.)
def get_checkpoint(wildcards):
    pretrained = get_pretrained(CELLS[wildcards.cell].model)
    if pretrained and os.path.exists(pretrained):
        return ancient(pretrained)
    return pretrained or []


rule cell:
    input:
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
        "if line=$({PYTHON:q} -m benchmarks run --cell {RUN:q}/specs/{wildcards.cell}.json --output {output:q} {params.checkpoint} 2> {log:q}); "
        "then done=$(find {RUN}/cells -name '*.json' ! -name '*.failed.json' -newer {RUN}/.lock | wc -l); "
        'echo "[$done/{PROGRESS[todo]}] $line"; '
        'else echo "FAILED {wildcards.cell}: $(tail -n 1 {log:q}) (see {log})"; exit 1; fi'
