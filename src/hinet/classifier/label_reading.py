"""Reading of labels: the codec of any form of ``y``, and codecs extended by more labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.labels import (
    AUTO,
    LabelCodec,
    LabelKind,
    PathSep,
    SetForm,
    TextStyle,
    all_paths,
    distinct_labels,
    is_missing,
    is_path,
    is_text,
    missing_label,
    prediction_value,
    rows_of,
    steps_of,
    text_style,
    values_by_node,
)
from hinet.data import Traces
from hinet.errors import HiNetError, LabelError, quoted
from hinet.taxonomy import PATH_MARK, PATH_SEP, VIRTUAL_ROOT, Layers, Taxonomy, as_id, has_paths, path_id

Labels = Sequence[tuple[int, Any]]  # distinct labels, each with its first row


def read_labels(
    y: Any, taxonomy: Taxonomy | None, path_sep: PathSep = AUTO, like: LabelCodec | None = None
) -> tuple[LabelCodec, Traces]:
    """Return the codec of training labels, and the labels as traces.

    ``path_sep`` separates the steps of paths as text, see :mod:`hinet.taxonomy.draft`; None never splits texts.
    ``like`` is the codec of all labels, if these are only some of them.

    Raises
    ------
    LabelError
        If a label is missing or not in the taxonomy, or if paths and other labels are mixed; the message names the row.
    """
    rows, is_table = rows_of(y)
    if not len(rows):
        raise HiNetError("there are no rows: y is empty; give at least one labelled row")
    labels = distinct_labels(rows)
    paths = all_paths(rows)
    if like is not None:
        style = like.style
    else:
        texts = [] if paths else [label for _, label in labels]
        style = text_style(texts, path_sep, has_taxonomy=taxonomy is not None)
    if style is not None:
        codec = _path_codec(_split_texts(style, labels), taxonomy, "text", style=style)
    elif paths:
        number = _are_integers(labels)
        codec = _path_codec(labels, taxonomy, "table" if is_table else "paths", number=number)
    elif taxonomy is None:
        codec = _plain_codec(labels)
    else:
        number = _are_integers(labels)
        ends = _known_ids(taxonomy, {as_id(label) for _, label in labels})
        codec = LabelCodec("ids", Layers.of(taxonomy, ends), number)
    if like is not None:
        typed = _in_taxonomy(codec.taxonomy, like.typed_values)
        codec = replace(codec, number=like.number, columns=like.columns, from_root=like.from_root, typed_values=typed)
    else:
        codec = replace(codec, typed_values=_typed_values(codec, labels))
    return codec, codec.encode(y)


def read_with_classes(y: Any, classes: Any, taxonomy: Taxonomy | None, path_sep: PathSep = AUTO) -> LabelCodec:
    """Return the codec of training labels and all ``classes``; errors about classes start with "classes"."""
    try:
        more, _ = rows_of(classes)
        if path_sep == AUTO and taxonomy is None and has_paths(more):
            path_sep = PATH_MARK  # labels are paths if classes are, even if none in y looks like one
    except LabelError as error:
        raise LabelError(f"classes: {error}") from None
    codec, _ = read_labels(y, taxonomy, path_sep)
    try:
        codec = widen_codec(codec, classes)
        codec.encode(classes)
    except LabelError as error:
        raise LabelError(f"classes: {error}") from None
    return codec


def _are_integers(labels: Labels) -> bool:
    """Return whether all labels, or all steps of paths, are whole numbers or missing.

    Predictions are then whole numbers as well; tables may have 7 as 7.0.
    """
    steps = (step for _, label in labels for step in (label if is_path(label) else (label,)))
    return all(type(prediction_value(step)) is int for step in steps if as_id(step) != "")


def _typed_values(codec: LabelCodec, labels: Labels) -> dict[str, Any]:
    """Return the labels and steps that are not text, by the id of their node."""
    if codec.number or codec.kind in ("plain", "text") or all(is_text(label) for _, label in labels):
        return {}
    values = values_by_node(entry for row, label in labels for entry in _label_nodes(codec, row, label))
    return {node: value for node, value in values.items() if type(value) is not str}


def _in_taxonomy(taxonomy: Taxonomy, typed_values: Mapping[str, Any]) -> dict[str, Any]:
    return {node: value for node, value in typed_values.items() if node in taxonomy}


def _label_nodes(codec: LabelCodec, row: int, label: Any) -> Iterator[tuple[int, str, Any]]:
    """Yield the row, the id and the written value of every node of a label."""
    above = ""
    for step in label if is_path(label) else (label,):
        if as_id(step).strip() == "":
            return
        node = above + path_id([as_id(step)]) if codec.named_steps else as_id(step)
        above = node + PATH_SEP
        yield row, node, step


def codec_of_sets(codec: LabelCodec, form: SetForm) -> LabelCodec:
    """Return the codec for rows that may have several labels, in sets of the given form."""
    return replace(codec, layers=Layers.of(codec.taxonomy, codec.label_ids, multilabel=True), sets=form)


def widen_codec(codec: LabelCodec, y: Any) -> LabelCodec:
    """Return the codec extended by the labels of ``y``: an inferred taxonomy grows, a given one must have them."""
    wider = _widened(codec, y)
    return wider if codec.sets is None else codec_of_sets(wider, codec.sets)


def _widened(codec: LabelCodec, y: Any) -> LabelCodec:
    rows, is_table = rows_of(y)
    more = distinct_labels(rows)
    if codec.inferred and codec.style is None:
        all_paths(rows, first=codec.has_paths)
    if codec.kind == "table" and is_table:
        codec = replace(codec, columns=max([codec.columns, *map(len, rows)]))
    if not codec.inferred:
        ends = {codec.id_of(row, label) for row, label in more} | {*codec.label_ids}
        later = _first_paths((codec.steps_below_root(row, label) for row, label in more), codec)
        layers = Layers.of(codec.taxonomy, _known_ids(codec.taxonomy, ends))
        typed_values = {**_typed_values(codec, more), **codec.typed_values}
        return replace(codec, layers=layers, first_paths={**later, **codec.first_paths}, typed_values=typed_values)
    paths = [codec.path_to(node) for node in codec.label_nodes.tolist()]
    if codec.named_steps:
        return _widen_paths(codec, [(0, codec.steps(path)) for path in paths], more)
    wider = _plain_codec([*((0, codec.label_of(path)) for path in paths), *_unknown_labels(codec, more)])
    before, after = codec.values, wider.values
    if before is not None and after is not None and after.dtype.kind != before.dtype.kind:
        raise LabelError(f"the labels were of kind {before.dtype} so far, some are not; give labels of one kind")
    return wider


def _widen_paths(codec: LabelCodec, known: Labels, more: Labels) -> LabelCodec:
    if codec.style is not None:
        ends = {*codec.label_ids}  # their text stays the same
        new = (label for row, label in more if isinstance(label, str) and codec.id_of(row, label) not in ends)
        style = codec.style.with_labels(new)
        return _path_codec([*known, *_split_texts(style, more)], None, "text", style=style)
    if codec.number and not _are_integers(more):
        raise LabelError("the labels were whole numbers so far, some are not; give labels of one kind")
    wider = _path_codec([*known, *more], None, codec.kind, number=codec.number)
    later = {node: value for node, value in _typed_values(codec, more).items() if node not in codec.taxonomy}
    return replace(wider, columns=codec.columns, typed_values={**codec.typed_values, **later})


def _unknown_labels(codec: LabelCodec, labels: Labels) -> Labels:
    """Return the labels that are not in the taxonomy."""
    return [(row, label) for row, label in labels if is_missing(label) or as_id(label) not in codec.taxonomy]


def codec_in_taxonomy(codec: LabelCodec, taxonomy: Taxonomy, renamed: Mapping[str, str]) -> LabelCodec:
    """Return the codec for a changed taxonomy: the labels that are still in it, and all its leaves."""
    if codec.inferred:
        raise HiNetError("the taxonomy was inferred from the labels; fit with taxonomy=... to be able to change it")
    known = _known_ids(taxonomy, {renamed.get(end, end) for end in codec.label_ids})
    layers = Layers.of(taxonomy, known, multilabel=codec.sets is not None)
    moved = replace(codec, layers=layers, from_root=codec.from_root and taxonomy.root != VIRTUAL_ROOT)
    paths = (tuple(renamed.get(step, step) for step in path) for path in codec.first_paths.values())
    typed = _in_taxonomy(taxonomy, codec.typed_values)
    return replace(moved, first_paths=_first_paths(paths, moved), typed_values=typed)


def _first_paths(paths: Iterable[tuple[str, ...]], codec: LabelCodec) -> dict[str, tuple[str, ...]]:
    """Return the first path below the root to every label of a DAG, ignoring paths that are not in the taxonomy."""
    if not codec.by_path:
        return {}
    taxonomy, first_paths = codec.taxonomy, {}
    tops = {taxonomy.ids[top] for top in taxonomy.tops.tolist()}
    for path in dict.fromkeys(paths):
        if not path or path[-1] in first_paths or path[0] not in tops or path[-1] not in taxonomy:
            continue
        if all(below in taxonomy and above in taxonomy.parents(below) for above, below in pairwise(path)):
            first_paths[path[-1]] = path
    return first_paths


def _split_texts(style: TextStyle, labels: Labels) -> Labels:
    return [(row, style.split(row, label) if not isinstance(label, tuple) else label) for row, label in labels]


def _path_codec(
    labels: Labels, taxonomy: Taxonomy | None, kind: LabelKind, *, number: bool = False, style: TextStyle | None = None
) -> LabelCodec:
    """Return the codec of paths of ids in a given taxonomy, or of names, which form a taxonomy with a virtual root."""
    split = [(row, steps_of(row, label)) for row, label in labels]
    columns = max(len(label) for _, label in labels) if kind == "table" else 0
    if taxonomy is not None:
        layers = Layers.of(taxonomy, _known_ids(taxonomy, {path[-1] for _, path in split}))
        codec = LabelCodec(kind, layers, number, columns, from_root=_start_at_root(split, taxonomy), style=style)
        return replace(codec, first_paths=_first_paths((codec.steps_below_root(*label) for label in split), codec))
    paths: Iterable[tuple[str, ...]] = dict.fromkeys(path for _, path in split)
    ends = sorted({path_id(path) for path in paths})
    if style is not None:  # classes_ are sorted as text, as in scikit-learn
        paths = sorted({path[:end] for path in paths for end in range(1, len(path) + 1)}, key=style.written)
    layers = Layers.of(Taxonomy.from_paths(paths).under_virtual_root(), ends)
    return LabelCodec(kind, layers, number, columns, named_steps=True, style=style)


def _start_at_root(paths: Sequence[tuple[int, tuple[str, ...]]], taxonomy: Taxonomy) -> bool:
    """Return whether paths start at the root of the taxonomy; raise LabelError if only some do.

    The root alone is always a valid path.
    """
    if taxonomy.root == VIRTUAL_ROOT:
        return False
    root = taxonomy.ids[taxonomy.root]
    from_root = any(path[0] == root for _, path in paths if len(path) > 1)
    for row, path in paths:
        if from_root and path[0] != root:
            raise LabelError(
                f"row {row}: the path {quoted(path_id(path))} starts below the root, where others start at "
                f"{quoted(root)}; start all paths at the same node"
            )
    return from_root


def _plain_codec(labels: Labels) -> LabelCodec:
    """Return the codec of labels that are siblings below a virtual root."""
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
    return LabelCodec("plain", Layers.of(taxonomy), values=values)


def _sorted_values(by_text: Mapping[str, Any], labels: Labels) -> NDArray[Any]:
    """Return distinct plain labels in order: as a numeric or boolean array if possible, else as objects."""
    distinct = list(by_text.values())
    kinds = {type(value) for value in distinct}
    if kinds == {bool} or kinds <= {int, float}:
        values = np.unique(np.array([label for _, label in labels]))
        whole = all(isinstance(label, (int, np.integer)) for _, label in labels)
        expected = "b" if kinds == {bool} else "iu" if whole else "f"
        if values.dtype.kind in expected and set(values.tolist()) == set(distinct):
            return values
        distinct.sort()
    else:
        distinct = [by_text[text] for text in sorted(by_text)]
    values = np.empty(len(distinct), object)
    values[:] = distinct
    return values


def _known_ids(taxonomy: Taxonomy, ends: set[str]) -> list[str]:
    """Return the ends that are in the taxonomy; encoding raises an error with the row for the others."""
    return sorted(end for end in ends if end in taxonomy)
