"""Rows and labels that a model was trained on."""

from __future__ import annotations

from typing import Any

import pytest

from hinet.labelling.training import TrainedOn


@pytest.mark.parametrize("manifest", [{}, {"notes": {"columns": {}}}])
def test_a_model_that_its_project_did_not_train_knows_no_labels(manifest: dict[str, Any]) -> None:
    assert TrainedOn.of(manifest)[:3] == (0, 0, "")
