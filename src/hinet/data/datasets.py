"""Data sets: ICD-10-CM, which is built in, and folders of the LSHTC challenges; labelled texts, splits and tf-idf.

The ICD-10-CM codes come from the package ``simple-icd-10-cm``. The description of a leaf code is a text labelled with
the leaf's parent; an inclusion term is a text labelled with its code, or with the parent where the code is a leaf.
So the taxonomy has the codes that have children, and a label is any of them but a chapter.

LSHTC has the hierarchy, and libSVM files of rows. A line is ``label[,label] feature:value ...``.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.errors import FileError, HiNetError, LabelError, counted, quoted
from hinet.files.streams import read_text
from hinet.ragged import Ints
from hinet.taxonomy import Taxonomy

SHARES = {"valid": 0.05, "test": 0.15}
HIERARCHIES = ("cat_hier.txt", "hierarchy.txt")
TRAIN = "train.txt"
TESTS = ("validation.txt", "test.txt")
INTERNAL_FEATURE = 0  # the number of the document in LSHTC
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_LINE = re.compile(rf"\s*(-?\d+(?:\s*,\s*-?\d+)*)((?:\s+\d{{1,15}}:{_NUMBER})*)\s*")
WORD_NGRAMS = (1, 2)


@dataclass(frozen=True)
class LabelledRows:
    """Texts and the label of each."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.texts) != len(self.labels):
            raise LabelError(
                f"{counted(len(self.texts), 'text')} and {counted(len(self.labels), 'label')}; give one label per text"
            )

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: Ints) -> LabelledRows:
        """Return the selected rows, in this order."""
        selected = rows.tolist()
        return LabelledRows(tuple(self.texts[row] for row in selected), tuple(self.labels[row] for row in selected))


def split_by_hash(rows: LabelledRows, shares: Mapping[str, float], rest: str) -> dict[str, LabelledRows]:
    """Split rows into named parts by a hash of each row, independent of machine and order.

    Each part of ``shares`` gets about its share of the rows, and ``rest`` the others. The row of each label with the
    largest hash always goes to ``rest``, so that every label has a row there.

    >>> rows = LabelledRows(("a", "b", "c", "d"), ("x", "x", "y", "y"))
    >>> {name: len(part) for name, part in split_by_hash(rows, {"test": 0.5}, "train").items()}
    {'train': 3, 'test': 1}
    """
    digests = b"".join(
        hashlib.blake2b(f"{label}\0{text}".encode(), digest_size=8).digest()
        for text, label in zip(rows.texts, rows.labels, strict=True)
    )
    order = np.frombuffer(digests, ">u8") / 2.0**64  # a number in [0, 1) for every row
    part = np.full(len(rows), -1)
    bound = 0.0
    for number, share in enumerate(shares.values()):
        part[(order >= bound) & (order < bound + share)] = number
        bound += share
    _, label = np.unique(np.array(rows.labels, object), return_inverse=True)
    largest_first = np.lexsort((-order, label))
    part[largest_first[np.unique(label[largest_first], return_index=True)[1]]] = -1
    names = [rest, *shares]
    return {name: rows.take(np.flatnonzero(part == number - 1)) for number, name in enumerate(names)}


def holdout_mask(count: int, share: float, seed: int) -> NDArray[np.bool_]:
    """Return a mask of the rows to hold out: a random share of ``count`` rows.

    The choice depends only on the seed, not on labels or texts, so the only row of a label may be held out. Held-out
    rows relate to training rows like new rows of the same source, so estimates on them are valid for new rows. At
    least one row is held out, and at least one is kept.

    >>> holdout_mask(5, 0.4, seed=0).sum()
    np.int64(2)
    """
    if count < 2:
        raise HiNetError(
            f"got {counted(count, 'row')}, but holding some out needs at least 2; give more rows, or validation rows"
        )
    mask = np.zeros(count, bool)
    size = min(max(round(share * count), 1), count - 1)
    mask[np.random.default_rng(seed).permutation(count)[:size]] = True
    return mask


@dataclass(frozen=True)
class Icd10cm:
    """ICD-10-CM as a taxonomy and three sets of rows; every label has a training row."""

    taxonomy: Taxonomy
    train: LabelledRows
    valid: LabelledRows
    test: LabelledRows


@lru_cache(maxsize=1)
def load_icd10cm() -> Icd10cm:
    """Load the built-in data set; takes seconds the first time, then it stays in memory.

    Raises
    ------
    HiNetError
        If the package ``simple-icd-10-cm`` is not installed.
    """
    entries = list(_entries(_icd_package()))
    inner = {entry.parent for entry in entries if entry.parent}
    edges = [(entry.parent, entry.node) for entry in entries if entry.node in inner]
    titles = {entry.node: entry.description for entry in entries if entry.node in inner}
    rows = dict.fromkeys(
        (text, entry.node if entry.node in inner else entry.parent)
        for entry in entries
        for text in (entry.inclusion_terms if entry.node in inner else (entry.description, *entry.inclusion_terms))
    )
    labelled = LabelledRows(tuple(text for text, _ in rows), tuple(label for _, label in rows))
    return Icd10cm(
        Taxonomy.from_edges(edges, attributes={"title": titles}),
        **split_by_hash(labelled, SHARES, rest="train"),
    )


class _Entry(NamedTuple):
    node: str
    parent: str
    description: str
    inclusion_terms: tuple[str, ...]


def _icd_package() -> ModuleType:
    try:
        with warnings.catch_warnings():  # the package uses a deprecated function
            warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
            return import_module("simple_icd_10_cm")  # importing it takes seconds
    except ImportError:
        raise HiNetError(
            "the built-in ICD-10-CM set needs the package simple-icd-10-cm; install it with: pip install 'hinet[demo]'"
        ) from None


def _entries(icd: ModuleType) -> Iterator[_Entry]:
    """Yield chapters, blocks and codes, parents first.

    A block of one category has the category's code, such as B99; the id of the block is then B99-B99.
    Blocks that only contain other blocks, such as C00-C96, have no children and are left out.
    """
    for code in dict.fromkeys(icd.get_all_codes(True)):
        if icd.is_chapter(code):
            yield _entry(icd, code, code, "")
        if icd.is_block(code) and icd.get_children(code, prioritize_blocks=True):
            yield _entry(icd, code, _block_id(code), icd.get_parent(code, prioritize_blocks=True), block=True)
        if icd.is_category_or_subcategory(code):
            parent = icd.get_parent(code)
            yield _entry(icd, code, code, _block_id(parent) if icd.is_category(code) else parent)


def _block_id(code: str) -> str:
    return code if "-" in code else f"{code}-{code}"


def _entry(icd: ModuleType, code: str, node: str, parent: str, *, block: bool = False) -> _Entry:
    terms = icd.get_inclusion_term(code, prioritize_blocks=block)
    description = icd.get_description(code, prioritize_blocks=block)
    return _Entry(node, parent, description.strip(), tuple(term.strip() for term in terms if term.strip()))


@dataclass(frozen=True)
class LibsvmRows:
    """Rows of features with the labels of each."""

    features: Any  # scipy.sparse.csr_array of float32, (n, largest feature + 1)
    labels: tuple[tuple[str, ...], ...]


def read_libsvm(path: str | Path) -> LibsvmRows:
    """Read a libSVM file, plain, ``.gz`` or ``.xz``, without feature 0; features may be in any order.

    Raises
    ------
    FileError
        If the file cannot be read or a line is not ``label feature:value ...``; names the line.
    """
    labels, pairs, entries = [], [], []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        if not (match := _LINE.fullmatch(line)):
            raise FileError(path, f"expected 'label feature:value ...', got {quoted(line.strip())}", line=number)
        labels.append(tuple(str(int(label)) for label in match[1].split(",")))
        pairs.append(match[2])
        entries.append(match[2].count(":"))
    numbers = np.fromstring(" ".join(pairs).replace(":", " ").strip(), np.float64, sep=" ").reshape(-1, 2)
    row = np.repeat(np.arange(len(labels)), entries)
    shape = (len(labels), int(numbers[:, 0].max(initial=0)) + 1)
    keep = numbers[:, 0] != INTERNAL_FEATURE
    feature, value = numbers[keep, 0].astype(np.int64), numbers[keep, 1].astype(np.float32)
    return LibsvmRows(sp.csr_array(sp.coo_array((value, (row[keep], feature)), shape=shape)), tuple(labels))


@dataclass(frozen=True)
class LshtcData:
    """A hierarchy, and the term counts of training and test rows for the features of the training rows."""

    taxonomy: Taxonomy
    train: LibsvmRows
    test: LibsvmRows


def read_lshtc(folder: str | Path, test: str | None = None) -> LshtcData:
    """Read ``train.txt``, a test file and the hierarchy, which may be one folder up.

    ``test`` names the test file, by default ``validation.txt`` or else ``test.txt``. Features that no training row has
    are left out.

    Raises
    ------
    FileError
        If a file is missing or cannot be read; names the line.
    """
    root = Path(folder)
    hierarchy = _first_file([root / name for name in HIERARCHIES] + [root.parent / name for name in HIERARCHIES])
    test_file = root / test if test is not None else _first_file([root / name for name in TESTS])
    train, test_rows = read_libsvm(root / TRAIN), read_libsvm(test_file)
    used = np.unique(train.features.indices)
    if not len(used):
        raise FileError(root / TRAIN, "no row has a feature other than the internal one, 0")
    return LshtcData(Taxonomy.from_file(hierarchy), _select_features(train, used), _select_features(test_rows, used))


def _first_file(candidates: list[Path]) -> Path:
    file = next((path for path in candidates if path.is_file()), None)
    if file is None:
        names = " or ".join(dict.fromkeys(path.name for path in candidates))
        raise FileError(candidates[0].parent, f"the folder has no {names}")
    return file


def _select_features(rows: LibsvmRows, features: Any) -> LibsvmRows:
    """Return the rows with only these features, renumbered."""
    matrix = rows.features
    index = np.minimum(np.searchsorted(features, matrix.indices), len(features) - 1)
    keep = features[index] == matrix.indices
    indptr = np.append(0, np.cumsum(keep))[matrix.indptr]
    shape = (matrix.shape[0], len(features))
    return LibsvmRows(sp.csr_array((matrix.data[keep], index[keep], indptr), shape=shape), rows.labels)


def tfidf_texts(train: Sequence[str], *others: Sequence[str]) -> list[Any]:
    """Return tf-idf of words and pairs of words of the training texts and of others, fitted on the training texts."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # slow to import

    vectoriser = TfidfVectorizer(
        ngram_range=WORD_NGRAMS, sublinear_tf=True, dtype=np.float32, token_pattern=r"(?u)\b\w+\b"
    )
    try:
        rows = vectoriser.fit_transform(train)
    except ValueError:  # the only one raised for a list of texts
        raise HiNetError(f"none of the {len(train):,} training texts has a word; is it the right column?") from None
    return [rows.tocsr(), *(vectoriser.transform(texts).tocsr() for texts in others)]


def tfidf_counts(train: Any, *others: Any) -> list[Any]:
    """Return tf-idf of rows of term counts, fitted on the training rows."""
    from sklearn.feature_extraction.text import TfidfTransformer

    weights = TfidfTransformer(sublinear_tf=True)
    return [weights.fit_transform(train).tocsr(), *(weights.transform(rows).tocsr() for rows in others)]
