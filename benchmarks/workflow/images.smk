# Images that cells run in, built once for all runs: the name of the file holds a hash of all that an image is built from.


localrules:
    image,
    sif,


wildcard_constraints:
    image="[a-z0-9]+",
    content="[0-9a-f]{12}",


# As with weights, file times are kept out of it where the files are there.
def get_image_files(wildcards):
    return [ancient(path) if os.path.exists(path) else path for path in (IMAGE.files if IMAGE else [])]


# Called again when the image is built; Snakemake neither keeps nor compares what functions of `input` return. For a cell that
# has run before it would keep what this said when nothing was built yet, which it remembers: it is made to ask again.
def get_digest(wildcards):
    remembered = getattr(type(workflow.persistence), "_params", None)
    if IMAGE.is_built and hasattr(remembered, "cache_clear"):
        remembered.cache_clear()
    return IMAGE.state()


rule image:
    output:
        "results/cache/images/{image}-{content}.json",
    log:
        "results/cache/images/{image}-{content}.log",
    shell:
        "echo 'Building image {wildcards.image}, once for all runs (minutes; see {log}) ...'; "
        "python -m benchmarks image build {wildcards.image} --entry {output:q} > {log:q} 2>&1 "
        "|| {{ echo 'FAILED image {wildcards.image}, see {log}:'; tail -n 3 {log:q}; exit 1; }}"


rule sif:
    input:
        "results/cache/images/{image}-{content}.json",
    output:
        "results/cache/images/{image}-{content}.sif",
    log:
        "results/cache/images/{image}-{content}.sif.log",
    shell:
        "echo 'Writing image {wildcards.image} for apptainer, once for all runs (minutes; see {log}) ...'; "
        "python -m benchmarks image export {wildcards.image} --entry {input:q} --sif {output:q} > {log:q} 2>&1 "
        "|| {{ echo 'FAILED export of {wildcards.image}, see {log}:'; tail -n 3 {log:q}; exit 1; }}"
