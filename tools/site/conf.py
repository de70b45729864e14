"""Sphinx configuration of the documentation site, which ``make docs`` builds from ``docs``."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "src"))

from hinet import __version__  # noqa: E402

project, release, version = "hinet", __version__, __version__
copyright = "the hinet authors, MIT licence"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]

myst_heading_anchors = 4  # anchors as on GitHub
suppress_warnings = [
    "misc.highlighting_failure",  # JSON examples use … for omitted parts
    "ref.python",  # words in parameter types, such as rows, that are also attribute names
]
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings contain the types
autodoc_default_options = {"members": True, "imported-members": True}
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"hinet {release}"
html_show_sphinx = False
html_copy_source = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

_LOADED = re.compile(
    r'<(?:script|img|iframe)[^>]*\ssrc="(?:https?:)?//|<link[^>]*rel="(?:stylesheet|preload|icon)"[^>]*href="(?:https?:)?//'
)


def check_offline(app: Any, exception: Exception | None) -> None:
    """Reject a site that loads anything from another address."""
    for path in [] if exception else Path(app.outdir).rglob("*.html"):
        found = _LOADED.search(path.read_text(encoding="utf-8"))
        if found:
            raise RuntimeError(f"{path}: {found[0]}… is loaded from another address")


def is_inherited(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Skip members that scikit-learn adds to every estimator."""
    return True if name.endswith(("_request", "_metadata_routing")) else None


def setup(app: Any) -> None:
    """Select the documented members, and check the site after the build."""
    app.connect("autodoc-skip-member", is_inherited)
    app.connect("build-finished", check_offline)
