"""docs/deviations.md as HTML, so that the page includes it where no checkout is at hand."""

from collections.abc import Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from benchmarks.core.paths import ROOT

SOURCE = ROOT / "docs/deviations.md"
OPEN = '<div class="scroll" role="region" aria-label="Deviations table" tabindex="0"><table class="prose">\n'


def deviations(source: Path = SOURCE) -> Markup:
    """Return the page without its title; empty if the file is missing, as in an installed package."""
    try:
        text = source.read_text(encoding="utf-8")
    except OSError:
        return Markup()
    # No raw HTML. Links point into the checkout, which a page sent to others lacks, so only their text is kept.
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    texts = {"link_open": "", "link_close": "", "table_open": OPEN, "table_close": "</table></div>\n"}
    for rule, words in texts.items():
        markdown.add_render_rule(rule, lambda *_, words=words: words)
    return Markup(markdown.renderer.render(_below_h2(markdown.parse(text)), markdown.options, {}))


def _below_h2(tokens: Sequence[Token]) -> list[Token]:
    """Return the tokens with headings one level lower, without the title, which the page's section already has."""
    title = next((i for i, token in enumerate(tokens) if token.tag == "h1"), len(tokens))
    kept = [*tokens[:title], *tokens[title + 3 :]]  # the opening token, its text, the closing token
    for token in kept:
        if token.type.startswith("heading"):
            token.tag = f"h{min(6, int(token.tag[1]) + 1)}"
    return kept
