"""docs/deviations.md as HTML, so that the page has it where the checkout is not at hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from benchmarks.core.paths import ROOT

SOURCE = ROOT / "docs/deviations.md"
OPEN = '<div class="scroll" role="region" aria-label="Deviations table" tabindex="0"><table class="prose">\n'


def deviations(source: Path = SOURCE) -> Markup:
    """Return the page without its title; empty where there is no such file, as in an installed package."""
    try:
        text = source.read_text(encoding="utf-8")
    except OSError:
        return Markup()
    # Without raw HTML. Links lead to files of the checkout, which a page that was sent on has not: their text is left.
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    markdown.add_render_rule("link_open", _nothing)
    markdown.add_render_rule("link_close", _nothing)
    markdown.add_render_rule("table_open", lambda *_: OPEN)
    markdown.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return Markup(markdown.renderer.render(_below_h2(markdown.parse(text)), markdown.options, {}))


def _nothing(*_: Any) -> str:
    return ""


def _below_h2(tokens: Sequence[Token]) -> list[Token]:
    """Headings one level lower; the title, which the section of the page has, is left out."""
    kept = [
        token for i, token in enumerate(tokens) if token.tag != "h1" and (i == 0 or not _opens_title(tokens[i - 1]))
    ]
    for token in kept:
        if token.type.startswith("heading"):
            token.tag = f"h{min(6, int(token.tag[1]) + 1)}"
    return kept


def _opens_title(token: Token) -> bool:
    return (token.type, token.tag) == ("heading_open", "h1")
