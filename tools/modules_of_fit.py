"""Count the hinet modules that `HiNetClassifier().fit(texts, y)` runs: `python tools/modules_of_fit.py`.

A module counts if one of its functions is called during `fit`, in any thread. Importing a module does not count: module
and class bodies, and whatever they call, are left out.
"""

import os
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

TEXTS = ["red apple", "green apple", "yellow banana", "ripe banana", "sweet carrot", "orange carrot"] * 20
LABELS = ["Fruit/Apple", "Fruit/Apple", "Fruit/Banana", "Fruit/Banana", "Root/Carrot", "Root/Carrot"] * 20


def calls_of_fit() -> Counter[str]:
    """Return the number of calls during `fit`, per hinet module."""
    import hinet

    package = str(Path(hinet.__file__).parent)
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(package) or _runs_for_import(frame):
            return
        path = Path(code.co_filename).relative_to(package).with_suffix("")
        calls[".".join(part for part in ("hinet", *path.parts) if part != "__init__")] += 1

    hinet.HiNetClassifier().fit(TEXTS, LABELS)  # imports and compiles everything first
    model = hinet.HiNetClassifier()
    threading.setprofile(count)
    sys.setprofile(count)
    try:
        model.fit(TEXTS, LABELS)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return calls


def _runs_for_import(frame: FrameType) -> bool:
    """Return whether `frame` is a module or class body, or was called from one."""
    step: FrameType | None = frame
    while step is not None:
        if step.f_code.co_name == "<module>" and step.f_globals.get("__name__") != "__main__":
            return True
        if step.f_code is calls_of_fit.__code__:
            return False
        step = step.f_back
    return False


def main() -> None:
    """Print the number of modules and the calls of each."""
    calls = calls_of_fit()
    print(f"fit(texts, y) runs functions of {len(calls)} hinet modules")
    for module in sorted(calls):
        print(f"{calls[module]:8,}  {module}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
