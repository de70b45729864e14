"""The folder of a project."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hinet import Taxonomy
from hinet.errors import FileError, HiNetError
from hinet.labelling.folder import ProjectFolder, ProjectSettings, create_project


def test_a_project_may_be_made_in_an_empty_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tree: Taxonomy
) -> None:
    here = tmp_path / "shop"
    here.mkdir()
    monkeypatch.chdir(here)
    made, rows = create_project(Path(), tree, ["rye"], ProjectSettings(seed=3))
    assert (made.path, made.name, rows, made.settings().seed) == (here, "shop", 1, 3)
    assert (Path.cwd() / "project.json").is_file()
    assert [*tmp_path.iterdir()] == [here]
    with pytest.raises(FileError, match="is a project already"):
        create_project(Path(), tree, ["rye"], ProjectSettings())


def test_the_settings_of_another_version_name_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "project.json").write_text(json.dumps({"format": 2, "unheard": "of"}))
    with pytest.raises(FileError, match=r"has the format '2', .* install the version of hinet that wrote it"):
        ProjectFolder(tmp_path).settings()


def test_nodes_with_the_separator_of_labels_are_refused_only_if_rows_have_several(tmp_path: Path) -> None:
    taxonomy = Taxonomy.from_edges([("top", "a|b"), ("top", "c")])
    with pytest.raises(HiNetError, match=r"node 'a\|b' has '\|', which separates several labels; rename it"):
        create_project(tmp_path / "several", taxonomy, ["rye"], ProjectSettings(several=True))
    assert not [*tmp_path.iterdir()]
    create_project(tmp_path / "one", taxonomy, ["rye"], ProjectSettings())
