"""What an image is built from."""

from benchmarks.workflow.content import ROOT, content_hash


def image_content(name: str) -> str:
    """Return 12 hex digits over all that an image is built from: Containerfile, lock files, source code, base."""
    import hashlib

    digest = hashlib.sha256(content_hash(("resireduce", "benchmarks")).encode())
    for file in sorted((ROOT / "containers" / name).rglob("*")):
        if file.is_file() and not file.name.startswith("README"):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:12]
