"""Outcomes as a JUnit file: one test case for each setting and quantity."""

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from benchmarks.regression.compare import Outcome
from benchmarks.regression.names import QUANTITY_WORDS
from benchmarks.regression.screen import text_of

UNFIT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no way to write."""


def junit(outcomes: Sequence[Outcome], run: str, seconds: float) -> bytes:
    """Return a JUnit file; what is worse or a problem fails, what could not be compared is skipped."""
    failures = sum(one.fails for one in outcomes)
    skipped = sum(one.verdict == "skipped" for one in outcomes)
    counts = {"tests": str(len(outcomes)), "failures": str(failures), "errors": "0", "skipped": str(skipped)}
    counts |= {"time": f"{seconds:.3f}"}
    root = ElementTree.Element("testsuites", {"name": "benchmarks check", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _fit(f"check of {run}"), **counts})
    for one in outcomes:
        names = {"classname": _fit(one.name), "name": _fit(f"{one.label}: {QUANTITY_WORDS[one.quantity]}")}
        case = ElementTree.SubElement(suite, "testcase", {**names, "time": "0"})
        text = _fit(f"{one.label}: {text_of(one)}")
        if one.fails:
            ElementTree.SubElement(case, "failure", {"message": text, "type": one.verdict}).text = text
        elif one.verdict == "skipped":
            ElementTree.SubElement(case, "skipped", {"message": text})
        elif one.verdict != "same":
            ElementTree.SubElement(case, "system-out").text = text
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def _fit(text: str) -> str:
    return UNFIT.sub("\N{REPLACEMENT CHARACTER}", text)
