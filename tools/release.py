"""Build and check sdist and wheel, and write the release notes: ``python tools/release.py [TAG]``.

The packages are in ``dist``, the notes in ``build/release-notes.md``. The version is ``hinet.__version__``. If a tag is
given, it must match the version, and the changelog must have the release date.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST, NOTES = ROOT / "dist", ROOT / "build" / "release-notes.md"
LONGEST = 1200.0  # maximum seconds per step


class ReleaseError(Exception):
    """A problem that must be fixed before the release."""


def version_of(source: str) -> str:
    """Return the version in the package's ``__init__``."""
    found = re.search(r'^__version__ = "([^"]+)"$', source, re.MULTILINE)
    if found is None:
        raise ReleaseError('src/hinet/__init__.py: no line __version__ = "…"')
    return found[1]


def notes_of(changelog: str, version: str, *, dated: bool = False) -> str:
    """Return the changelog entries of a version; ``dated`` requires a release date in the heading."""
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    for section in sections:
        heading, _, entries = section.partition("\n")
        if heading.split(" ")[0] == version:
            if dated and not re.fullmatch(r"\S+ \(\d{4}-\d{2}-\d{2}\)", heading):
                raise ReleaseError(f"CHANGELOG.md: the heading is '{heading}'; write '{version} (YYYY-MM-DD)'")
            if not entries.strip():
                raise ReleaseError(f"CHANGELOG.md: the section of {version} is empty")
            return entries.strip() + "\n"
    raise ReleaseError(f"CHANGELOG.md: no section '## {version}'")


def check_tag(tag: str, version: str) -> None:
    """Reject a tag that does not match the version."""
    if tag != f"v{version}":
        raise ReleaseError(
            f"the tag is {tag}, but the version is {version}; tag v{version} or change hinet.__version__"
        )


def run(*command: str | Path) -> None:
    """Run a command, which must succeed."""
    print("$", *command, flush=True)
    done = subprocess.run([*map(str, command)], cwd=ROOT, check=False, timeout=LONGEST)
    if done.returncode:
        raise ReleaseError(f"{command[0]} exited with {done.returncode}")


def check_sdist(sdist: Path, wheel: Path) -> None:
    """Reject an sdist that does not build the same wheel."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
        run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, sdist)
        (again,) = folder.glob("*.whl")
        names = [set(zipfile.ZipFile(path).namelist()) for path in (wheel, again)]
    if names[0] != names[1]:
        raise ReleaseError(f"the wheel built from the sdist differs in {sorted(names[0] ^ names[1])[:5]}")


def release(tag: str | None) -> None:
    """Build and check everything."""
    version = version_of((ROOT / "src" / "hinet" / "__init__.py").read_text(encoding="utf-8"))
    if tag is not None:
        check_tag(tag, version)
    notes = notes_of((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version, dated=tag is not None)
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "hatchling", "build", "--directory", DIST)
    sdist, wheel = DIST / f"hinet-{version}.tar.gz", DIST / f"hinet-{version}-py3-none-any.whl"
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    check_sdist(sdist, wheel)
    run(sys.executable, ".ci/wheel.py", wheel)
    NOTES.parent.mkdir(exist_ok=True)
    NOTES.write_text(notes, encoding="utf-8")
    print(f"hinet {version}: {sdist.name} and {wheel.name} in dist, notes in {NOTES.relative_to(ROOT)}")


def main() -> None:
    """Build the release, or report why it cannot be built."""
    try:
        release(sys.argv[1] if len(sys.argv) > 1 else None)
    except ReleaseError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
