"""Which models can tell residual schemes apart, as measured once and committed."""

from pathlib import Path

from benchmarks.files import load_json

TELL_FILE = Path(__file__).parents[2] / "results/reference/tell.json"


def load_tells(path: Path = TELL_FILE) -> dict[str, bool]:
    """Return model -> whether training without residuals ends measurably worse there; {} where it was not measured."""
    try:
        return {model: bool(entry["tells"]) for model, entry in load_json(path).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
