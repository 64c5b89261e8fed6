"""Small tables as text and as HTML, for terminals and notebooks."""

from __future__ import annotations

import html
import math


def plain(number: float) -> float | None:
    """Return the number, or None for NaN, which JSON does not know."""
    return None if math.isnan(number) else number


def number(value: float) -> str:
    """Return a rate as text; a dash where there is none."""
    return "-" if math.isnan(value) else f"{value:.4f}"


def text_table(head: list[str], rows: list[list[str]]) -> str:
    """Return columns aligned by spaces, under a ruled head."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def html_table(head: list[str], rows: list[list[str]], caption: str) -> str:
    """Return a plain HTML table; every text is escaped."""

    def line(tag: str, cells: list[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line("td", row) for row in rows)
    return (
        f"<table><caption>{html.escape(caption)}</caption>"
        f"<thead>{line('th scope=col', head).replace('</th scope=col>', '</th>')}</thead>"
        f"<tbody>{body}</tbody></table>"
    )
