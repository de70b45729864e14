from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hinet import HiNetClassifier
from hinet.classifier.answers import PredictionOptions
from hinet.classifier.saved_model import load_model
from hinet.cluster import SPARK_SCHEMA, predict_batches

TEXTS = ["rye bread", "whole milk", "", "toy car", "brown bread", "milk train"] * 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spark") / "model"
    texts = ["rye bread", "white bread", "whole milk", "skimmed milk", "toy car", "toy train"]
    HiNetClassifier(n_jobs=1).fit(texts, [("Food", "Bread")] * 2 + [("Food", "Milk")] * 2 + [("Toys",)] * 2).save(
        folder
    )
    return folder


def expected(model: Path) -> list[tuple[Any, ...]]:
    cells = load_model(model, 1).table(PredictionOptions()).columns(TEXTS)
    return list(zip(cells["label"], cells["trace"], cells["probability"], strict=True))


def test_batches_of_pandas_are_answered_as_one(model: Path) -> None:
    batches = [pd.Series(TEXTS[:7]), pd.Series([None if text == "" else text for text in TEXTS[7:]], dtype=object)]
    answers = pd.concat(predict_batches(model, batches))
    assert [name.split()[0] for name in SPARK_SCHEMA.split(", ")] == [*answers.columns]
    filled = [row for row in zip(TEXTS, expected(model), strict=True) if row[0]]
    assert [tuple(row) for row in answers[[bool(text) for text in TEXTS]].to_numpy().tolist()] == [
        (row[0], row[1], row[2]) for _, row in filled
    ]
    assert answers["label"].isna().sum() == TEXTS.count("")


@pytest.mark.filterwarnings("ignore")
def test_a_pandas_udf_of_spark_answers_as_one_machine(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sql = pytest.importorskip("pyspark.sql", reason="needs pyspark and Java")
    functions = pytest.importorskip("pyspark.sql.functions")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1"}
    settings["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(sys.path)
    builder = sql.SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    folder = str(model)

    def answers(batches: Any) -> Any:
        return predict_batches(folder, batches)

    answers.__annotations__ = {"batches": "Iterator[pd.Series]", "return": "Iterator[pd.DataFrame]"}
    try:
        predict = functions.pandas_udf(answers, SPARK_SCHEMA, functions.PandasUDFType.SCALAR_ITER)
        rows = spark.createDataFrame([*enumerate(TEXTS)], ["id", "text"]).repartition(2)
        table = rows.withColumn("answer", predict("text")).orderBy("id").select("answer.*").collect()
    finally:
        spark.stop()
    assert [tuple(row) for row in table] == expected(model)
