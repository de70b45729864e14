"""Hooks of the documentation site: pages from outside ``docs``, files that pages link to, and a check of what was built."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
COPIES = "files"  # the folder of the site with what pages link to and is no page

_LINK = re.compile(r"(?<=\]\()([^)#\s]+)")
_LOADED = re.compile(r"""(?:<script[^>]*\ssrc|<img[^>]*\ssrc|<link(?=[^>]*rel="(?:stylesheet|icon|preload)")[^>]*\shref)="(?:https?:)?//""")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside ``docs``, a list of the decisions, and every file that a page links to."""
    docs = Path(config.docs_dir)
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=_in_docs(ROOT / source, "docs/" + page)))
    files.append(File.generated(config, "decisions/index.md", content=_list_of_decisions(docs / "decisions")))
    linked: set[str] = set()
    for file in files.documentation_pages():
        linked |= {target for target in map(str, _outside(file.content_string, file.src_uri)) if target not in PAGES}
    for target in sorted(linked):
        if not (ROOT / target).is_file():
            raise PluginError(f"a page links to {target}, which is no file")
        files.append(File.generated(config, f"{COPIES}/{target}", abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links that lead out of ``docs`` lead to the copies in the site."""
    folder = posixpath.dirname(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        target = _resolved(match[1], page.file.src_uri)
        if target is None:
            return match[1]
        return posixpath.relpath(PAGES.get(target, f"{COPIES}/{target}"), folder or ".")

    return _LINK.sub(moved, markdown)


def on_post_build(config: Any) -> None:
    """Refuse a site that loads anything from another address."""
    for path in Path(config.site_dir).rglob("*.html"):
        found = _LOADED.search(path.read_text(encoding="utf-8"))
        if found:
            raise PluginError(f"{path}: {found[0]}… is loaded from another address")


def _in_docs(source: Path, page: str) -> str:
    """Return a page of the root folder with its links as they are from its place in the site."""
    folder = posixpath.dirname(page)

    def moved(match: re.Match[str]) -> str:
        return match[1] if "://" in match[1] else posixpath.relpath(match[1], folder)

    return _LINK.sub(moved, source.read_text(encoding="utf-8"))


def _list_of_decisions(folder: Path) -> str:
    lines = ["# Decisions", "", "Choices that had a price, half a page each. Figures in them are of their day.", ""]
    for path in sorted(folder.glob("0*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def _outside(markdown: str, page: str) -> list[str]:
    targets = (_resolved(link, page) for link in _LINK.findall(markdown))
    return [target for target in targets if target is not None]


def _resolved(link: str, page: str) -> str | None:
    """Return the path in the repository that a link of a page leads to, if that is outside ``docs``."""
    if "://" in link:
        return None
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if path.startswith("docs/") or path.startswith("../") else path
