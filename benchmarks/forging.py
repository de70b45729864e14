"""Forge saved models: change arrays, headers, taxonomy or manifest at random, with digests that match.

A seed identifies a case. A child process tries many cases and reports when each starts and how it ends. If it dies, the
case that it had started is known, and another child continues.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import select
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray
from typer.main import get_command

from hinet import HiNetClassifier, HiNetError, Taxonomy, load
from hinet.classifier.fitted import Fitted
from hinet.classifier.model_folder import MANIFEST, digest_of, sealed
from hinet.data.text import TextSettings
from hinet.encoders.token_vectors import TokenVectors
from hinet.engine import Search
from hinet.engine.model.experts import LabelWeights, Mix
from hinet.files import read_arrays, write_arrays

program: Any = import_module("hinet.cli.main")  # ``hinet.cli.main`` as an attribute is the function

Arrays = dict[str, NDArray[Any]]
FUSED = ("tree", "dag", "hashed", "table", "path text", "sparse", "vectors", "frame")  # model kinds by engine
TORCH = ("dense", "torch texts")
WORDS = {"bread": "rye wheat loaf crust", "milk": "whole skimmed cow cream", "toy": "car train doll puzzle"}
TREE = [("all", "food"), ("food", "bread"), ("food", "milk"), ("all", "toy")]
DAG = [*TREE, ("all", "gift"), ("gift", "toy"), ("gift", "milk")]
CHANGED = [("all", "food"), ("food", "bread"), ("all", "drink"), ("drink", "milk"), ("all", "toy"), ("toy", "doll")]
ASKED = ["rye loaf", "whole cream", "toy train", "unknown"]
SECONDS = 60.0  # maximum duration of a case
MEMORY = 4 << 30  # maximum bytes that a case may allocate
OUTCOMES = ("refused", "answered", "strange", "raw error", "crash", "too slow")

_WHOLE = (-1, 0, 1, 7, 255, 1 << 24, (1 << 31) - 1, -(1 << 31), 1 << 32, (1 << 63) - 1, -(1 << 63), 1 << 62)
_FRACTIONS = (np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-45, 0.0, -1.0, 1e20, 2.0)
_DTYPES = ("bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)), "float16", "float32")
_PLAIN: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 1e308, -1.5, float("nan"), float("inf"), 1 << 40, 10**30, "", "x", "text",
    "float64", "O", "auto", "\ud800", "\0", [], [1], [[]], {}, {"x": 1}, ["x"], [None], [1, 2, 3], "../manifest.json",
)  # fmt: skip


@dataclass(frozen=True)
class Base:
    """A saved model to forge, rows to predict, and a taxonomy to update it to, if it was trained with one."""

    folder: Path
    rows: Any
    is_text: bool
    taxonomy: Taxonomy | None = None


@dataclass(frozen=True)
class Outcome:
    """Outcome of a case, with its message."""

    kind: str
    detail: str


def trained(folder: Path, kinds: Sequence[str]) -> list[Base]:
    """Train and save a tiny model of each kind."""
    pairs = [(f"{one} {two}", name) for name, words in WORDS.items() for one in words.split() for two in words.split()]
    texts, labels = (list(part) for part in zip(*pairs, strict=True))
    numbers = np.random.default_rng(0).normal(size=(len(texts), 5)).astype(np.float32)
    table = np.array([("toy", "") if label == "toy" else ("food", label) for label in labels], object)
    random_prices = np.where(np.arange(len(texts)) % 5, np.abs(numbers[:, 0]), np.nan)
    columns = {"title": texts, "price": random_prices, "brand": ["Acme", "Bolt"] * 24, "vector": list(numbers)}
    every, hashed = TextSettings(min_df=1), TextSettings(hash_bits=6, min_df=1)
    words = sorted({word for group in WORDS.values() for word in group.split()})
    vectors = TokenVectors.of([*words, "rye loaf"], np.random.default_rng(1).normal(size=(len(words) + 1, 4)))
    bases = []
    for kind in kinds:
        given: dict[str, tuple[dict[str, Any], Any, Any]] = {
            "tree": ({"taxonomy": Taxonomy.from_edges(TREE), "flat": True, "text": every}, texts, labels),
            "dag": ({"taxonomy": Taxonomy.from_edges(DAG)}, texts, labels),
            "hashed": ({"text": hashed}, texts, [len(label) for label in labels]),
            "table": ({}, texts, table),
            "path text": ({}, texts, [" > ".join(filter(None, path)) for path in table.tolist()]),
            "vectors": ({"vectors": vectors}, texts, labels),
            "sparse": ({}, sp.csr_array(numbers), labels),
            "frame": ({"text": every}, pd.DataFrame(columns), labels),
            "dense": ({"engine": "torch"}, numbers, labels),
            "torch texts": ({"engine": "torch"}, texts, labels),
        }
        settings, rows, truth = given[kind]
        classifier = HiNetClassifier(width=8, members=1, epochs=4, n_jobs=1, **settings)
        classifier.fit(rows, truth, valid=(rows, truth) if kind == "dag" else None)  # the model keeps some of them
        if kind == "tree":
            classifier.fitted_ = with_prototypes(classifier.fitted_)
            classifier.calibrate(rows, truth, risk=0.5)
        is_text = rows is texts
        notes = {"columns": {"text": ["text"], "label": ["label"]}} if is_text else {}
        classifier.save(folder / kind, notes=notes)
        changed = Taxonomy.from_edges(CHANGED) if kind in ("tree", "dag") else None
        bases.append(Base(folder / kind, ASKED if is_text else rows[:4], is_text, changed))
    return bases


def with_prototypes(fitted: Fitted) -> Fitted:
    """Return a model that uses all experts, including prototypes, which few rows do not give."""
    model = fitted.predictor.model
    features, labels = model.features, len(model.experts.spans.neuron)
    label = (np.arange(features) % labels).astype(np.int32)
    prototypes = LabelWeights(np.arange(features + 1), label, np.ones(features, np.float32))
    mix = np.array(Mix(deep=0.4, wide=0.2, flat=0.3, prototypes=0.1), np.float32)
    experts = model.experts._replace(prototypes=prototypes, mix=mix)
    return replace(fitted, predictor=Search(replace(model, experts=experts)))


def forge(base: Path, target: Path, seed: int) -> str:
    """Write a forged copy of a saved model and describe the change."""
    chance = random.Random(seed)
    shutil.copytree(base, target)
    manifest = json.loads((target / MANIFEST).read_text())
    ways: list[Callable[[random.Random, Path, dict[str, Any]], str]] = [
        _forge_arrays, _forge_arrays, _forge_arrays, _forge_header, _forge_manifest, _forge_manifest, _forge_taxonomy,
    ]  # fmt: skip
    changed = [chance.choice(ways)(chance, target, manifest) for _ in range(chance.choice((1, 1, 1, 2)))]
    with contextlib.suppress(AttributeError, TypeError, KeyError):  # the forged manifest may lack these entries
        for entry in manifest["files"].values():
            path = target / str(entry["file"])
            if path.is_file():
                with path.open("rb") as stream:
                    entry.update(bytes=path.stat().st_size, blake2b=digest_of(stream))
    (target / MANIFEST).write_text(json.dumps(sealed(manifest)))
    return "; ".join(changed)


def _file(chance: random.Random, folder: Path, kinds: Sequence[str]) -> Path:
    return next(folder.glob(f"{chance.choice(kinds)}-*"))


def _forge_arrays(chance: random.Random, folder: Path, manifest: dict[str, Any]) -> str:
    path = _file(chance, folder, ("features", "model", "model", "model"))
    try:
        arrays, _ = read_arrays(path)
    except HiNetError:  # the file was forged before
        return "nothing"
    name = chance.choice(sorted(arrays))
    way = chance.choice((_values, _values, _values, _order, _dtype, _shape, _names))
    way(chance, arrays, name)
    with contextlib.suppress(KeyError):  # no file may have this kind of array
        write_arrays(path, arrays)
    return f"{way.__name__} of {name}"


def _values(chance: random.Random, arrays: Arrays, name: str) -> None:
    array = arrays[name].copy().reshape(-1)
    if not len(array):
        return
    places = [chance.randrange(len(array)) for _ in range(chance.choice((1, 1, 3, len(array))))]
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            array[places] = np.array(chance.choice(_FRACTIONS)).astype(array.dtype)
    else:
        near = [len(array), len(array) - 1, int(array[places[0]]) + 1, int(array[places[0]]) - 1]
        wanted = chance.choice((*_WHOLE, *near))
        array[places] = np.array(wanted & (1 << 64) - 1, np.uint64).astype(array.dtype)  # wraps around
    arrays[name] = array.reshape(arrays[name].shape)


def _order(chance: random.Random, arrays: Arrays, name: str) -> None:
    array = arrays[name]
    flat = array.reshape(-1)
    ways: list[Callable[[], NDArray[Any]]] = [
        lambda: flat[::-1].copy(),
        lambda: np.random.default_rng(chance.randrange(1 << 30)).permutation(flat),
        lambda: np.sort(flat),
        lambda: np.roll(flat, 1),
        lambda: np.full_like(flat, flat[0] if len(flat) else 0),
    ]
    arrays[name] = chance.choice(ways)().reshape(array.shape)


def _dtype(chance: random.Random, arrays: Arrays, name: str) -> None:
    with np.errstate(all="ignore"):
        arrays[name] = arrays[name].astype(chance.choice(_DTYPES))


def _shape(chance: random.Random, arrays: Arrays, name: str) -> None:
    array = arrays[name]
    ways: list[Callable[[], NDArray[Any]]] = [
        lambda: array[:-1] if array.ndim else array,
        lambda: array[1:] if array.ndim else array,
        lambda: array[:0] if array.ndim else array,
        lambda: np.concatenate([array, array]),
        lambda: array[None],
        lambda: array[..., None],
        lambda: array.T.copy(),
        lambda: array.reshape(-1),
        lambda: np.array(array.reshape(-1)[0] if array.size else 0, array.dtype),
        lambda: np.zeros((0, 1 << 31), array.dtype),
        lambda: np.zeros((1 << 31, 0), array.dtype),
    ]
    arrays[name] = np.ascontiguousarray(chance.choice(ways)())


def _names(chance: random.Random, arrays: Arrays, name: str) -> None:
    other = chance.choice(sorted(arrays))
    if chance.random() < 0.4:
        del arrays[name]
    elif chance.random() < 0.5:
        arrays[name], arrays[other] = arrays[other], arrays[name]
    else:
        arrays[f"{name}.more"] = arrays[name]


def _forge_header(chance: random.Random, folder: Path, manifest: dict[str, Any]) -> str:
    """Change the header of an array file as text, or the length before it."""
    path = _file(chance, folder, ("features", "model"))
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8:start])
    except (ValueError, RecursionError):
        return "nothing"
    if not isinstance(header, dict) or not header:
        return "nothing"
    entry = header[chance.choice(sorted(header))]
    size = 0
    with contextlib.suppress(IndexError, KeyError, TypeError):  # the entry may have been forged before
        size = int(entry["data_offsets"][1])
    changes: list[Callable[[], Any]] = [
        lambda: entry.update(shape=[1 << 32, 1 << 32]),
        lambda: entry.update(shape=[0, 1 << 31], data_offsets=[size, size]),
        lambda: entry.update(shape=[-1, -size]),
        lambda: entry.update(shape=[*entry["shape"], 1]),
        lambda: entry.update(shape=chance.choice(_PLAIN)),
        lambda: entry.update(dtype=chance.choice(("F32", "I64", "U8", "BF16", 7, None, [], "I32"))),
        lambda: entry.update(data_offsets=[0, 1 << 40]),
        lambda: entry.update(data_offsets=[-8, 8]),
        lambda: entry.update(data_offsets=chance.choice(_PLAIN)),
        lambda: header.update(more=dict(entry)),
        lambda: header.update(more=chance.choice(_PLAIN)),
    ]
    with contextlib.suppress(AttributeError, KeyError, TypeError):
        chance.choice(changes)()
    text = json.dumps(header).encode()
    if chance.random() < 0.2:
        text = chance.choice(
            (b"[" * 100_000, b"{" * 9, b"[]", b"null", b"7", b"", b'{"a":' * 5_000 + b"1" + b"}" * 5_000)
        )
    length = chance.choice((len(text),) * 8 + (0, 1 << 34, (1 << 64) - 1, len(text) + 9, len(data)))
    path.write_bytes(length.to_bytes(8, "little") + text + data[start:])
    return f"header of {path.name.partition('-')[0]}"


def _forge_manifest(chance: random.Random, folder: Path, manifest: dict[str, Any]) -> str:
    """Change, remove or add a value somewhere in the manifest."""
    inside: Any = manifest
    path: list[str] = []
    while True:
        places = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        if inside is manifest:
            places = [name for name in places if name not in ("blake2b", "format")]
        if not places:
            return "nothing"
        place = chance.choice(places)
        path.append(str(place))
        if not isinstance(inside[place], (dict, list)) or not inside[place] or chance.random() < 0.25:
            break
        inside = inside[place]
    value: Any = chance.choice(_PLAIN)
    if chance.random() < 0.05:
        value = json.loads("[" * 300 + "]" * 300)
    if isinstance(inside, dict) and chance.random() < 0.15:
        del inside[place]
    elif isinstance(inside, dict) and chance.random() < 0.1:
        inside[f"{place}_more"] = value
    else:
        inside[place] = value
    return f"manifest {'.'.join(path)} to {str(value)[:20]!r}"


def _forge_taxonomy(chance: random.Random, folder: Path, manifest: dict[str, Any]) -> str:
    path = _file(chance, folder, ("taxonomy",))
    lines = path.read_bytes().split(b"\n")
    place = chance.randrange(len(lines))
    ways: list[Callable[[], Any]] = [
        lambda: lines.pop(place),
        lambda: lines.insert(place, lines[chance.randrange(len(lines))]),
        lambda: lines.insert(place, chance.choice((b"new\t", b"a\ta", b"\x80\t", b"\0", b"x\ty\tz\tw", b"\t\t"))),
        lambda: lines.__setitem__(place, lines[place][::-1]),
        lambda: lines.__setitem__(slice(None), [b"\x1f\x8b" + b"0" * 50]),
        lambda: chance.shuffle(lines),
        lambda: lines.__setitem__(place, lines[place] + b"0"),
    ]
    chance.choice(ways)()
    path.write_bytes(b"\n".join(lines))
    return "taxonomy"


def try_model(base: Base, folder: Path) -> Outcome:
    """Load a forged model, use all its methods, and return the outcome."""
    outcomes = [_caught(lambda: _ask(load(folder), base)), _caught(lambda: _inspect(folder))]
    if base.is_text:
        outcomes.append(_caught(lambda: _shell(folder, base.rows)))
    return next((outcome for outcome in outcomes if outcome.kind not in ("refused", "answered")), outcomes[0])


def _caught(ask: Callable[[], str]) -> Outcome:
    try:
        detail = ask()
        return Outcome("strange" if detail else "answered", detail)
    except HiNetError as error:
        return Outcome("refused", str(error))
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome("raw error", f"{error!r:.300} in {Path(where.filename).name}:{where.lineno}")


def _ask(model: HiNetClassifier, base: Base) -> str:
    """Request all kinds of answers from a model; return a description of anything unexpected."""
    rows = base.rows
    model.predict(rows)
    model.predict(rows, min_confidence=0.5)
    if hasattr(model, "min_confidence_"):
        model.predict(rows, min_confidence="calibrated")
    probability = model.predict_proba(rows)
    if not np.isfinite(probability).all() or not np.allclose(probability.sum(1), 1, atol=1e-3):
        return f"probabilities that add up to {probability.sum(1).tolist()[:3]}"
    for found in model.predict_traces(rows, k=2):
        assert all(0 <= trace.probability <= 1 + 1e-6 for trace in found)
    model.fitted_.predictor.labels(model.features_of(rows))
    model.fitted_.predictor.expected_f1(model.features_of(rows))
    model.explain(rows[:1] if isinstance(rows, pd.DataFrame) else rows[0])
    model.score(rows, model.predict(rows))
    if base.taxonomy is not None:
        model.update_taxonomy(base.taxonomy).predict(rows)
    return ""


def _inspect(folder: Path) -> str:
    return _command("inspect", str(folder)) or _command("inspect", str(folder), "--json")


def _shell(folder: Path, texts: list[str]) -> str:
    rows = folder.with_name("rows.csv")
    rows.write_text("text\n" + "\n".join(texts) + "\n")
    asked = ["predict", str(folder), str(rows), "-q", "--text", "text"]
    return (
        _command(*asked, "--top", "2", "--levels", "--titles")
        or _command(*asked, "--min-confidence", "calibrated")
        or _command("explain", str(folder), texts[0])
    )


def _command(*arguments: str) -> str:
    """Run a command in this process; an error message counts as a rejection and is expected."""
    output = io.TextIOWrapper(io.BytesIO(), "utf-8")
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()) as errors:
            program.main(list(arguments))
    except SystemExit as end:
        if end.code not in (0, 2, None):
            return f"exit code {end.code}: {errors.getvalue()[-300:]}"
        if "Traceback" in errors.getvalue():
            raise RuntimeError(errors.getvalue()[-600:]) from None
    return ""


def try_all(bases: Sequence[Base], seeds: range) -> Iterator[tuple[int, str, Outcome]]:
    """Try the cases of some seeds, each on the next base in turn; yield the seed, the change, and the outcome."""
    program.app = get_command(program.app)  # built once, because that takes longer than most cases
    for base in bases:  # compiles the kernels before forking
        outcome = try_model(base, base.folder)
        if outcome.kind != "answered":
            raise SystemExit(f"{base.folder} does not answer before it is forged: {outcome}")
    left = seeds
    with tempfile.TemporaryDirectory() as scratch:
        while left:
            for seed, changed, outcome in _tried_by_child(bases, left, Path(scratch)):
                left = left[1:]
                yield seed, changed, outcome


def _tried_by_child(bases: Sequence[Base], seeds: range, scratch: Path) -> Iterator[tuple[int, str, Outcome]]:
    """Try cases in a child process until all are done or it dies."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            _try_in_order(bases, seeds, scratch, writing)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    started: list[str] = []
    with os.fdopen(reading, "rb") as lines:
        for _ in range(2 * len(seeds)):
            ready, _, _ = select.select([lines], [], [], SECONDS)
            line = lines.readline() if ready else b""
            if not line:
                os.kill(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                seed = seeds[0] if not started else int(started[0])
                kind = "crash" if ready else "too slow"
                yield seed, " ".join(started[1:]), Outcome(kind, f"status {status}")
                return
            report = json.loads(line)
            if len(report) == 2:
                started = [str(report[0]), report[1]]
            else:
                seeds = seeds[1:]
                yield report[0], report[1], Outcome(report[2], report[3])
                started = []
    os.waitpid(child, 0)


def _try_in_order(bases: Sequence[Base], seeds: range, scratch: Path, writing: int) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for seed in seeds:
        base = bases[seed % len(bases)]
        target = scratch / f"case{seed}"
        changed = forge(base.folder, target, seed)
        os.write(writing, json.dumps([seed, changed[:200]]).encode() + b"\n")
        outcome = try_model(base, target)
        os.write(writing, json.dumps([seed, changed[:200], outcome.kind, outcome.detail[:400]]).encode() + b"\n")
        shutil.rmtree(target)
