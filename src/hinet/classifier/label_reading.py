"""Every form of ``y`` that users bring -> a taxonomy and the form of its labels; more labels later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.label_rows import (
    all_paths,
    all_whole,
    distinct_labels,
    empty_path,
    is_missing,
    is_path,
    is_text,
    missing_label,
    rows_of,
    values_by_node,
)
from hinet.classifier.labels import Form, LabelForm
from hinet.classifier.text_paths import AUTO, PathSep, TextStyle, text_style
from hinet.data import Traces
from hinet.errors import HiNetError, LabelError, quoted
from hinet.taxonomy import PATH_MARK, PATH_SEP, VIRTUAL_ROOT, Layers, Taxonomy, as_id, has_paths, path_id, strip_padding

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
        number = _are_whole(labels)
        form = _of_paths(labels, taxonomy, "table" if is_table else "paths", number=number)
    elif taxonomy is None:
        form = _plain(labels)
    else:
        number = _are_whole(labels)
        form = LabelForm("ids", Layers.of(taxonomy, _known(taxonomy, {as_id(label) for _, label in labels})), number)
    if like is not None:
        typed = _within(form.taxonomy, like.typed)
        form = replace(form, number=like.number, columns=like.columns, rooted=like.rooted, typed=typed)
    else:
        form = replace(form, typed=_typed(form, labels))
    return form, form.encode(y)


def read_with_classes(y: Any, classes: Any, taxonomy: Taxonomy | None, path_sep: PathSep = AUTO) -> LabelForm:
    """Return the form of training labels, wide enough for all ``classes``; errors of these say so."""
    try:
        more, _ = rows_of(classes)
        if path_sep == AUTO and taxonomy is None and has_paths(more):
            path_sep = PATH_MARK  # what classes are, labels are, though none of the first rows looks it
    except LabelError as error:
        raise LabelError(f"classes: {error}") from None
    form, _ = read_labels(y, taxonomy, path_sep)
    try:
        form = widened(form, classes)
        form.encode(classes)
    except LabelError as error:
        raise LabelError(f"classes: {error}") from None
    return form


def _are_whole(labels: Labels) -> bool:
    """Return whether all labels, or all steps of paths, are whole numbers, where they are not missing."""
    steps = (step for _, label in labels for step in (label if is_path(label) else (label,)))
    return all_whole(step for step in steps if as_id(step) != "")


def _typed(form: LabelForm, labels: Labels) -> dict[str, Any]:
    """Return the steps and ids of labels that are no text, by the id of their node."""
    if form.number or form.form in ("plain", "text") or all(is_text(label) for _, label in labels):
        return {}
    values = values_by_node(entry for row, label in labels for entry in _written_nodes(form, row, label))
    return {node: value for node, value in values.items() if type(value) is not str}


def _within(taxonomy: Taxonomy, typed: Mapping[str, Any]) -> dict[str, Any]:
    return {node: value for node, value in typed.items() if node in taxonomy}


def _written_nodes(form: LabelForm, row: int, label: Any) -> Iterator[tuple[int, str, Any]]:
    """Yield the row, the id and what was written for every node of a label."""
    above = ""
    for step in label if is_path(label) else (label,):
        if as_id(step).strip() == "":
            return
        node = above + path_id([as_id(step)]) if form.named else as_id(step)
        above = node + PATH_SEP
        yield row, node, step


def widened(form: LabelForm, y: Any) -> LabelForm:
    """Return the form with the labels of ``y`` as well: an inferred taxonomy grows, a given one knows them."""
    rows, is_table = rows_of(y)
    more = distinct_labels(rows)
    if form.inferred and form.style is None:
        all_paths(rows, first=form.has_paths)
    if form.form == "table" and is_table:
        form = replace(form, columns=max([form.columns, *map(len, rows)]))
    if not form.inferred:
        ends = {form.id_of(row, label) for row, label in more} | {form.taxonomy.ids[at] for at in form.label_nodes}
        later = _first_written((form.steps_below_root(row, label) for row, label in more), form)
        layers = Layers.of(form.taxonomy, _known(form.taxonomy, ends))
        typed = {**_typed(form, more), **form.typed}
        return replace(form, layers=layers, wrote={**later, **form.wrote}, typed=typed)
    paths = [form.path_to(node) for node in form.label_nodes.tolist()]
    if form.named:
        return _with_paths(form, [(0, form.steps(path)) for path in paths], more)
    found = _plain([*((0, form.label_of(path)) for path in paths), *_new(form, more)])
    before, after = form.values, found.values
    if before is not None and after is not None and after.dtype.kind != before.dtype.kind:
        raise LabelError(f"the labels were of kind {before.dtype} so far, some are not; give labels of one kind")
    return found


def _with_paths(form: LabelForm, known: Labels, more: Labels) -> LabelForm:
    if form.style is not None:
        ends = {form.taxonomy.ids[node] for node in form.label_nodes.tolist()}  # whose spelling stays as it is
        new = (label for row, label in more if isinstance(label, str) and form.id_of(row, label) not in ends)
        style = form.style.with_labels(new)
        return _of_paths([*known, *_cut(style, more)], None, "text", style=style)
    if form.number and not _are_whole(more):
        raise LabelError("the labels were whole numbers so far, some are not; give labels of one kind")
    found = _of_paths([*known, *more], None, form.form, number=form.number)
    later = {node: value for node, value in _typed(form, more).items() if node not in form.taxonomy}
    return replace(found, columns=form.columns, typed={**form.typed, **later})


def _new(form: LabelForm, labels: Labels) -> Labels:
    """Return the labels that the form does not know yet: of the others it knows how they are written."""
    return [(row, label) for row, label in labels if is_missing(label) or as_id(label) not in form.taxonomy]


def in_taxonomy(form: LabelForm, taxonomy: Taxonomy, renamed: Mapping[str, str]) -> LabelForm:
    """Return the form in a changed taxonomy: labels that are still there, and all its leaves."""
    if form.inferred:
        raise HiNetError("the taxonomy was inferred from the labels; fit with taxonomy=... to be able to change it")
    ends = {form.taxonomy.ids[node] for node in form.label_nodes.tolist()}
    layers = Layers.of(taxonomy, _known(taxonomy, {renamed.get(end, end) for end in ends}))
    moved = replace(form, layers=layers, rooted=form.rooted and taxonomy.root != VIRTUAL_ROOT)
    paths = (tuple(renamed.get(step, step) for step in path) for path in form.wrote.values())
    return replace(moved, wrote=_first_written(paths, moved), typed=_within(taxonomy, form.typed))


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
    cut = [(row, strip_padding(row, label)) for row, label in labels]
    for row, path in cut:
        if not path:
            raise empty_path(row)
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
                f"row {row}: the path {quoted(path_id(path))} starts below the root, where others start at "
                f"{quoted(root)}; start all paths at the same place"
            )
    return rooted


def _plain(labels: Labels) -> LabelForm:
    """Return the form of labels that stand side by side below a virtual root."""
    for row, label in labels:
        if is_missing(label):
            raise missing_label(row)
        if not isinstance(label, (str, bool, int, float, np.bool_, np.number)):
            raise LabelError(
                f"row {row}: labels are text or numbers; got {type(label).__name__} {quoted(str(label))}: "
                "write them as text"
            )
    values = _sorted_values(values_by_node((row, as_id(label), label) for row, label in labels), labels)
    taxonomy = Taxonomy.from_edges([(None, value) for value in values.tolist()])
    return LabelForm("plain", Layers.of(taxonomy), values=values)


def _sorted_values(by_text: Mapping[str, Any], labels: Labels) -> NDArray[Any]:
    """Return distinct plain labels in order: numbers, or truth values, as an array of theirs, if it holds them all."""
    found = list(by_text.values())
    kinds = {type(value) for value in found}
    if kinds == {bool} or kinds <= {int, float}:
        values = np.unique(np.array([label for _, label in labels]))
        whole = all(isinstance(label, (int, np.integer)) for _, label in labels)
        expected = "b" if kinds == {bool} else "iu" if whole else "f"
        if values.dtype.kind in expected and set(values.tolist()) == set(found):
            return values
        found.sort()
    else:
        found = [by_text[text] for text in sorted(by_text)]
    values = np.empty(len(found), object)
    values[:] = found
    return values


def _known(taxonomy: Taxonomy, ends: set[str]) -> list[str]:
    """Return those ends the taxonomy knows: the others are told with their row when they are encoded."""
    return sorted(end for end in ends if end in taxonomy)
