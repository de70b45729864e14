"""Compare flat and hierarchical networks on NAICS and LSHTC: three seeds per named model, and our ablation.

    HINET_DATA=folder python benchmarks/comparison.py [naics|lshtc|wordnet] [--threads N]

``HINET_DATA`` contains ``naics2022_index/``, ``lshtc1_dryrun/`` and ``wordnet_nouns/``. On WordNet, a DAG, weights per
edge are compared with tied weights on a fifth of the training rows. Results: ``benchmarks/results/compare_*.json``.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import asdict

from measure import DATA, RESULTS, save

from hinet.cli.compare import print_outcomes
from hinet.data.tables import Columns
from hinet.evaluation.comparison import ComparisonData, compare, lshtc_comparison, summarise_outcomes, table_comparison
from hinet.evaluation.plots import plot_comparison

NAMED = ("flatten", "paper", "paper-masked", "default")
ABLATION = [
    "-".join(choice)
    for choice in itertools.product(("chain", "skip"), ("level", "parent"), ("squared", "cross_entropy"), ("masked",))
] + ["chain-level-cross_entropy-dense"]
PAPER_ROW = {"flatten": 39.2, "hinet": 41.4}  # accuracy in percent in the paper: DMOZ with 11,947 classes


def naics() -> ComparisonData:
    folder = DATA / "naics2022_index"
    columns = Columns(label=("code",))
    return table_comparison(folder / "naics2022_index.tsv", columns, split="split", hierarchy=folder / "hierarchy.tsv")


def lshtc() -> ComparisonData:
    return lshtc_comparison(DATA / "lshtc1_dryrun" / "task2", "validation.txt")


def wordnet() -> ComparisonData:
    folder = DATA / "wordnet_nouns"
    columns = Columns(label=("labels",), label_sep=" ")
    return table_comparison(folder / "train.tsv.xz", columns, hierarchy=folder / "hierarchy.tsv")


def compare_rows_per_edge(threads: int | None) -> None:
    data = wordnet()
    outcomes = compare(data, ("default", "default-tied"), training={"epochs": 4}, threads=threads)
    print_outcomes(data, outcomes)
    save("compare_wordnet", {"data": data.name, "threads": threads, "summary": summarise_outcomes(outcomes)})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("only", nargs="?", choices=("naics", "lshtc", "wordnet"))
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    if arguments.only in (None, "wordnet"):
        compare_rows_per_edge(arguments.threads)
    for name, load in (("lshtc", lshtc), ("naics", naics)):
        if arguments.only not in (None, name):
            continue
        data = load()
        outcomes = compare(data, NAMED, seeds=(0, 1, 2), threads=arguments.threads)
        ablation = compare(data, ABLATION, threads=arguments.threads)
        print_outcomes(data, outcomes)
        print_outcomes(data, ablation)
        print(f"the paper's own results on DMOZ with 11,947 classes: {PAPER_ROW}")
        plot_comparison(outcomes, data.name, RESULTS / f"compare_{name}.png")
        save(
            f"compare_{name}",
            {
                "data": data.name,
                "threads": arguments.threads,
                "train_rows": len(data.train),
                "test_rows": len(data.test),
                "summary": summarise_outcomes(outcomes),
                "ablation": summarise_outcomes(ablation),
                "outcomes": [asdict(outcome) for outcome in (*outcomes, *ablation)],
            },
        )


if __name__ == "__main__":
    main()
