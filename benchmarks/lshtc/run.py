"""Run the paper's comparison on real DMOZ files; README.md in this folder explains where to place them.

HINET_DATA=folder python benchmarks/lshtc/run.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from comparison import PAPER_ROW
from measure import DATA, save

from hinet.cli.compare import print_outcomes
from hinet.data.datasets import TESTS, TRAIN
from hinet.evaluation.comparison import compare, lshtc_comparison, summarise_outcomes

MODELS = ("flatten", "paper-masked", "default")  # dense weights between layers of thousands would not fit


def main() -> None:
    folders = sorted(path.parent for path in DATA.glob(f"lshtc*/**/{TRAIN}"))
    if not folders:
        raise SystemExit(f"no lshtc*/**/{TRAIN} below HINET_DATA={DATA}; README.md explains where to place the files")
    results = {}
    for folder in folders:
        for test in TESTS:
            if (folder / test).exists():
                data = lshtc_comparison(folder, test)
                outcomes = compare(data, MODELS)
                print_outcomes(data, outcomes)
                results[f"{folder.relative_to(DATA)} {test}"] = summarise_outcomes(outcomes)
    print(f"the paper's own results on DMOZ with 11,947 classes: {PAPER_ROW}")
    save("lshtc", results)


if __name__ == "__main__":
    main()
