"""Check that every internal link of the built site leads to a page and an anchor: ``python check_links.py FOLDER``."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """Collect the anchors, links and loaded files of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = {"", "top"}
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value}
        self.anchors.update(found[name] for name in ("id", "name") if name in found)
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in ("script", "img", "iframe") and "src" in found:
            self.loaded.append(found["src"])
        if tag == "link" and "stylesheet" in found.get("rel", "") and "href" in found:
            self.loaded.append(found["href"])


def problems(folder: Path) -> list[str]:
    """Return a line for every broken link, and for every file that a page loads from elsewhere."""
    pages: dict[Path, _Page] = {}
    for path in sorted(set(folder.rglob("*.html")) - set(folder.rglob("_static/**/*.html"))):
        pages[path.resolve()] = page = _Page()
        page.feed(path.read_text())
    found = []
    for path, page in pages.items():
        where = path.relative_to(folder.resolve())
        found += [f"{where}: loads {url}" for url in page.loaded if urlsplit(url).netloc]
        for url in page.links + page.loaded:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                found.append(f"{where}: no page {url}")
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{where}: no anchor {url}")
    return found


if __name__ == "__main__":
    broken = problems(Path(sys.argv[1]))
    print("\n".join(broken) or "all internal links lead somewhere, and nothing is loaded from elsewhere")
    sys.exit(bool(broken))
