"""Model cards: training data, evaluation, intended use and limits of a saved model, as Markdown with YAML metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hinet.classifier.estimator import HiNetClassifier
from hinet.classifier.model_folder import metrics_text, trainings_of, updates_text
from hinet.classifier.parameters import plain_parameters
from hinet.classifier.predicted_sets import SetRule
from hinet.engine.model.fused import Trust
from hinet.errors import counted
from hinet.evaluation.risk import RiskBound

# Parameters that do not describe the model.
OMITTED = ("taxonomy", "verbose", "checkpoint", "checkpoint_every", "n_jobs", "memory_limit", "warm_start", "device")
# Metrics of a saved evaluation that a card shows, in this order.
METRICS = {
    "accuracy": "accuracy",
    "hierarchical_f1": "hierarchical F1",
    "hierarchical_precision": "hierarchical precision",
    "hierarchical_recall": "hierarchical recall",
    "micro_f1": "micro F1 of sets",
    "label_f1_macro": "macro F1 of labels",
    "lca_f1": "LCA F1",
    "tree_distance": "distance to the true label, in edges",
    "calibration_error": "expected calibration error",
    "brier_score": "Brier score",
}


def model_card(
    name: str,
    manifest: Mapping[str, Any],
    taxonomy: Mapping[str, Any],
    evaluation: Mapping[str, Any] | None = None,
) -> str:
    """Return the card of a saved model.

    Parameters
    ----------
    name : str
        The name of the model.
    manifest : mapping
        The manifest of the model; see :func:`hinet.classifier.saved_model.read_description`.
    taxonomy : mapping
        Statistics of its taxonomy; see :func:`hinet.taxonomy.check.summarise`.
    evaluation : mapping, optional
        The saved evaluation; see :func:`hinet.classifier.model_folder.read_evaluation`.
    """
    parts = [
        _front_matter(name, manifest, evaluation),
        f"# {_plain(name)}\n\n{_summary(manifest, taxonomy)}",
        f"## How to use it\n\n{_usage(manifest)}",
        f"## Intended use and limits\n\n{_limits(manifest, evaluation)}",
        f"## Training data\n\n{_training_data(manifest)}",
        f"## Taxonomy\n\n{_taxonomy(taxonomy)}",
        f"## Evaluation\n\n{_evaluation(manifest, evaluation)}",
        f"## Calibration\n\n{_calibration(manifest)}",
        f"## Settings\n\n{_settings(manifest)}",
        f"## Versions and files\n\n{_files(manifest)}",
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(name: str, manifest: Mapping[str, Any], evaluation: Mapping[str, Any] | None) -> str:
    """Return the metadata for Hugging Face; every value is JSON, which is valid YAML."""
    task = "text-classification" if _reads_text(manifest) else "tabular-classification"
    values: dict[str, Any] = {
        "library_name": "hinet",
        "pipeline_tag": task,
        "tags": ["hinet", "hierarchical-classification", "taxonomy", *(["multi-label"] if _several(manifest) else [])],
    }
    figures = _known_metrics(evaluation)
    if evaluation is not None and figures:
        values["metrics"] = [metric for metric in figures if metric in ("accuracy", "brier_score")] or ["accuracy"]
        result = {
            "task": {"type": task, "name": "hierarchical classification"},
            "dataset": {"name": str(evaluation.get("name", "rows")), "type": "rows"},
            "metrics": [{"type": key, "name": METRICS[key], "value": value} for key, value in figures.items()],
        }
        values["model-index"] = [{"name": name, "results": [result]}]
    lines = [f"{key}: {json.dumps(value, ensure_ascii=True)}" for key, value in values.items()]
    return "\n".join(["---", *lines, "---"])


def _reads_text(manifest: Mapping[str, Any]) -> bool:
    features = manifest["features"]
    return bool(features["kind"] == "text" or (features["kind"] == "frame" and features["columns"]["text"]))


def _several(manifest: Mapping[str, Any]) -> bool:
    return manifest.get("set_rule") is not None


def _known_metrics(evaluation: Mapping[str, Any] | None) -> dict[str, float]:
    metrics = (evaluation or {}).get("metrics", {})
    return {key: metrics[key] for key in METRICS if isinstance(metrics.get(key), int | float)}


def _summary(manifest: Mapping[str, Any], taxonomy: Mapping[str, Any]) -> str:
    rows = "texts" if _reads_text(manifest) else "rows of features"
    answer = (
        "sets of labels" if _several(manifest) else "one label, with the path to it and a probability for every step"
    )
    nodes, levels = counted(taxonomy["nodes"], "node"), counted(taxonomy["levels"], "level")
    return (
        f"Classifies {rows} into a {taxonomy['kind']} of {nodes} in {levels}. It answers with "
        f"{answer}. Made with hinet {_plain(manifest['versions'].get('hinet', '?'))}."
    )


def _usage(manifest: Mapping[str, Any]) -> str:
    lines = ["```python", "import hinet", "", 'classifier = hinet.load("folder-of-this-model")']
    if manifest["features"]["kind"] == "text":
        lines.append('classifier.predict(["a text"])')
    else:
        lines.append("classifier.predict(rows)      # rows need the columns of the training rows")
    return "\n".join([*lines, "```"])


def _limits(manifest: Mapping[str, Any], evaluation: Mapping[str, Any] | None) -> str:
    rows = sum(training["rows"] for training in trainings_of(manifest))
    source = (
        f"For rows from the same source as its {counted(rows, 'training row')}. On others, its answers may be far off."
    )
    labels = "Unfair or wrong labels in the training rows come back as answers. Let"
    if not rows:
        source = (
            "**It has seen no rows**, only the titles, synonyms and definitions of its taxonomy. Evaluate it before "
            "you rely on it. `hinet update MODEL --rows rows.csv` trains it on the first rows."
        )
        labels = "Let"
    points = [
        source,
        "It answers only with nodes of its taxonomy, whatever it is asked.",
        _words_limit(manifest),
        f"{labels} a person decide where an answer has consequences for people.",
        f"Loading it executes no code of it. It keeps words and labels of its {_known_texts(manifest)}.",
    ]
    if evaluation is None:
        points.append("**No evaluation is kept with it.** `hinet evaluate MODEL rows.csv --keep` adds one.")
    if manifest["calibration"] is None and not _several(manifest):
        scaled = "" if rows else " on rows, only on titles with words left out and added"
        points.append(f"**It is not calibrated**{scaled}: do not use its probabilities as shares of right answers.")
    return "\n".join(f"- {point}" for point in points)


def _known_texts(manifest: Mapping[str, Any]) -> str:
    return "training rows" if any(training["rows"] for training in trainings_of(manifest)) else "taxonomy"


def _words_limit(manifest: Mapping[str, Any]) -> str:
    """Return the limits of the model on rows unlike its training rows."""
    features = manifest["features"]
    if features["kind"] != "text" or "tuned" in features:
        return "It reads the columns of its training rows, and errs where their meaning changed."
    words = f"It knows the words of its {_known_texts(manifest)}."
    if manifest.get("trust") is None:
        return f"{words} Texts without known words get an answer that says nothing; a threshold leaves them out."
    return (
        f"{words} The fewer words of a text it knows, the lower are the probabilities of its answer; a threshold "
        "leaves such texts out."
    )


def _training_data(manifest: Mapping[str, Any]) -> str:
    first, *updates = trainings_of(manifest)
    rows = f"{first['rows']:,}" if first["rows"] else "none: it was trained on the taxonomy alone"
    cells = {"rows": rows, "labels": f"{first['labels']:,}"}
    if first.get("titles"):
        whose = "titles of labels" if first["rows"] else "titles, synonyms and definitions"
        cells[f"{whose}, trained on like rows"] = f"{first['titles']:,}"
    if first.get("blake2b"):
        cells["fingerprint (BLAKE2 of features and labels)"] = _code(first["blake2b"])
    if updates:
        cells["updated"] = updates_text(updates)
        if updates[-1].get("blake2b"):
            cells["fingerprint of the last update"] = _code(updates[-1]["blake2b"])
    notes = manifest.get("notes")
    columns = notes.get("columns") if isinstance(notes, Mapping) else None
    if isinstance(columns, Mapping):
        named = [
            f"{kind} {', '.join(map(str, names))}"
            for kind, names in columns.items()
            if names and isinstance(names, list)
        ]
        cells["columns"] = _plain("; ".join(named))
    return _table(cells)


def _taxonomy(taxonomy: Mapping[str, Any]) -> str:
    branching = taxonomy["branching"]
    return _table(
        {
            "kind": taxonomy["kind"],
            "nodes, edges": f"{taxonomy['nodes']:,}, {taxonomy['edges']:,}",
            "leaves": f"{taxonomy['leaves']:,}",
            "levels": str(taxonomy["levels"]),
            "nodes with several parents": f"{taxonomy['several_parents']:,}",
            "children of an inner node": f"{branching['mean']:g} on average, at most {branching['max']:,}",
        }
    )


def _evaluation(manifest: Mapping[str, Any], evaluation: Mapping[str, Any] | None) -> str:
    parts = []
    figures = _known_metrics(evaluation)
    if evaluation is not None and figures:
        rows = f"On {counted(evaluation.get('rows', 0), 'row')} of {_code(evaluation.get('name', ''))}"
        parts.append(f"{rows}, evaluated {_plain(str(evaluation.get('evaluated', ''))[:10])}:")
        parts.append(_table({METRICS[key]: _figure(key, value) for key, value in figures.items()}))
        if _several(manifest):
            parts.append("These are figures of the first label of each answer; `hinet evaluate` prints those of sets.")
        levels = evaluation.get("level_accuracy") or []
        if levels:
            parts.append("Accuracy by level: " + ", ".join(f"{100 * share:.1f}%" for share in levels) + ".")
    for name, metrics in manifest["metrics"].items():
        parts.append(
            f"On {counted(metrics['rows'], 'row')} held out from training ({_plain(name)}): {metrics_text(metrics)}."
        )
    return "\n\n".join(parts) or "None is kept with the model."


def _figure(key: str, value: float) -> str:
    return f"{value:.3f}" if key in ("tree_distance", "calibration_error", "brier_score") else f"{100 * value:.1f}%"


def _calibration(manifest: Mapping[str, Any]) -> str:
    calibration, rule = manifest["calibration"], manifest.get("set_rule")
    parts = []
    if calibration is not None:
        before, after = (f"{calibration[name]:.3f}" for name in ("error_before", "error_after"))
        error = f"expected calibration error {before}; probabilities were not scaled, as that did not improve them."
        if calibration.get("scaled", True):
            temperature = f"temperature {calibration['temperature']:.3f}"
            error = f"{temperature}, expected calibration error {before} before and {after} after."
        parts.append(f"On {counted(calibration['rows'], 'held-out row')}: {error}")
        if calibration["promise"] is not None:
            parts.append(f'`min_confidence="calibrated"`: {RiskBound(**calibration["promise"])}.')
    if manifest.get("trust") is not None:
        parts.append(f"Trust in texts: {Trust.restored(manifest['trust'])}.")
    if rule is not None:
        parts.append(_plain(f"Sets: {SetRule.restored(rule)}."))
    return "\n\n".join(parts) or "None: probabilities are as trained."


def _settings(manifest: Mapping[str, Any]) -> str:
    usual = plain_parameters(HiNetClassifier())
    given = {
        key: _code(json.dumps(value))
        for key, value in manifest["parameters"].items()
        if key not in OMITTED and (key not in usual or value != usual[key])
    }
    return _table({"engine": manifest["engine"], "rows": manifest["features"]["kind"], **given})


def _files(manifest: Mapping[str, Any]) -> str:
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    cells = {name: _plain(version) for name, version in manifest["versions"].items()}
    digest = {"digest of the manifest": _code(manifest["blake2b"])} if manifest.get("blake2b") else {}
    return _table({**cells, "format": str(manifest["format"]), "size": f"{size / 1e6:,.1f} MB", **digest})


def _table(cells: Mapping[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {_plain(name)} | {value} |" for name, value in cells.items())])


def _plain(text: object) -> str:
    """Return text with the special characters of Markdown escaped, on one line."""
    return re.sub(r"([|`<>\[\]\\])", r"\\\1", " ".join(str(text).split()))


def _code(text: object) -> str:
    """Return text as code in a table cell."""
    return f"`{' '.join(str(text).split()).replace('`', chr(39)).replace('|', chr(92) + '|')}`"
