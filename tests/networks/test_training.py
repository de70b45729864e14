from __future__ import annotations

import io

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from hinet import HiNetError, Layers, Taxonomy, Traces
from hinet.metrics import accuracy
from hinet.networks import (
    DenseFeatures,
    FlattenNetwork,
    HeadSettings,
    HiNet,
    RowAdagrad,
    SparseBag,
    Targets,
    TrainingSettings,
    default,
    paper,
    predict_traces,
    train,
)
from hinet.progress import EpochRecord, LineProgress

LABELS = ["a", "c", "d", "e", "f"]
QUICK = TrainingSettings(epochs=12, batch=16, sparse_rate=2.0, dense_rate=5e-3)


def layers() -> Layers:
    edges = [("r", "a"), ("r", "b"), ("b", "c"), ("b", "d"), ("d", "e"), ("d", "f"), ("a", "f")]
    return Layers.of(Taxonomy.from_edges(edges), ends=LABELS)


def rows(count: int = 200, seed: int = 0) -> tuple[sp.csr_array, list[str]]:
    """Each label has its own feature, among noise."""
    random = np.random.default_rng(seed)
    label = random.integers(len(LABELS), size=count)
    dense = (random.random((count, 30)) < 0.1).astype(np.float32)
    dense[:, : len(LABELS)] = 0
    dense[np.arange(count), label] = 1
    return sp.csr_array(dense), [LABELS[number] for number in label]


def network(kind: str, targets: Targets, *, dense: bool = False) -> HiNet | FlattenNetwork:
    torch.manual_seed(0)
    features = DenseFeatures(30, (16,), dropout=0.0) if dense else SparseBag(30, 16, dropout=0.0)
    if kind == "flatten":
        return FlattenNetwork.for_targets(features, 16, targets)
    settings = {"default": default(), "paper": paper(), "tied": HeadSettings(tied=True)}[kind]
    return HiNet(features, targets.traces.layers, 16, settings)


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
@pytest.mark.parametrize("kind", ["flatten", "default", "tied"])
def test_a_network_learns_what_can_be_learned(kind: str, dense: bool) -> None:
    x, y = rows()
    targets = Targets(Traces.encode(layers(), y))
    model = network(kind, targets, dense=dense)
    history = train(model, x.toarray() if dense else x, targets, QUICK)
    assert history[-1].cost < history[0].cost / 3
    test_x, test_y = rows(seed=1)
    predicted = predict_traces(model, test_x.toarray() if dense else test_x)
    assert accuracy(Traces.encode(layers(), test_y), predicted) > 0.97


def test_the_paper_trains() -> None:
    x, y = rows()
    targets = Targets(Traces.encode(layers(), y))
    history = train(network("paper", targets), x, targets, QUICK)
    assert history[-1].cost < history[0].cost


def test_any_module_can_be_the_feature_network() -> None:
    x, y = rows()
    targets = Targets(Traces.encode(layers(), y))
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(30, 8), torch.nn.Tanh())
    model = HiNet(module, layers(), 8)
    train(model, x.toarray(), targets, TrainingSettings(epochs=30, batch=16, dense_rate=2e-2))
    assert accuracy(targets.traces, predict_traces(model, x.toarray())) > 0.97


def test_one_seed_gives_one_network() -> None:
    x, y = rows()
    targets = Targets(Traces.encode(layers(), y))
    states = []
    for _ in range(2):
        model = network("default", targets)
        train(model, x, targets, TrainingSettings(epochs=2, seed=5))
        states.append(model.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_rows_with_several_labels_train_on_their_mixture() -> None:
    x = sp.csr_array(np.ones((40, 3), np.float32))
    targets = Targets(Traces.encode_sets(layers(), [["a", "c"]] * 40))
    torch.manual_seed(0)
    model = HiNet(SparseBag(3, 4, dropout=0.0), layers(), 4, HeadSettings())
    train(model, x, targets, TrainingSettings(epochs=60, batch=8, dense_rate=2e-2))
    predicted = predict_traces(model, x[:1], k=2)
    assert set(predicted.decode_sets()[0]) == {"a", "c"}
    assert np.exp(predicted.log_p) == pytest.approx([0.5, 0.5], abs=0.05)


def test_early_stopping_keeps_the_best_weights() -> None:
    x, y = rows()
    targets = Targets(Traces.encode(layers(), y))
    model = network("default", targets)
    scores = iter([0.1, 0.9, 0.5, 0.4, 0.3, 0.2])
    kept: list[torch.Tensor] = []

    def validate() -> float:
        kept.append(model.head.weight.detach().clone())  # type: ignore[union-attr,operator]
        return next(scores)

    history = train(model, x, targets, TrainingSettings(epochs=6, patience=2), validate=validate)
    assert [record.valid_score for record in history] == [0.1, 0.9, 0.5, 0.4]
    assert torch.equal(model.head.weight, kept[1])  # type: ignore[union-attr,arg-type]


def test_history_and_progress_agree() -> None:
    x, y = rows()
    targets = Targets(Traces.encode(layers(), y))
    stream = io.StringIO()
    history = train(
        network("default", targets), x, targets, TrainingSettings(epochs=2), progress=LineProgress("m", stream)
    )
    lines = stream.getvalue().splitlines()
    assert [line.split("  cost ")[0] for line in lines] == ["m: epoch 1/2", "m: epoch 2/2"]
    assert all(f"cost {record.cost:.4f}" in line for record, line in zip(history, lines, strict=True))
    assert all(isinstance(record, EpochRecord) for record in history)


def test_rows_without_features_are_accepted() -> None:
    x, y = rows()
    blank = sp.csr_array((3, 30), dtype=np.float32)
    targets = Targets(Traces.encode(layers(), [*y, "a", "a", "a"]))
    model = network("default", targets)
    train(model, sp.csr_array(sp.vstack([x, blank])), targets, QUICK)
    assert predict_traces(model, blank).decode() == ["a"] * 3


def test_a_taxonomy_of_one_node_trains_and_predicts() -> None:
    lone = Layers.of(Taxonomy.from_edges([(None, "only")]))
    targets = Targets(Traces.encode(lone, ["only"] * 5))
    model = HiNet(SparseBag(3, 4), lone, 4)
    train(model, sp.csr_array(np.eye(5, 3, dtype=np.float32)), targets, TrainingSettings(epochs=1))
    assert predict_traces(model, sp.csr_array((2, 3), dtype=np.float32)).decode() == ["only"] * 2


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x: x[:-1], "199 rows of features and 200 rows of labels"),
        (lambda x: x.tocsc(), "expected a CSR matrix, got CSC"),
        (lambda x: x[:, :3], "the network was made for 30 features, got 3"),
        (lambda x: x.toarray(), "the network reads sparse rows, got a dense array"),
        (lambda x: x.tocoo(), "expected a CSR matrix, got COO"),
        (lambda x: "text", "expected a CSR matrix or a 2-D array of features, got str"),
    ],
)
def test_rows_that_do_not_fit_are_rejected(spoil: object, message: str) -> None:
    x, y = rows()
    targets = Targets(Traces.encode(layers(), y))
    with pytest.raises(HiNetError, match=message):
        train(network("default", targets), spoil(x), targets)  # type: ignore[operator]


def test_values_that_are_not_finite_are_named() -> None:
    x, y = rows()
    targets = Targets(Traces.encode(layers(), y))
    place = int(x.indptr[7])
    x.data[place] = np.nan
    with pytest.raises(HiNetError, match=f"row 7: feature {x.indices[place]} is nan; replace"):
        train(network("default", targets), x, targets)
    dense = np.zeros((200, 30))
    dense[3, 4] = np.inf
    with pytest.raises(HiNetError, match="row 3: feature 4 is inf"):
        train(network("default", targets, dense=True), dense, targets)


def test_rows_without_labels_are_rejected() -> None:
    x, _ = rows(3)
    targets = Targets(Traces.encode_sets(layers(), [["a"], [], ["c"]]))
    with pytest.raises(HiNetError, match="row 1: no label to train on"):
        train(network("default", targets), x, targets)
    nothing = Targets(Traces.encode(layers(), []))
    with pytest.raises(HiNetError, match="no rows to train on"):
        train(HiNet(SparseBag(30, 4), layers(), 4), x[:0], nothing)


def test_a_label_unknown_to_the_flat_network_is_rejected() -> None:
    x, _ = rows(2)
    model = network("flatten", Targets(Traces.encode(layers(), ["a", "c"])))
    with pytest.raises(HiNetError, match="a label that the flat network does not have"):
        train(model, x, Targets(Traces.encode(layers(), ["a", "d"])))


def test_row_adagrad_moves_only_the_rows_with_gradients() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 2))
    weight.grad = torch.sparse_coo_tensor(
        torch.tensor([[1, 1]]), torch.tensor([[1.0, 2.0], [2.0, 1.0]]), (4, 2), check_invariants=True
    )
    RowAdagrad([weight], lr=0.1, initial_accumulator=0.0).step()
    assert weight[[0, 2, 3]].tolist() == [[1.0, 1.0]] * 3
    assert weight[1].tolist() == pytest.approx(
        [1 - 0.1 * 3 / 3, 1 - 0.1 * 3 / 3]
    )  # sum of gradients over their root mean square
    dense = torch.nn.Parameter(torch.ones(4, 2))
    dense.grad = torch.zeros(4, 2).index_fill(0, torch.tensor([1]), 3.0)
    RowAdagrad([dense], lr=0.1, initial_accumulator=1e-12).step()
    torch.testing.assert_close(dense, weight)


def test_a_cost_that_is_not_finite_ends_the_training() -> None:
    x, y = rows()
    targets = Targets(Traces.encode(layers(), y))
    model = network("default", targets)
    with torch.no_grad():
        model.features.bias.fill_(torch.inf)  # type: ignore[union-attr,operator]
    with pytest.raises(HiNetError, match="the cost is no longer finite"):
        train(model, x, targets, QUICK)
    with pytest.raises(HiNetError, match=r"row 0: feature 0 is 1e\+300"):
        train(network("default", targets, dense=True), np.full((200, 30), 1e300), targets)


def test_layers_must_be_the_same() -> None:
    x, y = rows()
    other = Layers.of(Taxonomy.from_edges([("r", label) for label in LABELS]))
    with pytest.raises(HiNetError, match="different layers"):
        train(HiNet(SparseBag(30, 4), layers(), 4), x, Targets(Traces.encode(other, y)))
    train(HiNet(SparseBag(30, 4), layers(), 4), x, Targets(Traces.encode(layers(), y)), TrainingSettings(epochs=1))


def test_an_interrupted_run_keeps_the_best_weights() -> None:
    x, y = rows()
    targets = Targets(Traces.encode(layers(), y))
    model = network("default", targets)
    scores = iter([0.5, float("nan"), 0.4])
    kept: list[torch.Tensor] = []

    def validate() -> float:
        kept.append(model.head.weight.detach().clone())  # type: ignore[union-attr,operator]
        score = next(scores, None)
        if score is None:
            raise KeyboardInterrupt
        return score

    with pytest.raises(KeyboardInterrupt):
        train(model, x, targets, TrainingSettings(epochs=9), validate=validate)
    assert torch.equal(model.head.weight, kept[0])  # type: ignore[union-attr,arg-type]


def test_token_ids_go_through_sparse_embeddings() -> None:
    random = np.random.default_rng(0)
    label = random.integers(len(LABELS), size=120)
    tokens = np.stack([label, random.integers(5, 30, size=120)], axis=1)
    targets = Targets(Traces.encode(layers(), [LABELS[number] for number in label]))
    torch.manual_seed(0)
    model = HiNet(torch.nn.EmbeddingBag(30, 8, sparse=True), layers(), 8)
    train(model, tokens, targets, TrainingSettings(epochs=20, batch=16, sparse_rate=1.0, dense_rate=1e-2))
    assert accuracy(targets.traces, predict_traces(model, tokens)) > 0.97


def test_labels_with_a_single_row_are_learned() -> None:
    x = sp.csr_array(np.eye(len(LABELS), 30, dtype=np.float32))
    targets = Targets(Traces.encode(layers(), LABELS))
    model = network("default", targets)
    train(model, x, targets, TrainingSettings(epochs=60, batch=4, dense_rate=1e-2))
    assert predict_traces(model, x).decode() == LABELS


def test_k_is_checked() -> None:
    x, y = rows(3)
    targets = Targets(Traces.encode(layers(), y))
    for kind, k in (("default", 0), ("flatten", 2)):
        with pytest.raises(HiNetError, match=f"got {k}"):
            predict_traces(network(kind, targets), x, k=k)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_gives_what_the_cpu_gives() -> None:
    x, y = rows()
    targets = Targets(Traces.encode(layers(), y))
    model = network("default", targets)
    train(model, x, targets, TrainingSettings(epochs=3, device="cuda"))
    on_gpu = predict_traces(model, x).decode()
    assert predict_traces(model.cpu(), x).decode() == on_gpu
