"""Compare the cost of downpour with that of its network: 1,024 rows on the ICD-10-CM graph, k = 256, in one run.

python benchmarks/downpour.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from measure import save

from hinet import Layers, load_icd10cm
from hinet.networks import build_head, downpour, marginals

ROWS, WIDTH, TURNS = 1024, 256, 7


def median_seconds(work: Callable[[], object]) -> float:
    work()
    seconds = []
    for _ in range(TURNS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return round(statistics.median(seconds), 4)


def main() -> None:
    icd = load_icd10cm()
    head = build_head(Layers.of(icd.taxonomy, ends=sorted({*icd.train.labels})), WIDTH)
    torch.manual_seed(0)
    hidden = torch.randn(ROWS, WIDTH)
    with torch.no_grad():
        scores = head.option_scores(hidden)
        results = {
            "rows": ROWS,
            "options": head.graph.options,
            "forward_seconds": median_seconds(lambda: head.option_scores(hidden)),
            "downpour_seconds": median_seconds(lambda: downpour(head.graph, scores)),
            "downpour_top5_seconds": median_seconds(lambda: downpour(head.graph, scores, 5)),
            "marginals_seconds": median_seconds(lambda: marginals(head.graph, scores)),
        }
    results["downpour_to_forward_ratio"] = round(results["downpour_seconds"] / results["forward_seconds"], 3)
    for name, value in results.items():
        print(f"{name:26} {value:,}")
    save("downpour", results)
    if results["downpour_to_forward_ratio"] >= 1:
        raise SystemExit("missed: downpour takes longer than the forward pass")


if __name__ == "__main__":
    main()
