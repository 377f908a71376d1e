"""Public names of the model zoo, filled with one line per model: name -> "module:function"."""

MODELS: dict[str, str] = {}
