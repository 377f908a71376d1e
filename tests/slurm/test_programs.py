"""The programs of the cluster on one machine: unpacked packages, laid over the machine's."""

import subprocess

from benchmarks.rig.debian import unpack

CONTROL = "Package: tool\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: tool\n"


def test_what_a_package_has_in_bin_is_in_usr_too(tmp_path):
    for name, text in {"DEBIAN/control": CONTROL, "bin/tool": "new", "usr/bin/other": "as it was"}.items():
        (tmp_path / "package" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "package" / name).write_text(text, encoding="ascii")
    package = tmp_path / "tool.deb"
    subprocess.run(["dpkg-deb", "--build", tmp_path / "package", package], check=True, capture_output=True)
    unpack([package], tmp_path / "root")
    texts = {file.name: file.read_text(encoding="ascii") for file in (tmp_path / "root/usr/bin").iterdir()}
    assert texts == {"tool": "new", "other": "as it was"}
