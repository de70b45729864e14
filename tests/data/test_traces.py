from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hinet import LabelError, Layers, Taxonomy, Traces
from hinet.taxonomy import STOP
from tests.strategies import all_traces, layered_with_ends


@st.composite
def labelled(draw: st.DrawFn) -> tuple[Layers, list[list[str]]]:
    layers, ending = draw(layered_with_ends())
    rows = draw(st.lists(st.lists(st.sampled_from(sorted(ending)), max_size=3, unique=True), max_size=6))
    return layers, rows


@given(labelled())
def test_decode_undoes_encode(case: tuple[Layers, list[list[str]]]) -> None:
    layers, rows = case
    assert Traces.encode_sets(layers, rows).decode_sets() == [tuple(row) for row in rows]
    single = [row[0] for row in rows if row]
    assert Traces.encode(layers, single).decode() == single


@given(labelled())
def test_a_label_keeps_all_its_paths_and_no_others(case: tuple[Layers, list[list[str]]]) -> None:
    layers, rows = case
    taxonomy = layers.taxonomy
    root = taxonomy.ids[taxonomy.root] if taxonomy.root >= 0 else None
    by_label: dict[str | None, list[tuple[str, ...]]] = {}
    for path in all_traces(taxonomy, {label for row in rows for label in row}):
        by_label.setdefault(path[-1] if path else root, []).append(path)
    for row, paths in zip(rows, Traces.encode_sets(layers, rows).paths(), strict=True):
        assert sorted(paths) == sorted(path for label in row for path in by_label[label])


@given(labelled())
def test_every_trace_steps_along_allowed_edges_and_ends_in_stop(case: tuple[Layers, list[list[str]]]) -> None:
    layers, rows = case
    traces = Traces.encode_sets(layers, rows)
    for start, end in zip(traces.offsets, traces.offsets[1:], strict=False):
        above = 0
        for neuron in [*traces.neurons[start:end].tolist(), STOP]:
            options = layers.option_neuron[layers.option_offsets[above] : layers.option_offsets[above + 1]]
            assert neuron in options.tolist()
            above = neuron


@given(layered_with_ends())
def test_every_path_can_be_encoded(case: tuple[Layers, set[str]]) -> None:
    layers, ending = case
    paths = list(all_traces(layers.taxonomy, ending))
    assume(paths)
    traces = Traces.encode_paths(layers, paths)
    assert traces.paths() == [[path] for path in paths]
    assert len(traces) == len(paths)


def animals() -> Layers:
    return Layers.of(Taxonomy.from_edges([("animal", "pet"), ("pet", "cat"), ("animal", "wild")]), ends=["cat", "wild"])


def test_an_unknown_label_raises_with_its_row_and_the_nearest_id() -> None:
    with pytest.raises(
        LabelError, match=r"row 1: label 'cats' is not in the taxonomy of 4 nodes; did you mean 'cat'\?"
    ):
        Traces.encode(animals(), ["cat", "cats"])
    with pytest.raises(LabelError, match=r"row 2: label 'cats' .* did you mean 'cat'\?"):
        Traces.encode_sets(animals(), [["cat", "wild"], [], ["cats"]])


def test_a_label_that_cannot_end_a_trace_raises() -> None:
    with pytest.raises(LabelError, match="row 1: no trace may end at 'pet'"):
        Traces.encode(animals(), ["cat", "pet", "pet"])
    with pytest.raises(LabelError, match="row 0: no trace may end at 'pet'"):
        Traces.encode_paths(animals(), [["pet"]])
    with pytest.raises(LabelError, match="row 1: no trace may end at 'animal'"):
        Traces.encode_sets(animals(), [[], ["animal"]])


def test_a_path_that_does_not_follow_edges_raises() -> None:
    with pytest.raises(LabelError, match="row 1: 'cat' is not a child of 'animal'"):
        Traces.encode_paths(animals(), [["pet", "cat"], ["cat"]])
    lone = Layers.of(Taxonomy.from_edges([(None, "a"), (None, "b"), ("b", "c")]))
    with pytest.raises(LabelError, match="row 0: 'c' is not a child of the root"):
        Traces.encode_paths(lone, [["c"]])
    with pytest.raises(LabelError, match="row 0: the path is empty"):
        Traces.encode_paths(lone, [[]])


def test_decode_requires_one_label_per_row() -> None:
    with pytest.raises(LabelError, match="row 1: 2 labels"):
        Traces.encode_sets(animals(), [["cat"], ["cat", "wild"]]).decode()
    with pytest.raises(LabelError, match="row 0: 0 labels"):
        Traces.encode_sets(animals(), [[]]).decode()


def test_a_label_with_too_many_paths_asks_for_the_path() -> None:
    levels = [["top"], *([f"{level}{node}" for node in range(3)] for level in range(9)), ["end"]]
    edges = [(parent, child) for above, below in pairwise(levels) for parent in above for child in below]
    layers = Layers.of(Taxonomy.from_edges(edges))
    with pytest.raises(LabelError, match="row 0: label 'end' has 19,683 paths, more than 10,000; give the path itself"):
        Traces.encode(layers, ["end"])
    path = [*(f"{level}1" for level in range(9)), "end"]
    assert Traces.encode_paths(layers, [path]).decode() == ["end"]


def test_no_rows_are_valid() -> None:
    assert Traces.encode(animals(), []).decode() == []
    assert Traces.encode_paths(animals(), []).paths() == []


def test_a_deep_chain_is_encoded_without_recursion() -> None:
    layers = Layers.of(Taxonomy.from_edges([(str(n), str(n + 1)) for n in range(5000)]))
    traces = Traces.encode(layers, ["5000", "1"])
    assert np.diff(traces.offsets).tolist() == [5000, 1]
    assert traces.decode() == ["5000", "1"]


def test_unknown_steps_and_padding_raise_with_the_row() -> None:
    with pytest.raises(
        LabelError, match=r"row 1: label 'cats' is not in the taxonomy of 4 nodes; did you mean 'cat'\?"
    ):
        Traces.encode_paths(animals(), [["pet", "cat"], ["pet", "cats"]])
    assert Traces.encode_paths(animals(), [["wild", ""], ["pet", "cat"]]).decode() == ["wild", "cat"]


def test_values_that_are_not_a_list_of_labels_raise() -> None:
    with pytest.raises(LabelError, match="expected a list of labels, got the text 'cat'"):
        Traces.encode(animals(), "cat")
    with pytest.raises(LabelError, match="row 1: expected one label, got 2; use encode_sets"):
        Traces.encode(animals(), ["cat", ["cat", "wild"]])


def test_unreachable_labels_raise() -> None:
    layers = Layers.of(Taxonomy.from_edges([("r", "a"), (None, "lost")], root="r"))
    with pytest.raises(LabelError, match="row 0: 'lost' cannot be reached from the root"):
        Traces.encode(layers, ["lost"])


def test_joined_parts_equal_the_whole() -> None:
    parts = [Traces.encode(animals(), ["cat"]), Traces.encode(animals(), []), Traces.encode(animals(), ["wild", "cat"])]
    assert Traces.joined(animals(), parts).decode() == ["cat", "wild", "cat"]
    assert Traces.joined(animals(), []).decode() == []
