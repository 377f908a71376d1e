"""`make docs`: pages of the library's interface, made from its docstrings by pdoc."""

import pkgutil
import sys
import warnings
from pathlib import Path

import pdoc

import resireduce


def build(folder: Path) -> None:
    """Write index.html, and one page for each public module, into `folder`.

    What `resireduce` imports only when it is used is imported here, so that it is on its page, and the modules are
    listed beside it.
    """
    for name in resireduce.__all__:
        setattr(resireduce, name, getattr(resireduce, name))
    modules = [module.name for module in pkgutil.iter_modules(resireduce.__path__)]
    resireduce.__all__ += [name for name in modules if not name.startswith("_")]
    # They are subclasses of torch.Tensor, whose compiled attributes have no source.
    for name in (r"guard\.StreamedAway",):
        warnings.filterwarnings("ignore", message=rf".* resireduce\.{name}\._is_param ")
    warnings.filterwarnings("ignore", message="Error parsing source code")  # of torch, with Python 3.13
    pdoc.render.configure(docformat="google", footer_text=f"resireduce {resireduce.__version__}")
    pdoc.pdoc("resireduce", output_directory=folder)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
    print(f"API: {sys.argv[1]}/index.html")
