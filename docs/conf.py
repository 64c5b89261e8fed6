"""Configuration of the documentation site (``make docs``). The build needs no network."""

from __future__ import annotations

import os
import re
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot
from sphinx_gallery.scrapers import matplotlib_scraper

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
os.environ.setdefault("OMP_NUM_THREADS", "1")

project = "ratewise"
author = "The ratewise developers"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc", "myst_parser", "sphinx_gallery.gen_gallery"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_templates", "examples", "attacks", "figures"]
templates_path = ["_templates"]
default_role = "literal"
suppress_warnings = ["config.cache"]  # the order of examples is a class, which Sphinx does not store

# Markdown: GitHub's anchors for headings, so that links work here and there.
myst_heading_anchors = 3

# The reference: one page per public name of a module (`__all__`).
autosummary_generate = True
autosummary_imported_members = True
autosummary_ignore_module_all = False
autodoc_typehints = "none"
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False


def _larger_text(_conf: Any, _script: Any) -> None:
    """Figures of 6 inches are read on phones."""
    matplotlib.rcParams["font.size"] = 11


def _figures(block: Any, variables: Any, conf: Any) -> str:
    """Save figures as sphinx-gallery does, with their titles and axes as alternative text."""
    described = []
    for number in pyplot.get_fignums():
        axes = pyplot.figure(number).axes
        parts = [": ".join(filter(None, (axis.get_title(), _axes_text(axis)))) for axis in axes]
        described.append("; ".join(dict.fromkeys(filter(None, parts))))
    texts = iter(described)
    found: str = matplotlib_scraper(block, variables, conf)
    return re.sub(r"(?<=:alt: ).*", lambda old: next(texts, "") or old[0], found)


def _axes_text(axis: Any) -> str:
    x, y = axis.get_xlabel().replace("\n", " "), axis.get_ylabel()
    return f"{y} by {x}" if x and y else x or y


sphinx_gallery_conf = {
    "examples_dirs": ["examples", "attacks"],
    "gallery_dirs": ["auto_examples", "auto_attacks"],
    "filename_pattern": r"plot_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 10**6,  # times depend on what else the machine does
    "show_signature": False,
    "write_computation_times": False,
    "plot_gallery": True,
    "remove_config_comments": True,
    "image_scrapers": (_figures,),
    "reset_modules": ("matplotlib", _larger_text),
    "matplotlib_animations": False,
    "capture_repr": (),  # what scripts print, not the value of a last line
}
# Warnings in the output of examples without the path of the machine that built the page.
warnings.formatwarning = lambda message, category, *_: f"{category.__name__}: {message}\n"

html_theme = "pydata_sphinx_theme"
html_title = f"ratewise {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "ratewise"},
    "header_links_before_dropdown": 9,
    "navbar_end": ["theme-switcher"],
    "navbar_align": "left",
    "navbar_persistent": ["search-button"],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": False,
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {page: [] for page in ("index", "why", "quickstart", "scoreboard", "benchmarks")}
copyright = "The ratewise developers"

# Pages outside docs/ have a place on the site; on a code host, links lead to the files themselves.
_ELSEWHERE = {"../SECURITY.md": "security.md", "../CONTRIBUTING.md": "contributing.md", "../CHANGELOG.md": "changes.md"}


def _link_pages(_app: Any, _page: str, source: list[str]) -> None:
    for there, here in _ELSEWHERE.items():
        source[0] = source[0].replace(f"]({there})", f"]({here})")


def _skip(_app: Any, _what: str, name: str, _object: Any, _is_skipped: bool, _options: Any) -> bool | None:
    """Leave out what scikit-learn adds for metadata routing."""
    return True if re.fullmatch(r"set_\w+_request|get_metadata_routing", name) else None


def setup(app: Any) -> None:
    """Connect the rewriting of links and the choice of members."""
    app.connect("source-read", _link_pages)
    app.connect("autodoc-skip-member", _skip)
