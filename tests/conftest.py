import os

os.environ["HF_HUB_OFFLINE"] = "1"  # rejects hub names at once; read when the client is imported
os.environ["OMP_NUM_THREADS"] = "1"  # tests run in parallel; more threads would compete

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from hinet.classifier import inputs
from hinet.compiled import compile_from_now_on

settings.register_profile(
    "hinet", max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("hinet")

compile_from_now_on()  # results must not depend on how long earlier tests took

# Texts are judged by words alone, unless a test is about vectors.
pytest.MonkeyPatch().setattr(inputs, "is_installed", lambda: False)

HERE = Path(__file__).parent
LONG = (
    "cli/test_predict.py", "cluster/test_cluster.py", "test_examples.py", "cli/test_train.py", "cli/test_compare.py",
    "cli/test_help.py", "engine/test_compiling.py", "cli/test_serve.py", "serving/test_process.py",
    "engine/test_compiled.py", "serving/test_schema.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slowest files first, so that two workers finish at about the same time."""
    rank = {HERE / name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path, len(LONG)))
