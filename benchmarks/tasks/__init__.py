"""Public names of the tasks, filled with one line per task: name -> "module:Class".

A class takes a `benchmarks.tasks.base.Setting` and keeps the promises of `benchmarks.tasks.base.Task`.  This module
imports nothing, so that naming a task costs no start-up time.
"""

TASKS: dict[str, str] = {
    "digits": "benchmarks.tasks.digits:Digits",
    "bytes": "benchmarks.tasks.bytepairs:BytePairs",
    "questions": "benchmarks.tasks.questions:Questions",
    "cifar": "benchmarks.tasks.cifar:Cifar",
    "imagenet": "benchmarks.tasks.imagenet:ImageNet",
    "imagenet-half": "benchmarks.tasks.imagenet:ImageNetHalf",
    "squad": "benchmarks.tasks.squad_task:Squad",
    "wikitext": "benchmarks.tasks.wikitext:WikiText",
}
