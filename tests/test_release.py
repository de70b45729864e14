"""Release metadata: a single version, changelog notes, citation and workflows."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import hinet

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# Keys of the Citation File Format 1.2.0.
CITATION_KEYS = {
    "abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi", "identifiers", "keywords",
    "license", "license-url", "message", "preferred-citation", "references", "repository", "repository-artifact",
    "repository-code", "title", "type", "url", "version",
}  # fmt: skip


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


release = tool("release")


def test_version_is_defined_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version"]
    path = project["tool"]["hatch"]["version"]["path"]
    assert release.version_of((ROOT / path).read_text()) == hinet.__version__
    assert "version" not in yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_changelog_has_notes_for_this_version() -> None:
    notes = release.notes_of((ROOT / "CHANGELOG.md").read_text(), hinet.__version__)
    assert notes.startswith("- ")
    assert "\n## " not in notes


def test_notes_contain_only_the_given_version() -> None:
    changelog = "# Changelog\n\n## 1.10.0 (unreleased)\n\n- c\n\n## 1.1.0 (2026-01-02)\n\n- b\n  d\n\n## 1.0.0\n\n"
    assert release.notes_of(changelog, "1.1.0", dated=True) == "- b\n  d\n"
    assert release.notes_of(changelog, "1.10.0") == "- c\n"
    for version, dated, message in (
        ("1.10.0", True, "YYYY-MM-DD"),
        ("1.0.0", False, "is empty"),
        ("1.1", False, "no section '## 1.1'"),
    ):
        with pytest.raises(release.ReleaseError, match=re.escape(message)):
            release.notes_of(changelog, version, dated=dated)


def test_tag_must_match_the_version() -> None:
    release.check_tag("v1.2.3", "1.2.3")
    with pytest.raises(release.ReleaseError, match=r"tag v1\.2\.3"):
        release.check_tag("v1.2.4", "1.2.3")


def test_citation_has_valid_keys() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation.keys() <= CITATION_KEYS
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["license"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    for entry in [citation, *citation["references"]]:
        assert entry["title"]
        assert all({"name"} <= author.keys() or {"family-names"} <= author.keys() for author in entry["authors"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_is_well_formed(path: Path) -> None:
    workflow: dict[Any, Any] = yaml.safe_load(path.read_text())
    assert {"name", True, "permissions", "jobs"} <= workflow.keys()  # YAML 1.1 reads "on" as true
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"]
        assert {*([job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", []))} <= workflow[
            "jobs"
        ].keys()
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert "@" in step.get("uses", "@")
            assert "${{ github.event" not in step.get("run", "")  # event data must not become part of a command


def test_workflows_run_the_gate_and_publish_without_a_token() -> None:
    jobs = {path.stem: yaml.safe_load(path.read_text())["jobs"] for path in WORKFLOWS}
    assert any(step.get("run") == ".ci/run" for step in jobs["gate"]["gate"]["steps"])
    publish = jobs["release"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert set(publish["needs"]) == {"gate", "build"}
    (step,) = [step for step in publish["steps"] if "pypi-publish" in step["uses"]]
    assert "with" not in step
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()


def test_makefile_has_the_documented_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "test", "check", "docs", "release"):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert "check docs" in (ROOT / ".ci" / "run").read_text()


def test_committed_figures_match_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = tool("figures")
    monkeypatch.setattr(figures, "FOLDER", tmp_path)
    figures.main()
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert drawn == {path.name: path.read_text() for path in (ROOT / "docs" / "figures").iterdir()}, "run make docs"
