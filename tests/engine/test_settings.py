"""Defaults for each kind of rows."""

from __future__ import annotations

import pytest

from hinet.engine.settings import STATIC_EPOCHS, EngineSettings, RowShape, has_flat_by_default, settings_for


@pytest.mark.parametrize("several", [False, True])
def test_quick_effort_trains_less_on_dense_rows_too(several: bool) -> None:
    shape = RowShape(1_000, 4.0)
    usual, quick = (
        settings_for(EngineSettings(effort=effort), shape, dense=True, several=several)
        for effort in ("default", "quick")
    )
    members = [settings.members_for(shape.rows) for settings in (usual, quick)]
    widths = [settings.width_for(settings.members_for(shape.rows), 5_000) for settings in (usual, quick)]
    assert members[0] > members[1] == 1
    assert widths[0] > widths[1]
    assert shape.epochs(usual) == 2 * shape.epochs(quick) > 10
    given = settings_for(EngineSettings(effort="quick", deep_epochs=7, members=3), shape, dense=True, several=several)
    assert (shape.epochs(given), given.members) == (7, 3)


def test_vectors_are_whitened_and_static_ones_need_fewer_epochs() -> None:
    shape = RowShape(10_000, 20.0)
    plain, encoder, static = (
        settings_for(EngineSettings(), shape, vectors=vectors) for vectors in (None, "encoder", "static")
    )
    assert [plain.whiten, encoder.whiten, static.whiten] == [False, True, True]
    assert shape.epochs(plain) == shape.epochs(encoder)
    assert shape.epochs(static) == round(STATIC_EPOCHS * shape.epochs(plain))


def test_the_flat_expert_is_for_few_labels_and_for_more_with_many_rows_each() -> None:
    cases = [(1_024, 10), (1_025, 8_199), (1_025, 8_200), (2_048, 16_384), (2_049, 100_000)]
    assert [has_flat_by_default(labels, rows) for labels, rows in cases] == [True, False, True, True, False]


def test_more_dense_rows_with_several_labels_need_less_dropout() -> None:
    def dropout(rows: int) -> float | None:
        return settings_for(EngineSettings(), RowShape(rows, 80.0), dense=True, several=True).dropout

    found = [dropout(rows) for rows in (10, 2_500, 5_000, 10_000, 1_000_000)]
    assert found == pytest.approx([0.6, 0.6, 0.525, 0.45, 0.3])
