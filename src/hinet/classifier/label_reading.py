"""Every form of ``y`` that users bring -> a taxonomy and the form of its labels; more labels later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from hinet.classifier.label_rows import all_paths, all_whole, distinct_labels, rows_of
from hinet.classifier.labels import Form, LabelForm
from hinet.classifier.text_paths import AUTO, PathSep, TextStyle, text_style
from hinet.data import Traces
from hinet.errors import HiNetError, LabelError, shown
from hinet.taxonomy import VIRTUAL_ROOT, Layers, Taxonomy, as_id, path_id, unpadded

Labels = Sequence[tuple[int, Any]]  # every label, with the first row that has it


def read_labels(
    y: Any, taxonomy: Taxonomy | None, path_sep: PathSep = AUTO, like: LabelForm | None = None
) -> tuple[LabelForm, Traces]:
    """Return the form of training labels, with the layers of their taxonomy, and the labels as traces.

    ``path_sep`` stands between the steps of labels that are paths as text, see :mod:`hinet.taxonomy.path_text`; None
    takes texts as they are. Labels that are a part of others are written ``like`` all of these.

    Raises
    ------
    LabelError
        If a label is missing, is not in the taxonomy, or paths and other labels are mixed; names the row.
    """
    rows, is_table = rows_of(y)
    if not len(rows):
        raise HiNetError("there are no rows: y is empty; give at least one labelled row")
    labels = distinct_labels(rows)
    paths = all_paths(rows)
    if like is not None:
        style = like.style
    else:
        style = None if paths else text_style([label for _, label in labels], path_sep, given=taxonomy is not None)
    if style is not None:
        form = _of_paths(_cut(style, labels), taxonomy, "text", style=style)
    elif paths:
        number = all_whole(step for _, label in labels for step in label if as_id(step) != "")
        form = _of_paths(labels, taxonomy, "table" if is_table else "paths", number=number)
    elif taxonomy is None:
        form = _plain(labels)
    else:
        number = all_whole(label for _, label in labels if as_id(label) != "")
        form = LabelForm("ids", Layers.of(taxonomy, _known(taxonomy, {as_id(label) for _, label in labels})), number)
    if like is not None:
        form = replace(form, number=like.number, columns=like.columns, rooted=like.rooted)
    return form, form.encode(y)


def widened(form: LabelForm, y: Any) -> LabelForm:
    """Return the form with the labels of ``y`` as well: an inferred taxonomy grows, a given one knows them."""
    rows, _ = rows_of(y)
    more = distinct_labels(rows)
    if not form.inferred:
        ends = {form.id_of(row, label) for row, label in more} | {form.taxonomy.ids[at] for at in form.label_nodes}
        later = _first_written((form.steps_below_root(row, label) for row, label in more), form)
        return replace(
            form, layers=Layers.of(form.taxonomy, _known(form.taxonomy, ends)), wrote={**later, **form.wrote}
        )
    paths = [form.path_to(node) for node in form.label_nodes.tolist()]
    if form.named:
        return _with_paths(form, [(0, form.steps(path)) for path in paths], more)
    found = _plain([*((0, form.label_of(path)) for path in paths), *more])
    before, after = form.values, found.values
    if before is not None and after is not None and after.dtype.kind != before.dtype.kind:
        raise LabelError(f"the labels were of kind {before.dtype} so far, some are not; give labels of one kind")
    return found


def _with_paths(form: LabelForm, known: Labels, more: Labels) -> LabelForm:
    if form.style is not None:
        style = form.style.with_labels(label for _, label in more if isinstance(label, str))
        return _of_paths([*known, *_cut(style, more)], None, "text", style=style)
    if form.number and not all_whole(step for _, label in more for step in label if as_id(step) != ""):
        raise LabelError("the labels were whole numbers so far, some are not; give labels of one kind")
    found = _of_paths([*known, *more], None, form.form, number=form.number)
    return replace(found, columns=form.columns)


def in_taxonomy(form: LabelForm, taxonomy: Taxonomy, renamed: Mapping[str, str]) -> LabelForm:
    """Return the form in a changed taxonomy: labels that are still there, and all its leaves."""
    if form.inferred:
        raise HiNetError("the taxonomy was inferred from the labels; fit with taxonomy=... to be able to change it")
    ends = {form.taxonomy.ids[node] for node in form.label_nodes.tolist()}
    layers = Layers.of(taxonomy, _known(taxonomy, {renamed.get(end, end) for end in ends}))
    moved = replace(form, layers=layers, rooted=form.rooted and taxonomy.root != VIRTUAL_ROOT)
    paths = (tuple(renamed.get(step, step) for step in path) for path in form.wrote.values())
    return replace(moved, wrote=_first_written(paths, moved))


def _first_written(paths: Iterable[tuple[str, ...]], form: LabelForm) -> dict[str, tuple[str, ...]]:
    """Return the first path below the root to every label of a DAG; those that lead nowhere are left out."""
    if not form.by_path:
        return {}
    taxonomy, wrote = form.taxonomy, {}
    tops = {taxonomy.ids[top] for top in taxonomy.tops.tolist()}
    for path in dict.fromkeys(paths):
        if not path or path[-1] in wrote or path[0] not in tops or path[-1] not in taxonomy:
            continue
        if all(below in taxonomy and above in taxonomy.parents(below) for above, below in pairwise(path)):
            wrote[path[-1]] = path
    return wrote


def _cut(style: TextStyle, labels: Labels) -> Labels:
    return [(row, style.cut(row, label) if not isinstance(label, tuple) else label) for row, label in labels]


def _of_paths(
    labels: Labels, taxonomy: Taxonomy | None, kind: Form, *, number: bool = False, style: TextStyle | None = None
) -> LabelForm:
    """Return the form of paths: of ids of a given taxonomy, or of names that make one, below a virtual root."""
    cut = [(row, unpadded(row, label)) for row, label in labels]
    for row, path in cut:
        if not path:
            raise LabelError(f"row {row}: the path is empty; name at least one node")
    columns = max(len(label) for _, label in labels) if kind == "table" else 0
    if taxonomy is not None:
        layers = Layers.of(taxonomy, _known(taxonomy, {path[-1] for _, path in cut}))
        form = LabelForm(kind, layers, number, columns, rooted=_start_at_root(cut, taxonomy), style=style)
        return replace(form, wrote=_first_written((form.steps_below_root(*label) for label in cut), form))
    paths: Iterable[tuple[str, ...]] = dict.fromkeys(path for _, path in cut)
    ends = sorted({path_id(path) for path in paths})
    if style is not None:  # so that classes_ are sorted as texts, as scikit-learn has them
        paths = sorted({path[:end] for path in paths for end in range(1, len(path) + 1)}, key=style.written)
    layers = Layers.of(Taxonomy.from_paths(paths).under_virtual_root(), ends)
    return LabelForm(kind, layers, number, columns, named=True, style=style)


def _start_at_root(cut: Sequence[tuple[int, tuple[str, ...]]], taxonomy: Taxonomy) -> bool:
    """Return whether paths start at the root of the taxonomy; raise LabelError if some do and some do not.

    The root alone is the path of a label at the root, wherever the others start.
    """
    if taxonomy.root == VIRTUAL_ROOT:
        return False
    root = taxonomy.ids[taxonomy.root]
    rooted = any(path[0] == root for _, path in cut if len(path) > 1)
    for row, path in cut:
        if rooted and path[0] != root:
            raise LabelError(
                f"row {row}: the path {shown(path_id(path))} starts below the root, where others start at "
                f"{shown(root)}; start all paths at the same place"
            )
    return rooted


def _plain(labels: Labels) -> LabelForm:
    """Return the form of labels that stand side by side below a virtual root."""
    for row, label in labels:
        if as_id(label) == "":
            raise LabelError(f"row {row}: the label is missing; leave the row out or name its label")
    values = None
    if not any(isinstance(label, str) for _, label in labels):
        values = np.unique(np.array([label for _, label in labels]))
        if values.dtype.kind not in "biuf":
            raise LabelError(f"labels are text or numbers; got {type(labels[0][1]).__name__}: write them as text")
    if values is None:
        values = np.array(sorted({as_id(label) for _, label in labels}), object)
    taxonomy = Taxonomy.from_edges([(None, value) for value in values.tolist()])
    return LabelForm("plain", Layers.of(taxonomy), values=values)


def _known(taxonomy: Taxonomy, ends: set[str]) -> list[str]:
    """Return those ends the taxonomy knows: the others are told with their row when they are encoded."""
    return sorted(end for end in ends if end in taxonomy)
