"""The audit of the images' packages: what was not asked is never "none found"."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from benchmarks.core.requirements import Pin
from benchmarks.images.audit import audit_command as cli
from benchmarks.images.audit import audit_tools as tools
from benchmarks.images.audit import debian_packages, python_packages
from benchmarks.images.audit.listing import BAD, CLEAN, NOT_RUN, Listing, Vulnerability, read_debsbom, read_pip_audit
from resireduce.errors import ConfigError

CVE = {"id": "CVE-2024-22195", "fix_versions": ["3.1.3"], "aliases": ["GHSA-h5c8-rqwp-cp95"]}
SKIPPED = "Dependency not found on PyPI and could not be audited: horovod (0.28.1)"
ANSWER = json.dumps(
    {
        "dependencies": [
            {"name": "jinja2", "version": "3.1.2", "vulns": [CVE]},
            {"name": "requests", "version": "2.19.1", "vulns": [{"id": "PYSEC-1", "fix_versions": [], "aliases": []}]},
            {"name": "numpy", "version": "2.4.6", "vulns": []},
            {"name": "horovod", "skip_reason": SKIPPED},
        ],
        "fixes": [],
    }
)
"""As pip-audit 2.10 writes it."""
ASKED = {"jinja2": "3.1.2", "requests": "2.19.1", "numpy": "2.4.6", "horovod": "0.28.1"}
UNREACHABLE = """Traceback (most recent call last):
  File "sessions.py", line 696, in send
requests.exceptions.ConnectionError: HTTPSConnectionPool(host='osv.example', port=443): Max retries exceeded with url: \
/v1/query (Caused by NameResolutionError("HTTPSConnection(host='osv.example', port=443): Failed to resolve"))
"""
NUMPY = Pin("numpy", "2.4.6", ("a" * 64,), 1)
TORCH = Pin("torch", "2.13.0+cpu", ("b" * 64,), 2)
STATUS = """Package: openssl
Status: install ok installed
Maintainer: Somebody <somebody@debian.example>
Architecture: amd64
Version: 3.0.19-1~deb12u2
Description: tool

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
Description: removed
"""
SCANNED = (
    '{"package": "openssl@3.0.19-1~deb12u2", "vulnerability": {"id": "CVE-2099-1", "status": "open"}}\n'
    '{"package": "openssl@3.0.19-1~deb12u2", "vulnerability": {"id": "CVE-2099-2", "fixed-in": "3.0.20-1"}}\n'
)
TRACKER = {"openssl": {"CVE-2099-1": {"releases": {"bookworm": {"status": "open", "urgency": "high"}}}}}
Reply = Callable[[dict[str, str], str], tuple[int, str, str]]


# --- reading answers ---


def test_pip_audit_s_answer_is_read() -> None:
    listing = read_pip_audit(ANSWER, ASKED, "osv")
    assert listing.found == (
        Vulnerability("jinja2", "3.1.2", "CVE-2024-22195", ("GHSA-h5c8-rqwp-cp95",), ("3.1.3",)),
        Vulnerability("requests", "2.19.1", "PYSEC-1"),
    )
    assert listing.unaudited == {"horovod 0.28.1": SKIPPED}
    assert listing.status == BAD
    assert listing.lines() == [
        "Python packages: 2 known vulnerabilities in 3 audited, asked of osv",
        "  jinja2 3.1.2: CVE-2024-22195 (GHSA-h5c8-rqwp-cp95): fixed in 3.1.3",
        "  requests 2.19.1: PYSEC-1: no fixed version",
        "Python packages: 1 of 4 could NOT be audited",
        f"  horovod 0.28.1: {SKIPPED}",
    ]


@pytest.mark.parametrize(
    ("dependencies", "reason"),
    [
        ([], "left out of the answer"),
        ([{"name": "numpy", "skip_reason": "no network"}], "no network"),
        ([{"name": "numpy", "version": "2.4.5", "vulns": []}], "answered for 2.4.5"),
        ([{"name": "numpy", "vulns": []}], "answered for None"),
    ],
)
def test_a_package_without_an_answer_is_not_clean(dependencies: list[dict[str, Any]], reason: str) -> None:
    listing = read_pip_audit(json.dumps({"dependencies": dependencies}), {"numpy": "2.4.6"}, "osv")
    assert (listing.status, listing.unaudited) == (BAD, {"numpy 2.4.6": reason})


def test_only_a_whole_answer_is_clean() -> None:
    text = json.dumps({"dependencies": [{"name": "NumPy", "version": "2.4.6", "vulns": []}]})
    listing = read_pip_audit(text, {"numpy": "2.4.6"}, "osv")
    assert listing.status == CLEAN
    assert listing.lines() == ["Python packages: no known vulnerabilities in 1 audited, asked of osv"]


@pytest.mark.parametrize("text", ["", "No known vulnerabilities found", "[]", "{}", '{"dependencies": [{}]}', "null"])
def test_what_is_no_answer_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_pip_audit(text, ASKED, "osv")


def test_debsbom_s_answer_is_read() -> None:
    listing = read_debsbom(SCANNED, 400, "the tracker")
    assert [str(item) for item in listing.found] == [
        "openssl 3.0.19-1~deb12u2: CVE-2099-1: no fixed version",
        "openssl 3.0.19-1~deb12u2: CVE-2099-2: fixed in 3.0.20-1",
    ]
    assert (listing.status, read_debsbom("", 400, "the tracker").status) == (BAD, CLEAN)
    for text in ("error", "[]", '{"package": "openssl@1"}'):
        with pytest.raises(ValueError, match=r"."):
            read_debsbom(text, 400, "the tracker")


def test_what_was_found_counts_more_than_what_was_not_run() -> None:
    clean, not_run = Listing("Python", 1), Listing("Debian", 1, not_run="no database")
    bad = Listing("Python", 1, unaudited={"numpy 2.4.6": "skipped"})
    assert cli.worst([clean.status, clean.status]) == CLEAN
    assert cli.worst([clean.status, not_run.status]) == NOT_RUN
    assert cli.worst([not_run.status, bad.status]) == BAD


# --- asking ---


def answering(monkeypatch: pytest.MonkeyPatch, reply: Reply) -> list[tuple[str, ...]]:
    """Put `reply` (exit status, output, errors for packages and a service) in pip-audit's place; return its calls."""
    calls = []

    def run(name: str, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        calls.append((name, *arguments))
        lines = Path(arguments[arguments.index("--requirement") + 1]).read_text(encoding="utf-8").splitlines()
        service = next(item.partition("=")[2] for item in arguments if item.startswith("--vulnerability-service="))
        return subprocess.CompletedProcess([name], *reply(dict(line.split("==") for line in lines), service))

    monkeypatch.setattr(python_packages, "run_tool", run)
    return calls


def knowing(asked: dict[str, str], service: str) -> tuple[int, str, str]:
    """Answer as a service does that knows one vulnerability."""
    known = [
        {"name": name, "version": version, "vulns": [CVE] if (name, version) == ("jinja2", "3.1.2") else []}
        for name, version in asked.items()
    ]
    return 0, json.dumps({"dependencies": known}), ""


def test_a_service_that_knows_is_asked_without_a_build_s_own_version(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, str] = {}
    calls = answering(monkeypatch, lambda packages, service: asked.update(packages) or knowing(packages, service))
    listing = python_packages.python_listing([NUMPY, TORCH])
    assert asked == {"jinja2": "3.1.2", "numpy": "2.4.6", "torch": "2.13.0"}
    assert (listing.status, listing.packages, listing.source, len(calls)) == (CLEAN, 2, "pypi", 2)


def skip_all(asked: dict[str, str], service: str) -> tuple[int, str, str]:
    """A package index without vulnerabilities: pip-audit skips everything, and ends as if nothing were wrong."""
    skipped = [{"name": name, "skip_reason": "Dependency not found"} for name in asked]
    return 0, json.dumps({"dependencies": skipped}), "No known vulnerabilities found"


def know_nothing(asked: dict[str, str], service: str) -> tuple[int, str, str]:
    """A service with an empty database."""
    clean = [{"name": name, "version": version, "vulns": []} for name, version in asked.items()]
    return 0, json.dumps({"dependencies": clean}), "No known vulnerabilities found"


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (lambda asked, service: (1, "", UNREACHABLE), "Failed to resolve"),
        (lambda asked, service: (1, "", ""), "exit status 1"),
        (lambda asked, service: (124, "", "it took longer than 900 s"), "longer"),
        (skip_all, "it has nothing on jinja2 3.1.2: Dependency not found"),
        (know_nothing, "it knows no vulnerability of jinja2 3.1.2"),
        # It goes away between the control and the question.
        (lambda asked, service: knowing(asked, service) if "jinja2" in asked else (1, "", UNREACHABLE), "Failed"),
    ],
)
def test_without_a_database_it_is_not_run(monkeypatch: pytest.MonkeyPatch, reply: Reply, problem: str) -> None:
    answering(monkeypatch, reply)
    listing = python_packages.python_listing([NUMPY, TORCH])
    assert listing.status == NOT_RUN
    (line,) = listing.lines()
    assert line.startswith("Python packages: not run: the vulnerability service cannot be reached (pypi: ")
    assert problem in line
    assert "; osv: " in line
    assert "no known" not in line


def test_the_next_service_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, lambda asked, service: (knowing if service == "osv" else skip_all)(asked, service))
    assert python_packages.python_listing([NUMPY]).source == "osv"


@contextmanager
def osv_server() -> Iterator[str]:
    """Address of a service on this machine that answers as OSV does, and knows one vulnerability of jinja2 3.1.2."""
    events = [{"introduced": "0"}, {"fixed": "3.1.3"}]
    affected = {"package": {"name": "jinja2", "ecosystem": "PyPI"}, "ranges": [{"type": "ECOSYSTEM", "events": events}]}
    known = {"id": "CVE-2024-22195", "modified": "2024-01-11T00:00:00Z", "details": "x", "affected": [affected]}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            vulnerable = (asked["package"]["name"], asked["version"]) == ("jinja2", "3.1.2")
            body = json.dumps({"vulns": [known]} if vulnerable else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *values: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.skipif(not (tools.FOLDER / "pip-audit").exists(), reason="needs the audit's tools: make audit-tools")
def test_the_real_tool_asks_a_service_on_this_machine() -> None:
    with osv_server() as address:
        vulnerable = Pin("jinja2", "3.1.2", ("a" * 64,), 3)
        listing = python_packages.python_listing([NUMPY, TORCH, vulnerable], ("osv",), address)
    assert [(item.package, item.fixed) for item in listing.found] == [("jinja2", ("3.1.3",))]
    assert (listing.packages, dict(listing.unaudited)) == (3, {})
    away = python_packages.python_listing([NUMPY], ("osv",), address)
    assert (away.status, "refused" in away.not_run) == (NOT_RUN, True)


# --- bills of materials ---


def listing_tool(
    monkeypatch: pytest.MonkeyPatch, module: Any, components: list[dict[str, str]], status: int = 0
) -> None:
    """Put a tool in place that writes a bill of materials of `components`."""

    def run(name: str, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        (output,) = (arguments[at + 1] for at, item in enumerate(arguments) if item in ("--out", "--output-file"))
        Path(output).write_text(json.dumps({"components": components}), encoding="utf-8")
        return subprocess.CompletedProcess([name], status, "", "error: it broke" if status else "")

    monkeypatch.setattr(module, "run_tool", run)


def test_a_bill_of_materials_lacks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = {"name": "numpy", "version": "2.4.6"}
    listing_tool(monkeypatch, python_packages, [numpy])
    python_packages.python_sbom([NUMPY], tmp_path / "one.json")
    assert json.loads((tmp_path / "one.json").read_text(encoding="utf-8"))["components"] == [numpy]
    with pytest.raises(ConfigError, match="lacks torch"):
        python_packages.python_sbom([NUMPY, TORCH], tmp_path / "two.json")
    listing_tool(monkeypatch, python_packages, [numpy], status=1)
    with pytest.raises(ConfigError, match="it broke"):
        python_packages.python_sbom([NUMPY], tmp_path / "two.json")
    assert not (tmp_path / "two.json").exists()


def test_a_debian_bill_of_materials_lacks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, output = tmp_path / "status", tmp_path / "out/debian.cdx.json"
    status.write_text(STATUS, encoding="utf-8")
    binary, source = {"purl": "pkg:deb/debian/openssl@3?arch=amd64"}, {"purl": "pkg:deb/debian/openssl@3?arch=source"}
    listing_tool(monkeypatch, debian_packages, [binary, source])
    assert debian_packages.debian_sbom(status, output) == 1
    assert output.is_file()
    listing_tool(monkeypatch, debian_packages, [source])
    with pytest.raises(ConfigError, match=r"has 0 packages, .* has 1 installed"):
        debian_packages.debian_sbom(status, output)


@pytest.mark.parametrize(
    "content", [None, b"", b"root:x:0:0\n", b"\xff\xfe\x00", b"Status: deinstall ok config-files\n"]
)
def test_a_file_that_is_no_status_is_refused(tmp_path: Path, content: bytes | None) -> None:
    status = tmp_path / "status"
    if content is not None:
        status.write_bytes(content)
    with pytest.raises(ConfigError, match=r"^dpkg-status: .*copy /var/lib/dpkg/status out of the image$"):
        cli.audit("cpu", tmp_path, dpkg_status=status)
    assert not (tmp_path / "cpu").exists()


@pytest.mark.parametrize(
    ("tracker", "done", "problem"),
    [
        (TRACKER, (0, SCANNED), ""),
        (TRACKER, (0, "half a li"), "Expecting value"),
        (TRACKER, (255, ""), "exit status 255"),
        ({}, (0, ""), "is not that of the security tracker"),
        ([], (0, ""), "is not that of the security tracker"),
        ({"openssl": {"CVE-2099-1": {"releases": {"trixie": {}}}}}, (0, ""), "knows nothing of bookworm"),
    ],
)
def test_a_debian_database_must_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: Any, done: tuple[int, str], problem: str
) -> None:
    database = tmp_path / "tracker.json"
    database.write_text(json.dumps(tracker), encoding="utf-8")
    monkeypatch.setattr(debian_packages, "run_tool", lambda *given: subprocess.CompletedProcess(given, *done, ""))
    listing = debian_packages.debian_listing(tmp_path / "sbom.json", 1, "bookworm", database)
    assert listing.status == (NOT_RUN if problem else BAD)
    assert problem in listing.lines()[0]
    assert not problem or listing.lines()[0].startswith("Debian packages: not run: no database")


# --- the command ---


def test_the_command_writes_and_says_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "python_sbom", lambda pins, path: None)
    answering(monkeypatch, skip_all)
    assert cli.audit("cpu", tmp_path) == NOT_RUN
    said = capsys.readouterr().out
    assert "cpu: Python packages: not run: " in said
    assert "cpu: Debian packages: not run: " in said
    written = json.loads((tmp_path / "cpu/vulnerabilities.json").read_text(encoding="utf-8"))
    assert [(item["kind"], item["packages"], item["status"]) for item in written["listings"]] == [
        ("Python", len(cli.image_pins("cpu")), NOT_RUN)
    ]


def test_bad_input_is_refused_before_anything_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "FOLDER", tmp_path)
    with pytest.raises(ConfigError, match="'cuda' is not known"):
        cli.audit("cuda", tmp_path)
    with pytest.raises(ConfigError, match="run 'make audit-tools'"):
        cli.audit("cpu", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_tool_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "FOLDER", tmp_path)
    monkeypatch.setattr(tools, "LIMIT_SECONDS", 0.2)
    (tmp_path / "slow").write_text("#!/bin/sh\nexec sleep 20\n", encoding="utf-8")
    (tmp_path / "slow").chmod(0o755)
    done = tools.run_tool("slow")
    assert (done.returncode, tools.last_words(done)) == (124, "it took longer than 0.2 s")
