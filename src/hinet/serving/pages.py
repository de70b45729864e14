"""The files of the page, read once: no path of a request is ever a path of the disk."""

from __future__ import annotations

import hashlib
import mimetypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

HTML = ".html"
INDEX = f"/index{HTML}"
HASHED = re.compile(r"[-.][0-9A-Za-z_]{8,}\.\w+$")  # the name tells the contents, so the file never changes
TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".woff2": "font/woff2",
         ".svg": "image/svg+xml", ".webmanifest": "application/manifest+json", ".ico": "image/x-icon"}  # fmt: skip


@dataclass(frozen=True)
class PageFile:
    """A file of the page."""

    body: bytes
    type: str
    etag: str
    cache: str

    def response(self, request: Request) -> Response:
        """Return the file, or that it has not changed."""
        headers = {"ETag": self.etag, "Cache-Control": self.cache}
        if self.etag in (request.headers.get("if-none-match") or ""):
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.type, headers=headers)


def read_page(folder: Path) -> Mapping[str, PageFile]:
    """Return the files below a folder by the path of their URL; HTML also without its suffix, the index as ``/``."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(part.startswith((".", "__")) for part in path.relative_to(folder).parts):
            files["/" + path.relative_to(folder).as_posix()] = _page_file(path)
    files |= {path.removesuffix(HTML): file for path, file in files.items() if path.endswith(HTML)}
    if INDEX in files:
        files["/"] = files[INDEX]
    return files


def _page_file(path: Path) -> PageFile:
    body = path.read_bytes()
    kind = TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    if kind.startswith("text/") or kind.endswith(("json", "svg+xml")):
        kind += "; charset=utf-8"
    etag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    return PageFile(body, kind, etag, "public, max-age=31536000, immutable" if HASHED.search(path.name) else "no-cache")
