"""Every figure in README and docs is that of a committed benchmark result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def results(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["results"]


def percent(row: dict[str, float], name: str, *, spread: bool) -> str:
    mean = f"{100 * row[f'{name}_mean']:.1f}"
    return f"{mean} ± {100 * row[f'{name}_spread']:.1f}" if spread else mean


def both(row: dict[str, float], *, spread: bool) -> str:
    return " / ".join(percent(row, name, spread=spread) for name in ("accuracy", "hierarchical_f1"))


def test_the_taxonomy_table_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for case in ("ncbi", "million"):
        row = results("taxonomy")[case]
        cells = (
            f"{row['nodes']:,}",
            f"{row['seconds']:.1f}",
            f"{row['peak_gb']:.2f} GB",
            f"{row['networkx_seconds_ratio']:.1f} times the time",
        )
        assert f"| {' | '.join(cells)} |" in readme


def test_the_first_answer_of_the_readme() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    answers = results("start")["answers"]
    naics, icd = (answers[f"{name}_cold_seconds"] for name in ("naics", "icd"))
    assert f"answered in {naics:.1f} s by a model of NAICS, in {icd:.1f} s by one of ICD-10-CM" in readme


def test_the_installation_of_the_readme() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    without, with_torch = (results("install")[case] for case in ("without torch", "with torch"))
    assert f"`pip install` of it took {without['seconds']:.0f} s and {without['megabytes']:,} MB" in readme
    assert f"with the CPU build of torch {with_torch['seconds']:.0f} s and {with_torch['megabytes']:,} MB" in readme
    assert with_torch["torch"].endswith("+cpu")


def test_the_comparison_table_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    names = {"flatten": "Flatten Network", "paper": "the paper to the letter", "default": "our default"}
    naics, lshtc = results("compare_naics")["summary"], results("compare_lshtc")["summary"]
    for model, name in names.items():
        assert f"| {name} | {both(naics[model], spread=True)} | {both(lshtc[model], spread=True)} |" in readme


def test_the_ablation_table_of_the_mathematics() -> None:
    page = (ROOT / "docs" / "mathematics.md").read_text()
    naics, lshtc = results("compare_naics"), results("compare_lshtc")
    for part, spread in (("summary", True), ("ablation", False)):
        for model in lshtc[part]:
            cells = [both(data[part][model], spread=spread) if model in data[part] else "-" for data in (naics, lshtc)]
            assert f"| {model} | {' | '.join(cells)} |" in page


def test_the_dense_hierarchy_table_of_the_mathematics() -> None:
    page = (ROOT / "docs" / "mathematics.md").read_text()
    small, tall = results("dense_hierarchy")["n100 h3"], results("dense_hierarchy")["n30 h5"]
    for name, key in (("Bayes rate", "bayes_accuracy"), ("hinet", "hinet_accuracy"), ("paper", "paper_accuracy")):
        assert f"| {name} | {100 * small[key]:.1f} | {100 * tall[key]:.1f} |" in page
    for name, key in (("hinet", "hinet"), ("paper", "paper"), ("Flatten Network", "flatten")):
        count = f"{key}_output_parameters"
        assert f"| output parameters, {name} | {small[count]:,} | {tall[count]:,} |" in page


def test_rows_per_edge_in_the_decision() -> None:
    page = (ROOT / "docs" / "decisions" / "0004-rows-per-edge.md").read_text()
    summary = results("compare_wordnet")["summary"]
    assert f"{both(summary['default'], spread=False)} (per edge)" in page
    assert f"{both(summary['default-tied'], spread=False)} (tied)" in page


def test_the_engine_table_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    found = results("engine")
    for name in ("naics", "icd", "wikitaxa", "lshtc"):
        row = found[f"{name}, ours"]
        cells = (
            f"{100 * row['accuracy']:.1f} / {100 * row['hierarchical_f1']:.1f}",
            f"{row['train_seconds']:.1f} s",
            f"{row['rows_per_second']:,}",
            f"{100 * row['touched_share']:.2f}%",
        )
        assert f"| {' | '.join(cells)} |" in readme
    for name in ("icd", "wikitaxa"):
        assert f"in {found[f'{name}, end to end']['seconds']:.0f} s" in readme
    assert f"{found['ratios']['flatten_epoch_ratio']:.0f} times as fast" in readme
    assert f"{100 * found['wordnet']['top1_label']:.1f}% of first answers" in readme


def test_the_model_sizes_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for row in results("model_size").values():
        cells = (
            f"{row['megabytes']:.1f} MB",
            f"{row['megabytes_in_full']:.1f} MB",
            f"{row['accuracy_gain']:+.2f} / {row['hierarchical_f1_gain']:+.2f}",
            f"{row['predict_speed_ratio']:.2f} times as fast",
        )
        assert f"| {' | '.join(cells)} |" in readme


def test_the_speed_of_the_metrics() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    found = results("metrics")
    ids, six = found["ids"], found["six measures"]
    assert f"all {ids['nodes']:,} ICD-10-CM codes" in page
    assert f"take {ids['seconds']:.1f} s and {ids['peak_gb']:.2f} GB from node ids" in page
    assert f"{found['traces']['seconds']:.1f} s from `Traces`" in page
    assert f"HiClass 5.0.8 {six['seconds_ratio']:.0f} times as long" in page


def test_the_classifier_in_the_readme() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    found = results("classifier")
    for name, title in (("icd", "ICD-10-CM"), ("naics", "NAICS")):
        row = found[f"{name}, calibration"]
        before, after = (row[part]["calibration_error"] for part in ("before", "after"))
        assert f"from {before:.3f} to {after:.3f} on {title}" in readme

    icd, kept = found["icd, calibration"], found["icd, keeping"]
    answered, wrong = 100 * icd["answered"], 100 * icd["error_of_answers"]
    assert f"{answered:.1f}% of the test rows of ICD-10-CM are answered, {wrong:.1f}% of them wrongly" in readme
    assert f"takes {kept['megabytes']:.0f} MB on disk and loads in {kept['load_seconds']:.1f} s" in readme
    assert (
        f"right for {100 * kept['onnx_accuracy']:.1f}% of the rows instead of {100 * kept['accuracy']:.1f}%" in readme
    )


def test_the_command_line_in_the_readme() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    found = results("cli")
    start, many, demo, kills = (found[case] for case in ("start", "many rows", "demo", "kills"))
    assert f"is answered in {start['one_row_seconds']:.1f} s" in readme
    assert f"{start['test_rows']:,} rows from CSV to CSV take {start['test_rows_seconds']:.1f} s" in readme
    assert f"{many['rows']:,} rows run at {many['rows_a_second']:,} rows a second" in readme
    assert f"within {many['above_loaded_mb']} MB above the loaded model" in readme
    assert f"killed {kills['kills']} times and resumed ended with the same model" in readme
    assert f"`hinet demo` takes {demo['seconds']:.0f} s, and {demo['first_seconds']:.0f} s where nothing" in readme


def test_the_price_of_reading_tables() -> None:
    page = " ".join((ROOT / "docs" / "decisions" / "0012-tables.md").read_text().split())
    reading = results("cli")["reading"]
    assert (
        f"{reading['microseconds_a_row']:.0f} microseconds a row, {reading['to_arrow']:.0f} times what Arrow takes"
        in page
    )


def test_the_table_of_promised_risks() -> None:
    page = (ROOT / "docs" / "classifier.md").read_text()
    for case, row in results("risk").items():
        cells = [f"{row['risk']:.0%}", str(row["promised"]), str(row["broken"])]
        names = ("mean_error", "mean_answered", "mean_full_depth")
        cells += [f"{100 * row[name]:.1f}%" if name in row else "-" for name in names]
        assert f"| {case} | {' | '.join(cells)} |" in page


def test_the_table_of_moved_nodes() -> None:
    page = " ".join((ROOT / "docs" / "classifier.md").read_text().split())
    cases = results("moved_nodes")
    for kind in ("before", "left alone", "kept", "given", "trained", "retrained"):
        cells = [f"{100 * case[kind]['moved']:.1f} / {100 * case[kind]['rest']:.1f}" for case in cases.values()]
        assert f"| {' | '.join(cells)} |" in page
    for kind in ("kept", "retrained"):
        shares = [100 * case[kind]["rest_as_before"] for case in cases.values()]
        assert f"{min(shares):.1f} to {max(shares):.1f}%" in page


def test_the_tables_of_encoders_in_the_decision() -> None:
    page = (ROOT / "docs" / "decisions" / "0025-encoders.md").read_text()
    for case, row in results("encoders").items():
        if "speed_ratio" in row:
            cells = (
                f"{row['rows_a_second']:,}",
                f"{row['speed_ratio']:.2f}",
                f"{row['mean_cosine']:.4f}",
                f"{row['least_cosine']:.4f}",
                f"{row['largest_change_by_batch']:.0e}",
            )
            assert f"| {case} | {' | '.join(cells)} |" in page
        elif "explained_variance" in row:
            shares = [f"{100 * row[name]:.1f}%" for name in ("explained_variance", "neighbour_overlap")]
            cells = (f"{row['tokens']:,}", *shares, f"{row['core_seconds']:.0f}")
            assert f"| {case} | {' | '.join(cells)} |" in page
            assert f"on {row['test_rows']:,} test rows" in page


def test_the_meaning_table_of_the_readme() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    naics, speed = results("meaning")["naics, accuracy"], results("meaning")["naics, speed"]["static"]
    names = {
        "nothing": "words of the rows alone",
        "titles": "and titles of labels, the default",
        "static": "and static vectors",
        "encoder": "or the encoder itself",
    }
    for kind, name in names.items():
        row = naics[kind]
        scores = f"{100 * row['accuracy']:.1f} / {100 * row['hierarchical_f1']:.1f}"
        assert (
            f"| {name} | {scores} | {100 * row['phrases_first']:.0f}% | {100 * row['phrases_among_five']:.0f}% |"
            in readme
        )
    sizes = [results("meaning")[f"naics, size, {kind}"]["megabytes"] for kind in ("static", "nothing")]
    assert f"the phrases are {naics['phrases']} everyday" in readme
    assert f"has {speed['predict_speed_ratio']:.2f} of the speed" in readme
    assert f"training takes {speed['train_time_ratio']:.1f} times as long" in readme
    assert f"the model {sizes[0]:.0f} MB instead of {sizes[1]:.0f}" in readme


def test_the_load_of_the_service_in_the_readme() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    load, reload = results("serve")["load"], results("serve")["reload"]
    assert f"answers {int(load['requests_a_second']):,} single texts a second" in readme
    assert f"99% of them within {load['p99_ms']:.0f} ms" in readme
    assert f"{reload['reloads']} new models taken up meanwhile cost no request" in readme
    assert load["errors"] == reload["errors"] == 0


def test_the_table_of_ontologies() -> None:
    page = (ROOT / "docs" / "hierarchies.md").read_text()
    for syntax in ("N-Triples", "Turtle", "RDF/XML", "JSON-LD"):
        row = results("ontologies")[syntax]
        assert f"| {syntax} | {row['processor_seconds']:.1f} | {row['peak_gb']:.2f} GB |" in page
        assert f"thesaurus of {row['triples']:,} triples ({row['nodes']:,} concepts)" in page
