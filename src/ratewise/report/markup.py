"""HTML and SVG elements, escaped by construction: plain text can only enter a page as text.

>>> el("p", "a < b ", el("b", "& c"), title='say "so"')
'<p title="say &quot;so&quot;">a &lt; b <b>&amp; c</b></p>'
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

_VOID = frozenset({"input", "meta", "br", "hr", "line", "rect", "circle", "polyline", "path", "polygon"})


class Html(str):
    """Markup that is safe to put into a page as it is; made by `el` and `join` only."""

    __slots__ = ()


def el(name: str, *children: Any, **attributes: Any) -> Html:
    """Return an element.

    Children are elements, plain text (which is escaped), iterables of both, or None. Attributes that are None
    or False are left out; ``class_`` and ``aria_label`` mean ``class`` and ``aria-label``.
    """
    head = name + "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID and not children:
        return Html(f"<{head}>" if name in ("input", "meta", "br", "hr") else f"<{head}/>")
    return Html(f"<{head}>{join(children)}</{name}>")


def join(children: Iterable[Any]) -> Html:
    """Return children one after the other, text escaped."""
    return Html("".join(_child(child) for child in children))


def _child(child: Any) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str):
        return html.escape(child)
    return join(child)


def _attribute(key: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'
