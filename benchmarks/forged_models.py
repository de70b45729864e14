"""Try ten thousand forged models: each must be rejected with a HiNetError, or load and answer; none may crash.

    python benchmarks/forged_models.py               saves benchmarks/results/forged_models.json
    python benchmarks/forged_models.py 300           runs fewer cases, prints one JSON object and saves nothing

Arrays, headers, taxonomy and manifest are changed, with digests that match. Each model is asked for labels,
probabilities, traces and an explanation, updated to another taxonomy, inspected, and used from the shell.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's threads do not survive a fork

from forging import FUSED, OUTCOMES, TORCH, trained, try_all
from measure import Stopwatch, save

CASES = 10_000


def measured(cases: int) -> dict[str, Any]:
    """Try ``count`` forged models; return the number of each outcome, and the first few failures."""
    watch = Stopwatch()
    counts: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
    bad = []
    with tempfile.TemporaryDirectory() as folder:
        bases = trained(Path(folder), (*FUSED, *TORCH))
        for seed, changed, outcome in try_all(bases, range(cases)):
            counts[outcome.kind] += 1
            if outcome.kind not in ("refused", "answered"):
                bad.append({"seed": seed, "changed": changed, "outcome": outcome.kind, "said": outcome.detail})
    return {"cases": sum(counts.values()), **counts, "seconds": watch.seconds, "bad": bad[:20]}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measured(int(sys.argv[1])), indent=1))
    else:
        found = measured(CASES)
        print(json.dumps(found, indent=1))
        save("forged_models", {"forged": found})
