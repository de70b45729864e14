from __future__ import annotations

from pathlib import Path

import pytest

from hinet import FileError
from hinet.data.datasets import read_libsvm, read_lshtc


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_libsvm_rows_are_read(tmp_path: Path) -> None:
    rows = read_libsvm(written(tmp_path, "x.txt", "29 0:202 7:1 3:2.5\n\n33, 4 0:1\n5,6,7 2:1e-1"))
    assert rows.labels == (("29",), ("33", "4"), ("5", "6", "7"))
    assert rows.features.toarray().tolist() == [
        [0, 0, 0, 2.5, 0, 0, 0, 1],
        [0] * 8,
        [0, 0, pytest.approx(0.1), 0, 0, 0, 0, 0],
    ]
    assert rows.features.has_sorted_indices


def test_libsvm_rows_may_have_no_features(tmp_path: Path) -> None:
    rows = read_libsvm(written(tmp_path, "x.txt", "1\n2\n"))
    assert rows.labels == (("1",), ("2",))
    assert rows.features.nnz == 0


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("1 2:3\nx 2:3\n", 2),
        ("1 2:3\n1 2:\n", 2),
        ("1 2:3\n4 5\n", 2),
        ("1 -2:3\n", 1),
        ("1 2:3 4\n", 1),
        ("1.5 2:3\n", 1),
        ("1 2.5:3\n", 1),
        ("1 2:3 4\n5 6:\n", 1),
        ("1 2:3 9\n4:5\n", 1),
        ("1 2,3:4\n", 1),
        ("1 2:nan\n", 1),
    ],
)
def test_bad_lines_raise_with_their_number(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(FileError, match=rf"x.txt:{line}: expected 'label feature:value ...'"):
        read_libsvm(written(tmp_path, "x.txt", text))


def test_an_lshtc_folder_is_read(tmp_path: Path) -> None:
    written(tmp_path, "cat_hier.txt", "1 2 3\n1 2 4\n")
    (tmp_path / "task").mkdir()
    written(tmp_path / "task", "train.txt", "3 0:1 10:1 20:2\n4 0:2 10:3\n")
    written(tmp_path / "task", "test.txt", "3 0:1 20:1 99:1\n")
    found = read_lshtc(tmp_path / "task")
    assert len(found.taxonomy) == 4
    assert found.train.features.toarray().tolist() == [[1, 2], [3, 0]]
    assert found.test.features.toarray().tolist() == [[0, 1]]
    with pytest.raises(FileError, match=r"other.txt: cannot be read"):
        read_lshtc(tmp_path / "task", "other.txt")
    with pytest.raises(FileError, match=r"no cat_hier.txt or hierarchy.txt"):
        read_lshtc(tmp_path / "task" / "deeper")


def test_a_folder_without_features_raises(tmp_path: Path) -> None:
    written(tmp_path, "cat_hier.txt", "1 2 3\n1 2 4\n")
    written(tmp_path, "train.txt", "3 0:1\n")
    written(tmp_path, "test.txt", "3 0:1 99999999999:1\n")
    with pytest.raises(FileError, match=r"train.txt: no row has a feature"):
        read_lshtc(tmp_path)
    written(tmp_path, "train.txt", "3 0:1 99999999999:1\n4 0:2 5:1\n")
    assert read_lshtc(tmp_path).test.features.toarray().tolist() == [[0, 1]]
