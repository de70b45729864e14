"""Figures in README and docs match committed benchmark results.

Each function below yields claims: a page, and a sentence or table row that it must contain. One test looks for every
claim; another one finds figures that no claim covers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from hinet.engine.settings import MAX_WIDTH

ROOT = Path(__file__).parents[1]
README, RESULTS = "README.md", "docs/results.md"

Claims = Iterator[tuple[str, str]]  # pages with text that they must contain
CLAIMS: list[Callable[[], Claims]] = []


def claims(function: Callable[[], Claims]) -> Callable[[], Claims]:
    """Register a function that yields claims."""
    CLAIMS.append(function)
    return function


def results(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["results"]


def text_of(page: str) -> str:
    """Return the text of a page with line breaks replaced by spaces."""
    return " ".join((ROOT / page).read_text().split())


def row_of(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def pair(row: dict[str, float]) -> str:
    return f"{100 * row['accuracy']:.1f} / {100 * row['hierarchical_f1']:.1f}"


def percent(row: dict[str, float], name: str, *, spread: bool) -> str:
    mean = f"{100 * row[f'{name}_mean']:.1f}"
    return f"{mean} ± {100 * row[f'{name}_spread']:.1f}" if spread else mean


def both(row: dict[str, float], *, spread: bool) -> str:
    return " / ".join(percent(row, name, spread=spread) for name in ("accuracy", "hierarchical_f1"))


@claims
def taxonomies() -> Claims:
    for case in ("ncbi", "million"):
        row = results("taxonomy")[case]
        yield (
            RESULTS,
            row_of(
                f"{row['nodes']:,}",
                f"{row['seconds']:.1f}",
                f"{row['peak_gb']:.2f} GB",
                f"{row['networkx_seconds_ratio']:.1f} times the time",
            ),
        )


@claims
def first_answers() -> Claims:
    answers = results("start")["answers"]
    naics, icd = (answers[f"{name}_cold_seconds"] for name in ("naics", "icd"))
    yield RESULTS, f"the first text takes {naics:.1f} s with a NAICS model and {icd:.1f} s with an ICD-10-CM model"


@claims
def installation() -> Claims:
    without, with_torch = (results("install")[case] for case in ("without torch", "with torch"))
    assert with_torch["torch"].endswith("+cpu")
    yield RESULTS, f"`pip install hinet` took {without['seconds']:.0f} s and {without['megabytes']:,} MB"
    yield RESULTS, f"with the CPU build of torch {with_torch['seconds']:.0f} s and {with_torch['megabytes']:,} MB"


@claims
def flat_and_hierarchical() -> Claims:
    names = {"flatten": "Flatten Network", "paper": "the paper as published", "default": "our default"}
    naics, lshtc = results("compare_naics")["summary"], results("compare_lshtc")["summary"]
    for model, name in names.items():
        yield RESULTS, row_of(name, both(naics[model], spread=True), both(lshtc[model], spread=True))
    for data, title in ((naics, "NAICS"), (lshtc, "LSHTC")):
        ours, flat = (both(data[model], spread=False) for model in ("default", "flatten"))
        yield README, f"{ours} against {flat} on {title}"
    yield README, f"reaches {both(naics['paper'], spread=False)} on NAICS"


@claims
def ablation() -> Claims:
    naics, lshtc = results("compare_naics"), results("compare_lshtc")
    for part, spread in (("summary", True), ("ablation", False)):
        for model in lshtc[part]:
            cells = [both(data[part][model], spread=spread) if model in data[part] else "-" for data in (naics, lshtc)]
            yield "docs/mathematics.md", row_of(model, *cells)


@claims
def dense_hierarchy() -> Claims:
    small, tall = results("dense_hierarchy")["n100 h3"], results("dense_hierarchy")["n30 h5"]
    for name, key in (("Bayes rate", "bayes_accuracy"), ("hinet", "hinet_accuracy"), ("paper", "paper_accuracy")):
        yield "docs/mathematics.md", row_of(name, f"{100 * small[key]:.1f}", f"{100 * tall[key]:.1f}")
    for name, key in (("hinet", "hinet"), ("paper", "paper"), ("Flatten Network", "flatten")):
        count = f"{key}_output_parameters"
        yield "docs/mathematics.md", row_of(f"output parameters, {name}", f"{small[count]:,}", f"{tall[count]:,}")
    yield "docs/mathematics.md", row_of("traces", f"{small['traces']:,}", f"{tall['traces']:,}")
    memory = [f"{case['flatten_training_gb']:.1f} GB" for case in (small, tall)]
    yield "docs/mathematics.md", row_of("memory to train it", *memory)


@claims
def rows_per_edge() -> Claims:
    summary = results("compare_wordnet")["summary"]
    for model, name in (("default", "per edge"), ("default-tied", "tied")):
        yield "docs/decisions/0004-rows-per-edge.md", f"{both(summary[model], spread=False)} ({name})"


@claims
def engine() -> Claims:
    found, sizes = results("engine"), results("model_size")
    for name in ("naics", "icd", "wikitaxa", "lshtc"):
        row = found[f"{name}, ours"]
        cells = (pair(row), f"{row['train_seconds']:.1f} s", f"{row['rows_per_second']:,}")
        yield RESULTS, row_of(*cells, f"{100 * row['touched_share']:.2f}%")
        yield README, row_of(*cells, f"{sizes[name]['megabytes']:.1f} MB")
    for name in ("icd", "wikitaxa"):
        yield RESULTS, f"in {found[f'{name}, end to end']['seconds']:.0f} s"
    for page in (README, RESULTS):
        yield page, f"{found['ratios']['flatten_epoch_ratio']:.0f} times as fast as one of the"
    yield RESULTS, f"{100 * found['wordnet']['top1_label']:.1f}% of first answers"
    yield README, f"from another source: {pair(found['lshtc test'])} instead of {pair(found['lshtc, ours'])}"


@claims
def model_sizes() -> Claims:
    for row in results("model_size").values():
        yield (
            RESULTS,
            row_of(
                f"{row['megabytes']:.1f} MB",
                f"{row['megabytes_in_full']:.1f} MB",
                f"{row['accuracy_gain']:+.2f} / {row['hierarchical_f1_gain']:+.2f}",
                f"{row['predict_speed_ratio']:.2f} times as fast",
            ),
        )


@claims
def speed_of_metrics() -> Claims:
    found = results("metrics")
    ids, six = found["ids"], found["six measures"]
    yield "docs/metrics.md", f"all {ids['nodes']:,} ICD-10-CM codes"
    yield "docs/metrics.md", f"take {ids['seconds']:.1f} s and {ids['peak_gb']:.2f} GB from node ids"
    yield "docs/metrics.md", f"{found['traces']['seconds']:.1f} s from `Traces`"
    yield "docs/metrics.md", f"HiClass 5.0.8 takes {six['seconds_ratio']:.0f} times as long"


@claims
def calibration() -> Claims:
    found = results("classifier")
    for name, title in (("icd", "ICD-10-CM"), ("naics", "NAICS")):
        row = found[f"{name}, calibration"]
        before, after = (f"{row[part]['calibration_error']:.3f}" for part in ("before", "after"))
        change = f"at {after}" if before == after else f"from {before} to {after}"
        yield "docs/confidence.md", f"{change} on {title}"
    icd, kept = found["icd, calibration"], found["icd, keeping"]
    answered, wrong = 100 * icd["answered"], 100 * icd["error_of_answers"]
    sentence = f"{answered:.1f}% of the ICD-10-CM test rows are answered, {wrong:.1f}% of them wrongly"
    yield "docs/confidence.md", sentence
    yield RESULTS, f"takes {kept['megabytes']:.0f} MB on disk and loads in {kept['load_seconds']:.1f} s"
    yield RESULTS, f"right for {100 * kept['onnx_accuracy']:.1f}% of the rows instead of {100 * kept['accuracy']:.1f}%"


@claims
def command_line() -> Claims:
    found = results("cli")
    start, many, demo, kills, reading = (found[case] for case in ("start", "many rows", "demo", "kills", "reading"))
    yield RESULTS, f"is answered in {start['one_row_seconds']:.1f} s"
    yield RESULTS, f"{start['test_rows']:,} rows from CSV to CSV take {start['test_rows_seconds']:.1f} s"
    yield RESULTS, f"{many['rows']:,} rows run at {many['rows_a_second']:,} rows per second"
    yield RESULTS, f"{many['above_loaded_mb']} MB in addition to the loaded model"
    yield RESULTS, f"killed {kills['kills']} times and resumed ended with the same model"
    yield RESULTS, f"`hinet demo` takes {demo['seconds']:.0f} s, and {demo['first_seconds']:.0f} s when nothing"
    microseconds, ratio = reading["microseconds_a_row"], reading["to_arrow"]
    sentence = f"{microseconds:.0f} microseconds per row, {ratio:.0f} times what Arrow takes"
    yield "docs/decisions/0012-tables.md", sentence


@claims
def risks() -> Claims:
    for case, row in results("risk").items():
        cells = [f"{row['risk']:.0%}", str(row["promised"]), str(row["broken"])]
        names = ("mean_error", "mean_answered", "mean_full_depth")
        cells += [f"{100 * row[name]:.1f}%" if name in row else "-" for name in names]
        yield "docs/confidence.md", row_of(case, *cells)


@claims
def moved_nodes() -> Claims:
    cases = results("moved_nodes")
    for kind in ("before", "left alone", "kept", "given", "trained", "retrained"):
        cells = [f"{100 * case[kind]['moved']:.1f} / {100 * case[kind]['rest']:.1f}" for case in cases.values()]
        yield "docs/updating.md", row_of(*cells)
    for kind in ("kept", "retrained"):
        shares = [100 * case[kind]["rest_as_before"] for case in cases.values()]
        yield "docs/updating.md", f"{min(shares):.1f} to {max(shares):.1f}%"


@claims
def encoders() -> Claims:
    page, page_8_bits = "docs/decisions/0025-encoders.md", "docs/decisions/0056-encoders-in-8-bits.md"
    cases = results("encoders")
    loss = cases["loss"]
    yield page_8_bits, f"mean cosine is {loss['mean_cosine']:.4f} and the lowest {loss['least_cosine']:.4f}"
    shares = [f"{100 * loss['nearest_accuracy'][precision]:.1f}%" for precision in ("float32", "int8")]
    yield (
        page_8_bits,
        f"of {loss['test_rows']:,} test rows: {shares[0]} in single precision and {shares[1]} with 8 bits",
    )
    for case, row in cases.items():
        if "core_ratio" in row:
            yield page_8_bits, row_of(case, *(f"{ratio:.2f}" for ratio in row["ratio"].values()))
            yield page_8_bits, row_of(f"{case}, per core", *(f"{ratio:.2f}" for ratio in row["core_ratio"].values()))
        elif "explained_variance" in row:
            shares = [f"{100 * row[name]:.1f}%" for name in ("explained_variance", "neighbour_overlap")]
            yield page, row_of(case, f"{row['tokens']:,}", *shares, f"{row['core_seconds']:.0f}")
            yield page, f"on {row['test_rows']:,} test rows"


@claims
def meaning() -> Claims:
    page = "docs/meaning.md"
    found, speed = results("meaning"), results("meaning")["naics, speed"]["static"]
    names = {
        "nothing": "words of the rows only",
        "titles": "with label titles",
        "static": "with titles and static vectors",
        "encoder": "with titles and the encoder",
    }
    for name in ("naics, accuracy", "icd, accuracy"):
        for kind, title in names.items():
            phrases = (f"{100 * found[name][kind][f'phrases_{which}']:.0f}%" for which in ("first", "among_five"))
            yield page, row_of(title, pair(found[name][kind]), *phrases)
    naics = found["naics, accuracy"]
    calibration = found["naics, calibration"]
    after = [calibration[kind]["after"] for kind in ("static", "encoder")]
    errors = [f"{part['calibration_error']:.3f}" for part in after]
    yield page, f"is {errors[0]} with static vectors and {errors[1]} with the encoder"
    errors = [f"{part['strange_calibration_error']:.3f}" for part in after]
    yield (
        page,
        f"{calibration['strange_rows']} test rows whose words are mostly unknown it is {errors[0]} and {errors[1]}",
    )
    assert all(part["strange_accuracy"] > part["strange_confidence"] for part in after), "the page claims this"
    sizes = [results("meaning")[f"naics, size, {kind}"]["megabytes"] for kind in ("static", "nothing")]
    yield page, f"the phrases are {naics['phrases']} everyday"
    yield page, f"and {found['icd, accuracy']['phrases']} [for ICD-10-CM]"
    bare = results("meaning")["naics, labels without rows"]
    right = [f"{100 * bare[f'{kind}, titles']['first']:.0f}%" for kind in ("static", "encoder")]
    yield page, f"{right[0]} of their test rows are answered right with static vectors, and {right[1]} with the encoder"
    for kind in ("static", "encoder"):
        assert bare[f"{kind}, titles"]["other_accuracy"] > bare[kind]["other_accuracy"] - 0.001, "the page claims this"
    yield page, f"has {speed['predict_speed_ratio']:.2f} of the speed"
    yield page, f"training takes {speed['train_time_ratio']:.1f} times as long"
    yield page, f"the model {sizes[0]:.0f} MB instead of {sizes[1]:.0f}"
    words, of_encoder = (f"{100 * naics[kind]['phrases_first']:.0f}%" for kind in ("titles", "encoder"))
    default = f"{100 * results('few_rows')['naics, all, default']['phrases']:.0f}%"
    yield README, f"Of {naics['phrases']} everyday phrases for NAICS, words alone get {words} right,"
    yield README, f"the extra `meaning` {default}, and a sentence encoder, which is much slower, {of_encoder}"


@claims
def service() -> Claims:
    load, reload = results("serve")["load"], results("serve")["reload"]
    assert load["errors"] == reload["errors"] == 0
    yield RESULTS, f"answers {int(load['requests_a_second']):,} single texts per second"
    yield RESULTS, f"99% of them within {load['p99_ms']:.0f} ms"
    yield RESULTS, f"{reload['reloads']} model reloads did not cost a single request"
    malformed = results("serve")["malformed"]
    assert malformed["answers_other_than_4xx"] == malformed["errors_of_others"] == 0
    meanwhile, alone = malformed["p99_ms_meanwhile"], malformed["p99_ms_without"]
    yield RESULTS, f"99% of the valid ones were answered within {meanwhile:.0f} ms instead of {alone:.0f}"
    page = results("page")
    yield RESULTS, f"needs {page['first_paint']['kilobytes']:.0f} kB for its first paint"
    yield RESULTS, f"its tree answers 99% of the clicks within {page['clicks']['p99_ms']:.0f} ms"


@claims
def several_labels() -> Claims:
    page, found = "docs/several_labels.md", results("several_labels")
    published = {"cellcycle_FUN": ".255", "derisi_FUN": ".195", "cellcycle_GO": ".413", "Enron": ".756"}
    for name, other in published.items():
        row = found[name]
        yield page, row_of(name, f"{row['au_prc']:.3f}".lstrip("0"), other, f"{row['processor_seconds_a_fit']:.0f}")
    nouns, sets, single = (found[case] for case in ("wordnet", "synthetic_sets", "synthetic_single"))
    yield page, f"a micro-F1 of {nouns['micro_f1']:.3f}".replace("0.", ".")
    yield page, f"right for {100 * nouns['precision_at_1']:.1f}% of the rows"
    yield page, f"for {100 * nouns['single_label_precision_at_1']:.1f}% with `multilabel=False`"
    yield page, f"{sets['rows']:,} synthetic rows with {sets['labels_of_row']} labels each"
    yield page, f"in {sets['processor_seconds'] / single['processor_seconds']:.1f} times the processor time"
    laws = {name: f"{100 * value:.1f}" for name, value in found["eurlex"].items() if name.endswith(("_1", "_5"))}
    yield page, f"a precision of {laws['precision_at_1']} at 1 and {laws['precision_at_5']} at 5"
    yield page, f"an nDCG of {laws['ndcg_at_5']} at 5"
    used = found["eurlex"]
    yield page, f"Training takes {used['processor_seconds']:.0f} processor seconds and {used['peak_gb']:.1f} GB"


@claims
def unknown_words() -> Claims:
    kinds = {"titles": "words alone", "default": "default"}
    for (name, place), (kind, said) in product((("icd", "ICD-10-CM"), ("naics", "NAICS")), kinds.items()):
        phrases, title = results("unknown_words")[f"{name}, {kind}"]["phrases"], f"{place}, {said}"
        before, after = phrases["before"], phrases["after"]
        errors = (before["calibration_error"], after["calibration_error"], after["perfect"])
        wrong = (f"{100 * row['wrong_share']:.0f}% of {row['answered']:.0f}" for row in (before, after))
        yield "docs/confidence.md", row_of(title, str(phrases["rows"]), *(f"{error:.3f}" for error in errors), *wrong)


@claims
def scale() -> Claims:
    page, found = "docs/scaling.md", results("scale")
    for name, title in (("icd", "ICD-10-CM"), ("wikitaxa", "wikitaxa")):
        row, part = found[f"stream {name}"], found[f"stream {name}, wide on a quarter"]
        cells = [row["in_memory_test_accuracy"], row["stream_test_accuracy"], part["stream_test_accuracy"]]
        yield page, row_of(title, *(f"{cell:.1f}" for cell in cells))
    for case in ("100,000 rows", "1,000,000 rows", "5,000,000 rows", "20 million"):
        row = found[f"stream {case}"]
        yield page, row_of(f"{row['rows']:,}", f"{row['seconds']:.0f} s", f"{row['peak_gb']:.1f} GB")
    for labels in ("1,000", "10,000", "100,000", "1,000,000"):
        row, flat = found[f"{labels} labels"], found[f"{labels} labels, flat"]
        cells = [f"{row[key]:.0f}" for key in ("train_us_a_row", "predict_us_a_row", "outputs_a_row")]
        sizes = [f"{row[key]:.1f} GB" for key in ("model_gb", "peak_gb")]
        cells += [*sizes, f"{flat['train_us_a_row_and_epoch']:,.0f}"]
        yield page, row_of(labels, f"{row['rows']:,}", *cells)
    shape = found["DMOZ-2012's shape, synthetic"]
    yield page, f"{shape['rows']:,} rows, {shape['features']:,} features and {shape['labels']:,} labels"
    yield page, f"trains in {shape['train_seconds']:.0f} s within {shape['peak_gb']:.1f} GB"
    yield from needs()


def needs() -> Claims:
    """Yield the extrapolation to a billion rows and ten million labels."""
    page, found = "docs/scaling.md", results("scale")
    most, few, many = (found[case] for case in ("stream 20 million", "100,000 labels", "1,000,000 labels"))
    reading = most["reading_seconds"] / most["rows"]
    learning = (most["seconds"] - most["reading_seconds"]) / most["rows"]
    yield page, row_of("reading twice and writing features", f"{1e6 * reading:.0f} µs", f"{1e9 * reading / 3600:.1f} h")
    yield page, row_of("an epoch of the deep expert", f"{1e6 * learning:.0f} µs", f"{1e9 * learning / 3600:.1f} h")
    disk = most["spill_bytes_a_row"]
    yield page, row_of(f"disk, {most['values_a_row']:.0f} features per row", f"{disk:.0f} bytes", f"{disk:.0f} GB")
    for what, key in (("a saved model", "model_gb"), ("training it", "peak_gb")):
        each = 1e9 * (many[key] - few[key]) / (many["labels"] - few["labels"])
        yield page, row_of(what, f"{each / 1e3:.1f} kB", f"{each / 100:.0f} GB")
    yield page, f"the outputs of ten million labels are {1e7 * MAX_WIDTH * 4 / 1e9:.0f} GB at each exchange"


@claims
def cluster() -> Claims:
    page, found = "docs/cluster.md", results("cluster")
    rows = found["prediction"]
    assert rows["equal"]
    assert rows["equal_after_kill"]
    assert 0 < rows["killed_after_portions"] < rows["portions"]
    yield page, f"two workers answer {rows['rows']:,} rows as one process does, to the last bit"
    yield page, f"they answer {rows['throughput_ratio']:.2f} times as many rows per second as one"
    titles = {"icd": "ICD-10-CM", "wikitaxa": "wikitaxa"}
    for case, row in found.items():
        name, _, split = case.partition(", ")
        if split:
            right = [f"{row[key]:.1f}" for key in ("accuracy_alone", "accuracy_two_workers")]
            time, sent = f"{row['time_ratio']:.2f}", f"{row['exchanged_gb']:.1f} GB"
            yield page, row_of(titles[name], f"`{split}`", *right, time, sent)


@claims
def tuning() -> Claims:
    for name, row in results("tune").items():
        cells = [
            f"{row['default']:.1f}",
            f"{row['tuned']:.1f}",
            f"`{row['settings']}`" if row["gain"] else "the defaults",
        ]
        yield "docs/tuning.md", row_of(name, *cells)


@claims
def few_rows() -> Claims:
    page, found = "docs/meaning.md", results("few_rows")
    methods = {
        "words": "words only",
        "default": "the default with the extra `meaning`",
        "box": "vectors of the extra `meaning` in all experts",
        "encoder": "MiniLM as the encoder",
        "nearest": "peer: MiniLM, the most similar row or title",
        "logistic": "peer: MiniLM, logistic regression",
        "svm": "peer: LinearSVC",
        "fasttext": "peer: fastText",
    }

    def cell(name: str, size: str, method: str) -> str:
        row = found.get(f"{name}, {size}, {method}")
        return "-" if row is None else f"{100 * row['accuracy']:.1f} / {100 * row['phrases']:.0f}%"

    for method, title in methods.items():
        yield page, row_of(title, *(cell("naics", size, method) for size in ("0", "100", "300", "1000", "3000", "all")))
    for method in ("words", "default", "box", "encoder", "nearest"):
        yield page, row_of(methods[method], *(cell("icd", size, method) for size in ("0", "1000", "all")))
    fixed = found["corrections, box"]
    right = [f"{100 * fixed[f'{count}_corrected_right']:.0f}%" for count in (15, 300)]
    yield page, f"are right at once: {right[0]} of 15, and {right[1]} of 300 given one by one"
    before, few, many = (100 * fixed[name] for name in ("accuracy_before", "15_other_rows", "300_other_rows"))
    yield page, f"is {before:.1f} before, {few:.1f} after 15 corrections and {many:.1f} after 300"
    served = results("corrections")["naics"]
    before, after, updated = (served[name] for name in ("before", "service", "update"))
    right = (
        f"{after['at_once']} are right, and {after['paraphrases']} of their paraphrases, {before['paraphrases']} before"
    )
    yield page, f"In the next answer {right}. Test accuracy stays at {100 * after['accuracy']:.1f}"
    yield page, f"{updated['right']}, {updated['paraphrases']} and {100 * updated['accuracy']:.1f}"


@claims
def ontologies() -> Claims:
    page = "docs/hierarchies.md"
    for syntax in ("N-Triples", "Turtle", "RDF/XML", "JSON-LD"):
        row = results("ontologies")[syntax]
        yield page, row_of(syntax, f"{row['processor_seconds']:.1f}", f"{row['peak_gb']:.2f} GB")
        yield page, f"thesaurus of {row['triples']:,} triples ({row['nodes']:,} concepts)"


@pytest.mark.parametrize("function", CLAIMS, ids=lambda function: function.__name__)
def test_figures_match_the_results(function: Callable[[], Claims]) -> None:
    found = list(function())
    assert found
    for page, claim in found:
        assert claim in text_of(page), page


# A dated log, and the output of the program itself.
UNCHECKED = {"docs/log.md", "docs/cli.md"}
# Settings, thresholds and definitions, which are not measured.
SETTINGS = {
    "docs/client.md": ["(2 by default)", "30 seconds each"],
    "docs/classifier.md": ["at most 5% of the answers are wrong"],
    "docs/cluster.md": ["more than 15% of the time", "PySpark 4.3"],
    "docs/confidence.md": ["certainty of 0.9", "at most 5% are", "(1% to 5%)"],
    "docs/labelling.md": [
        "those of Wilson, 95%",
        "a gain of 3 points",
        "at least 0.93 without looking; that is 61% of the rows left, and at most 5% of them",
    ],
    "docs/labels.md": ["such as 7.0"],
    "docs/mathematics.md": ["0.3 times the log share"],
    "docs/meaning.md": ["up to 5% of all rows"],
    "docs/metrics.md": ["above 0.05", "HiClass 5.0.8"],
    "docs/rows.md": ["7, 7.0 and"],
    "docs/scaling.md": ["1% by default", "memory limited to 2.2 GB"],
    "docs/several_labels.md": ["it is 0.5,"],
    "docs/updating.md": ["more than 0.2 points"],
    "docs/tuning.md": ["0.6, 1.5 and 2 times the epochs", "with 90% certainty"],
}
FIGURE = re.compile(
    r"[\d,]*\d\.\d+|\d[\d,.]*(?: ?%| (?:s|ms|MB|GB|kB|GiB|seconds|times|points|(?:rows|texts) per second)\b)"
)


def pages() -> list[str]:
    found = [README, *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md")))]
    return [page for page in found if page not in UNCHECKED]


@pytest.mark.parametrize("page", pages())
def test_every_figure_is_checked(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(
        r"<!-- tables: begin -->.*<!-- tables: end -->", "", text, flags=re.DOTALL
    )  # checked by test_peers.py
    text = " ".join(re.sub(r"\]\([^)]*\)", "]", text).split())
    known = {claim for function in CLAIMS for where, claim in function() if where == page}
    for claim in sorted({*known, *SETTINGS.get(page, [])}, key=len, reverse=True):
        text = text.replace(claim, "…")
    text = re.sub(r"`[^`]*`|Python 3\.\d+|<http\S+>", "", text)
    found = [text[max(0, match.start() - 40) : match.end() + 20] for match in FIGURE.finditer(text)]
    assert not found, "yield them from a result above, or list them in SETTINGS"
