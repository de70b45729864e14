"""Random hierarchies, and brute-force references for counting and scoring traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from hinet import Layers, Taxonomy
from hinet.taxonomy import STOP

Path = tuple[int, ...]  # the neurons of a trace below the root

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8).filter(
    lambda name: name.strip()
)
awkward_names = st.one_of(
    names,
    st.sampled_from(
        ["a,b", "a\tb", 'say "no"', '"', "a > b", "A", "a\nb", "a\r", " lead", "trail ", "#x", "\ufeffb", "é", "|", "1"]
    ),
)


@st.composite
def edge_lists(draw: st.DrawFn, *, dag: bool, max_nodes: int = 9) -> list[tuple[str | None, str]]:
    """Edges over distinct names, with every node after its parents."""
    nodes = draw(st.lists(awkward_names, min_size=1, max_size=max_nodes, unique=True))
    edges: list[tuple[str | None, str]] = []
    for place, node in enumerate(nodes):
        if dag and place:
            parents = draw(st.lists(st.sampled_from(nodes[:place]), max_size=3, unique=True))
        else:
            parents = draw(st.lists(st.sampled_from(nodes[:place]), max_size=1)) if place else []
        edges += [(parent, node) for parent in parents] or [(None, node)]
    return draw(st.permutations(edges))


@st.composite
def taxonomies(draw: st.DrawFn, *, dag: bool | None = None) -> Taxonomy:
    """A small tree or DAG."""
    kind = draw(st.booleans()) if dag is None else dag
    return Taxonomy.from_edges(draw(edge_lists(dag=kind)))


@st.composite
def layered(draw: st.DrawFn) -> Layers:
    """Layers of a small tree or DAG, in which some inner nodes and possibly the root end traces."""
    return draw(layered_with_ends())[0]


@st.composite
def layered_with_ends(draw: st.DrawFn) -> tuple[Layers, set[str]]:
    """Layers as in :func:`layered`, and the nodes at which a trace may end."""
    taxonomy = draw(taxonomies())
    chosen = draw(st.lists(st.sampled_from(taxonomy.ids), unique=True))
    return Layers.of(taxonomy, ends=chosen), {*chosen, *(node for node in taxonomy if not taxonomy.children(node))}


def all_traces(taxonomy: Taxonomy, ending: set[str]) -> Iterator[tuple[str, ...]]:
    """Every complete trace as a path of ids below the root, by walking the taxonomy."""
    root = taxonomy.ids[taxonomy.root] if taxonomy.root >= 0 else None

    def walk(node: str | None, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if node in ending:
            yield path
        below = [n for n in taxonomy if not taxonomy.parents(n)] if node is None else taxonomy.children(node)
        for child in below:
            yield from walk(child, (*path, child))

    return walk(root, ())


def all_scored(layers: Layers, scores: Sequence[float]) -> dict[Path, float]:
    """Every complete trace, as its neurons, with its log score: the sum along its options."""
    found: dict[Path, float] = {}

    def walk(neuron: int, path: Path, score: float) -> None:
        for option in range(int(layers.option_offsets[neuron]), int(layers.option_offsets[neuron + 1])):
            target, total = int(layers.option_neuron[option]), score + float(scores[option])
            if target == STOP:
                found[path] = total
            else:
                walk(target, (*path, target), total)

    walk(0, (), 0.0)
    return found
