"""claims.yaml: what is wrong in it is said in one line, before anything is read."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.analysis.claims.load_claims import load_claims
from resireduce.errors import ConfigError

GOOD: dict[str, Any] = {
    "noise": 0.5,
    "margins": {"accuracy": {"against": "fig3-resnet50-stored-100", "tested": "fig3-resnet50-stored-52"}},
    "counts": {"vgg19": {"parameters": 10, "residuals": 9, "saved": 5, "copies": 1}},
    "stand_ins": {"vgg19": "vgg-digits"},
    "claims": [
        {
            "id": "one",
            "source": "Table 9",
            "statement": "{model} saves {published} %",
            "models": ["vgg19"],
            "published": "exp1-local-saving-vgg19",
            "cells": {"all": {"world_size": 8}, "tested": {"scheme": "w+2d"}, "against": {"scheme": "baseline"}},
            "test": {"kind": "saving", "tolerance": 1},
            "command": "make run",
            "small": {"statement": "{model} saves {at_least} %", "test": {"tolerance": None, "at_least": 5}},
        }
    ],
}


def written(folder: Path, values: Any) -> Path:
    path = folder / "claims.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


def with_claim(**change: Any) -> dict[str, Any]:
    return {**GOOD, "claims": [{k: v for k, v in {**GOOD["claims"][0], **change}.items() if v is not None}]}


def test_a_claim_and_its_small_scope(tmp_path: Path) -> None:
    (claim,) = load_claims(written(tmp_path, GOOD)).claims
    assert claim.paper.statement == "vgg19 saves 14.8 %" and claim.paper.models == ("vgg19",)
    assert claim.paper.roles["tested"] == {"world_size": 8, "scheme": "w+2d"}
    assert claim.small is not None and claim.small.statement == "vgg-digits saves 5 %"
    assert claim.small.roles["tested"] == {"scheme": "w+2d"}, "on as many ranks as there are"
    assert (claim.small.models, claim.small.command) == (("vgg-digits",), "make run")


ON_ONE_GPU = {"kind": "one_gpu", "measure": "saving", "model": "vgg19", "tested": {"scheme": "w+2d"}, "tolerance": 1}
ON_ONE_GPU |= {"rung": "allocated"}
BAD: list[tuple[dict[str, Any], str]] = [
    ({**GOOD, "claim": []}, "claims.yaml key: 'claim' is not known (did you mean 'claims'?); allowed: claims, counts,"),
    ({**GOOD, "noise": "x"}, "the values before the claims: ValueError: "),
    (with_claim(id=None), "claims entry 1: entry: KeyError: 'id'"),
    (
        with_claim(test={"kind": "save"}),
        "claim 'one': test: kind: 'save' is not known (did you mean 'share'?); allowed: ",
    ),
    (with_claim(published="exp1"), "claim 'one': published: value: 'exp1' is not known"),
    (with_claim(models=["vgg20"]), "claim 'one': cells: tested: model: 'vgg20' is not known (did you mean 'vgg19'"),
    (with_claim(each={"vgg19": None}), "claim 'one': each: give either `each`, one claim a model, or `models`"),
    (with_claim(cells={"tested": {}}), "claim 'one': cells: tested; kind saving has tested, against"),
    (with_claim(statement="{colour}"), "claim 'one': statement: KeyError: 'colour'"),
    (with_claim(test=ON_ONE_GPU | {"rung": None}), "claim 'one': test: rung: None is not known"),
    (with_claim(test=ON_ONE_GPU | {"at_least": 1}), "claim 'one': test: tolerance: give it beside a"),
]


@pytest.mark.parametrize(("values", "message"), BAD, ids=[message[:60] for _, message in BAD])
def test_bad_entries_are_named_in_one_line(tmp_path: Path, values: Any, message: str) -> None:
    path = written(tmp_path, values)
    with pytest.raises(ConfigError) as error:
        load_claims(path)
    assert str(error.value).startswith(f"{path}: {message}") and "\n" not in str(error.value)
