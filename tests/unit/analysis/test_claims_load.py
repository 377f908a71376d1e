"""claims.yaml: what a claim and its small scope come to, and what is wrong in it is said with the claim's name."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.analysis.claims.kinds import load_claims
from resireduce.errors import ConfigError

CLAIM: dict[str, Any] = {
    "id": "one",
    "source": "Table 9",
    "statement": "{title}, {model}, saves {published} %",
    "models": ["vgg19"],
    "published": "exp1-local-saving-vgg19",
    "cells": {"all": {"world_size": 8}, "tested": {"scheme": "w+2d"}, "against": {"scheme": "baseline"}},
    "test": {"kind": "saving", "tolerance": 1},
    "command": "make run RUN=paper",
    "small": {"statement": "{model} saves {at_least} %", "test": {"at_least": 5}, "command": "make run"},
}


def written(folder: Path, *claims: dict[str, Any]) -> Path:
    counts = {"vgg19": {"title": "VGG-19", "parameters": 10, "residuals": 9, "saved": 5, "copies": 1}}
    values = {"noise": 0.5, "margins": {}, "counts": counts, "stand_ins": {"vgg19": "vgg-digits"}, "claims": claims}
    path = folder / "claims.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


def test_a_claim_and_its_small_scope(tmp_path: Path) -> None:
    (claim,) = load_claims(written(tmp_path, CLAIM)).claims
    assert claim.paper.statement == "VGG-19, vgg19, saves 14.8 %" and claim.paper.models == ("vgg19",)
    assert claim.paper.roles["tested"] == {"world_size": 8, "scheme": "w+2d"}
    assert claim.small is not None and claim.small.statement == "vgg-digits saves 5 %"
    assert claim.small.roles["tested"] == {"scheme": "w+2d"}, "on as many ranks as there are"
    assert (claim.small.models, claim.small.command) == (("vgg-digits",), "make run")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"test": {"kind": "save"}}, "test: kind: 'save' is not known (did you mean 'same'?); allowed: "),
    ({"test": {"kind": "saving", "tolerence": 1}}, "test key: 'tolerence' is not known (did you mean 'tolerance'?)"),
    ({"published": "exp1"}, "KeyError: 'exp1'"),
    ({"cells": {"tested": {}}}, "cells: tested; kind saving has tested, against"),
    ({"statement": "{colour}"}, "KeyError: 'colour'"),
    ({"id": "two"}, "id: 'two' is there twice"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message[:60] for _, message in BAD])
def test_a_bad_claim_is_named_in_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = written(tmp_path, {**CLAIM, "id": "two"}, {**CLAIM, **change})
    with pytest.raises(ConfigError) as error:
        load_claims(path)
    name = change.get("id", "one")
    assert str(error.value).startswith(f"{path}: claim {{'id': '{name}', ") and "\n" not in str(error.value)
    assert message in str(error.value)
