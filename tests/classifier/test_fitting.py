"""The settings of the engine for rows of different kinds."""

from __future__ import annotations

import numpy as np
import pytest

from hinet.classifier.fitting import RowShape, settings_for
from hinet.classifier.inputs import MatrixInput
from hinet.engine import EngineSettings
from tests.classifier.data import numbers, small


@pytest.mark.parametrize("several", [False, True])
def test_quick_effort_trains_less_on_dense_rows_too(several: bool) -> None:
    features = MatrixInput.fit(np.eye(4, dtype=np.float32), (), scaled=True)
    shape = RowShape(1_000, 4.0)
    usual, quick = (
        settings_for(EngineSettings(effort=effort), features, shape, several=several) for effort in ("default", "quick")
    )
    members, widths = (
        [settings.members_for(shape.rows) for settings in (usual, quick)],
        [settings.width_for(settings.members_for(shape.rows), 5_000) for settings in (usual, quick)],
    )
    assert members[0] > members[1] == 1
    assert widths[0] > widths[1]
    assert shape.epochs(usual) == 2 * shape.epochs(quick) > 10
    given = settings_for(EngineSettings(effort="quick", deep_epochs=7, members=3), features, shape, several=several)
    assert (shape.epochs(given), given.members) == (7, 3)


def test_tiny_weights_train_the_same_model() -> None:
    rows, labels = numbers()
    plain, tiny = (small().fit(rows, labels, sample_weight=weight) for weight in (None, np.full(len(labels), 1e-300)))
    np.testing.assert_array_equal(tiny.predict_proba(rows), plain.predict_proba(rows))
