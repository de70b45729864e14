"""Build sdist and wheel, check them, and write the notes of the release; ``python tools/release.py [TAG]``.

Both are in ``dist``, the notes in ``build/release-notes.md``. The version is that of ``hinet.__version__``. With a tag,
the tag must be that of the version, and the changelog must have the day of the release.
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
LONGEST = 1200.0  # seconds that a step may take


class ReleaseError(Exception):
    """Something that must be mended before the release."""


def version_of(source: str) -> str:
    """Return the version that the package's ``__init__`` has."""
    found = re.search(r'^__version__ = "([^"]+)"$', source, re.MULTILINE)
    if found is None:
        raise ReleaseError('src/hinet/__init__.py: no line __version__ = "…"')
    return found[1]


def notes_of(changelog: str, version: str, *, dated: bool = False) -> str:
    """Return the entries of a version; ``dated`` demands that its heading has the day of the release."""
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
    """Refuse a tag that is not that of the version."""
    if tag != f"v{version}":
        raise ReleaseError(f"the tag is {tag}, and the version {version}; tag v{version}, or change hinet.__version__")


def run(*command: str | Path) -> None:
    """Run a command to its end; it must succeed."""
    print("$", *command, flush=True)
    done = subprocess.run([*map(str, command)], cwd=ROOT, check=False, timeout=LONGEST)
    if done.returncode:
        raise ReleaseError(f"{command[0]} exited with {done.returncode}")


def check_sdist(sdist: Path, wheel: Path) -> None:
    """Refuse an sdist that does not build the same wheel."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
        run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, sdist)
        (again,) = folder.glob("*.whl")
        names = [set(zipfile.ZipFile(path).namelist()) for path in (wheel, again)]
    if names[0] != names[1]:
        raise ReleaseError(f"the wheel of the sdist differs in {sorted(names[0] ^ names[1])[:5]}")


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
    """Release, or say why not."""
    try:
        release(sys.argv[1] if len(sys.argv) > 1 else None)
    except ReleaseError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
