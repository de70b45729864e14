"""Measure reading a file to layers of neurons: seconds and memory, compared with networkx in the same run.

    python benchmarks/taxonomy.py

``HINET_DATA`` is the folder with ``wikitaxa/nodes_full.tsv.xz``; without it that case is skipped.
"""

from __future__ import annotations

import csv
import lzma
import os
import tempfile
from pathlib import Path
from typing import Any

from measure import DATA, Stopwatch, answer_if_asked, run_alone, save

NCBI = DATA / "wikitaxa" / "nodes_full.tsv.xz"
MILLION = Path(tempfile.gettempdir()) / f"hinet-million-{os.getuid()}.tsv"
CHAIN = Path(tempfile.gettempdir()) / f"hinet-chain-{os.getuid()}.tsv"
BARS = {"ncbi": (4.0, 1.0), "million": (20.0, 3.0), "chain": (4.0, 1.0)}  # maximum seconds and GB


def write_synthetic() -> None:
    for path, size, branching in ((MILLION, 1_000_000, 8), (CHAIN, 5_000, 1)):
        with path.open("w") as file:
            file.write("node\tparent\ttitle\nn0\t\tTitle 0\n")
            file.writelines(f"n{n}\tn{(n - 1) // branching}\tTitle of node {n}\n" for n in range(1, size))


def with_hinet(path: Path) -> dict[str, Any]:
    from hinet import Layers, Taxonomy

    watch = Stopwatch()
    taxonomy = Taxonomy.from_file(path)
    loaded = watch.seconds
    layers = Layers.of(taxonomy)
    seconds = watch.seconds
    return {
        "nodes": len(taxonomy),
        "levels": layers.height,
        "neurons": len(layers.node),
        "edges": len(layers.option_neuron),
        "load_seconds": loaded,
        "layers_seconds": round(seconds - loaded, 3),
        "seconds": seconds,
    }


def with_networkx(path: Path) -> dict[str, Any]:
    """Read the rows, build a graph and find the level of every node with networkx; layers contain more than that."""
    import networkx as nx

    watch = Stopwatch()
    graph = nx.DiGraph()
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as file:
        for node, parent, *title in list(csv.reader(file, delimiter="\t"))[1:]:
            graph.add_node(node, title=title[-1])
            if parent and parent != node:
                graph.add_edge(parent, node)
    levels = sum(1 for _ in nx.topological_generations(graph))
    return {"nodes": len(graph), "levels": levels - 1, "seconds": watch.seconds}


CASES = {
    "ncbi": lambda: with_hinet(NCBI),
    "ncbi networkx": lambda: with_networkx(NCBI),
    "million": lambda: with_hinet(MILLION),
    "million networkx": lambda: with_networkx(MILLION),
    "chain": lambda: with_hinet(CHAIN),
}


def main() -> None:
    answer_if_asked(CASES)
    write_synthetic()
    results: dict[str, Any] = {}
    for case in CASES:
        if case.startswith("ncbi") and not NCBI.exists():
            print(f"{case}: skipped, HINET_DATA has no {NCBI.name}")
            continue
        results[case] = run_alone(__file__, case)
        print(f"{case:18} " + "  ".join(f"{name} {value:,}" for name, value in results[case].items()))
    missed = [case for case in BARS if case in results and not _within_bars(case, results)]
    for path in (MILLION, CHAIN):
        path.unlink()
    save("taxonomy", results)
    if missed:
        raise SystemExit(f"missed: {', '.join(missed)}")


def _within_bars(case: str, results: dict[str, Any]) -> bool:
    ours, theirs = results[case], results.get(f"{case} networkx")
    seconds, memory = BARS[case]
    print(f"{case}: {ours['seconds']} s of {seconds} s, {ours['peak_gb']} GB of {memory} GB")
    if theirs is not None:
        ours["networkx_seconds_ratio"] = round(theirs["seconds"] / ours["seconds"], 2)
        ours["networkx_memory_ratio"] = round(theirs["peak_gb"] / ours["peak_gb"], 2)
        print(f"  networkx: {ours['networkx_seconds_ratio']} x the time, {ours['networkx_memory_ratio']} x the memory")
    return bool(ours["seconds"] <= seconds and ours["peak_gb"] <= memory)


if __name__ == "__main__":
    main()
