"""How Sphinx builds the documentation: Furo, MyST, and what the code says of itself. Nothing is fetched."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/edcache/edcache"
sys.path.insert(0, str(ROOT))

import edcache  # noqa: E402

project = "edcache"
author = "the edcache authors"
copyright = author
release = edcache.__version__
html_title = f"edcache {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
exclude_patterns = ["_build"]
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

pygments_dark_style = "github-dark"

html_theme = "furo"
html_theme_options = {"source_repository": REPOSITORY, "source_branch": "main", "source_directory": "docs/"}
html_show_copyright = False
html_copy_source = False
highlight_language = "text"


def with_links_to_the_repository(_: Sphinx, page: str, source: list[str]) -> None:
    """A link to a file outside of docs/ leads to the repository. Pictures are copied."""
    up = "../" * (page.count("/") + 1)
    source[0] = re.sub(
        rf"(?<!!)(\[[^\]]*\])\({re.escape(up)}(?!\.)", rf"\1({REPOSITORY}/blob/main/", source[0]
    )


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", with_links_to_the_repository)
