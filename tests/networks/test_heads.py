from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hinet import HiNetError, Layers, Taxonomy, Traces
from hinet.networks import HeadSettings, HierarchicalHead, Targets, build_head, default, downpour, paper
from tests.networks.strategies import FAMILY, PARENT, WIDTH, enumerated, heads, hidden_rows


def some_labels(head: HierarchicalHead, rows: int, random: int) -> list[list[str]]:
    layers = head.graph.layers
    ending = sorted({layers.taxonomy.ids[node] for node in layers.node[layers.ends]})
    generator = np.random.default_rng(random)
    return [list(generator.choice(ending, size=generator.integers(1, 3))) for _ in range(rows)]


@given(heads(PARENT))
def test_complete_traces_of_a_row_sum_to_one(head: HierarchicalHead) -> None:
    scores = head.option_scores(hidden_rows()).detach()
    for row in range(3):
        total = sum(np.exp(score) for score in enumerated(head.graph.layers, scores, row).values())
        assert total == pytest.approx(1.0)


@given(heads())
def test_scores_are_log_probabilities(head: HierarchicalHead) -> None:
    assert (head.option_scores(hidden_rows()) <= 1e-9).all()


@given(heads(), st.integers(0, 99))
def test_a_row_does_not_depend_on_other_rows(head: HierarchicalHead, random: int) -> None:
    hidden = hidden_rows(4)
    labels = some_labels(head, 4, random)
    targets = Targets(Traces.encode_sets(head.graph.layers, labels))
    scores, cost = head.option_scores(hidden), head.cost(hidden, targets.batch(np.arange(4)))
    for row in range(4):
        torch.testing.assert_close(head.option_scores(hidden[row : row + 1])[:, 0], scores[:, row])
        torch.testing.assert_close(head.cost(hidden[row : row + 1], targets.batch(np.array([row])))[0], cost[row])


@given(heads([s for s in FAMILY if s.cost == "cross_entropy"]), st.integers(0, 99))
def test_cross_entropy_is_the_marginal_over_traces_and_the_mean_over_labels(
    head: HierarchicalHead, random: int
) -> None:
    layers = head.graph.layers
    hidden, labels = hidden_rows(), some_labels(head, 3, random)
    scores = head.option_scores(hidden)
    cost = head.cost(hidden, Targets(Traces.encode_sets(layers, labels)).batch(np.arange(3)))
    for row, names in enumerate(labels):
        traces = enumerated(layers, scores, row)
        expected = []
        for name in dict.fromkeys(names):
            node = layers.taxonomy.position(name)
            expected.append(
                -np.log(sum(np.exp(s) for p, s in traces.items() if layers.node[p[-1] if p else 0] == node))
            )
        assert cost[row].item() == pytest.approx(np.mean(expected))


@given(heads([s for s in FAMILY if s.cost == "squared"]), st.integers(0, 99))
def test_squared_cost_is_the_distance_to_the_one_hot_targets(head: HierarchicalHead, random: int) -> None:
    """The definition: |target - y|^2 of the softmax at each level of a trace down to its stop, summed."""
    layers = head.graph.layers
    hidden, labels = hidden_rows(), some_labels(head, 3, random)
    probability = head.option_scores(hidden).exp().detach().numpy()
    traces = Traces.encode_sets(layers, labels)
    cost = head.cost(hidden, Targets(traces).batch(np.arange(3)))
    options, offsets = traces.options()
    for row in range(3):
        by_label: dict[int, list[float]] = {}
        for trace in range(int(traces.row_offsets[row]), int(traces.row_offsets[row + 1])):
            total = 0.0
            for option in options[offsets[trace] : offsets[trace + 1]]:
                parent = int(layers.option_parent[option])
                if head.settings.normalisation == "parent":
                    rivals = range(int(layers.option_offsets[parent]), int(layers.option_offsets[parent + 1]))
                else:  # one option for each neuron of the layer, the stop neuron included
                    layer = layers.depth[layers.option_parent] == layers.depth[parent]
                    unit = {int(layers.option_neuron[o]): int(o) for o in np.flatnonzero(layer)[::-1]}
                    rivals = list(unit.values())  # type: ignore[assignment]
                same = int(layers.option_neuron[option])
                total += sum((float(layers.option_neuron[o] == same) - probability[o, row]) ** 2 for o in rivals)
            by_label.setdefault(int(traces.end_nodes[trace]), []).append(total)
        assert cost[row].item() == pytest.approx(np.mean([np.mean(totals) for totals in by_label.values()]))


@pytest.mark.parametrize("settings", FAMILY, ids=lambda s: f"{s.wiring}-{s.normalisation}-{s.cost}-{s.mask}-{s.tied}")
@pytest.mark.parametrize("dag", [False, True], ids=["tree", "dag"])
def test_gradients_of_every_cost_pass_gradcheck(settings: HeadSettings, dag: bool) -> None:
    edges = [("r", "a"), ("r", "b"), ("a", "c"), ("a", "d"), ("b", "e"), ("d", "f"), ("d", "g")]
    layers = Layers.of(Taxonomy.from_edges([*edges, *([("b", "d"), ("r", "e"), ("b", "c")] if dag else [])]))
    torch.manual_seed(3)
    head = build_head(layers, WIDTH, settings).double()
    targets = Targets(Traces.encode_sets(layers, [["d"], ["g", "a"], ["c"]])).batch(np.arange(3))
    names = [name for name, parameter in head.named_parameters() if parameter.numel()]
    values = [dict(head.named_parameters())[name].detach().clone().requires_grad_() for name in names]
    hidden = hidden_rows().requires_grad_()

    def cost(hidden: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        state = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(_CostOf(head), {f"head.{k}": v for k, v in state.items()}, (hidden, targets))

    assert torch.autograd.gradcheck(cost, (hidden, *values))


class _CostOf(torch.nn.Module):
    def __init__(self, head: HierarchicalHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden: torch.Tensor, targets: object) -> torch.Tensor:
        return self.head.cost(hidden, targets)  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", FAMILY, ids=str)
def test_large_logits_stay_finite(settings: HeadSettings) -> None:
    layers = Layers.of(Taxonomy.from_edges([("r", "a"), ("r", "b"), ("a", "c"), ("a", "d")]))
    head = build_head(layers, WIDTH, settings)
    hidden = torch.full((2, WIDTH), 1e4, requires_grad=True)
    assert head.option_scores(hidden).isfinite().all()
    cost = head.cost(hidden, Targets(Traces.encode(layers, ["c", "b"])).batch(np.arange(2)))
    cost.sum().backward()
    assert cost.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in head.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("settings", FAMILY, ids=str)
def test_no_rows_cost_nothing(settings: HeadSettings) -> None:
    layers = Layers.of(Taxonomy.from_edges([("r", "a"), ("r", "b"), ("a", "c"), ("a", "d")]))
    head = build_head(layers, WIDTH, settings)
    targets = Targets(Traces.encode(layers, ["c"])).batch(np.arange(0))
    assert head.cost(torch.zeros(0, WIDTH), targets).shape == (0,)


def test_the_prior_counts_rows_not_traces() -> None:
    layers = Layers.of(Taxonomy.from_edges([("r", "a"), ("r", "b"), ("a", "c"), ("b", "c"), ("r", "z")]), ends=())
    counts = Targets(Traces.encode(layers, ["c", "z", "z", "z"])).option_counts()
    first = {
        layers.taxonomy.ids[layers.node[layers.option_neuron[option]]]: float(counts[option]) for option in range(3)
    }
    assert first == {"a": 0.5, "b": 0.5, "z": 3.0}  # the row of c is shared by its two traces


def test_the_prior_shifts_the_training_logits_and_nothing_else() -> None:
    layers = Layers.of(Taxonomy.from_edges([("r", "a"), ("r", "z")]))
    targets = Targets(Traces.encode(layers, ["a", "z", "z", "z"]))
    head = build_head(layers, WIDTH, HeadSettings(prior_strength=1.0))
    head.learn_prior(targets)
    hidden, batch = torch.randn(4, WIDTH), targets.batch(np.arange(4))
    logits = (head.weight @ hidden.T + head.bias[:, None]).detach()  # (2, 4): a, z
    taken = [0, 1, 1, 1]
    with torch.no_grad():
        plain = -logits.log_softmax(0)[taken, range(4)]
        torch.testing.assert_close(head.eval().cost(hidden, batch), plain)
        shares = torch.tensor([1.5, 3.5]) / 5  # half a row more for every option
        shifted = -(logits + shares.log()[:, None]).log_softmax(0)[taken, range(4)]
        torch.testing.assert_close(head.train().cost(hidden, batch), shifted)
        again = build_head(layers, WIDTH, HeadSettings(prior_strength=1.0))
        again.load_state_dict(head.state_dict())
        torch.testing.assert_close(again.eval().cost(hidden, batch), plain)


def test_options_without_rows_get_no_head_start() -> None:
    layers = Layers.of(Taxonomy.from_edges([("r", "a"), ("r", "b"), ("r", "unseen")]))
    head = build_head(layers, WIDTH, HeadSettings(prior_strength=1.0))
    head.learn_prior(Targets(Traces.encode(layers, ["a", "b", "b"])))
    assert head.adjustment.tolist() == pytest.approx([np.log(1.5 / 4.5), np.log(2.5 / 4.5), 0.0])


def test_predicted_traces_in_any_order_are_targets_too() -> None:
    layers = Layers.of(Taxonomy.from_edges([("r", "a"), ("r", "b"), ("a", "c"), ("b", "c")]))
    head = build_head(layers, WIDTH).double()
    hidden = hidden_rows(1)
    found = downpour(head.graph, head.option_scores(hidden).detach(), 9)
    encoded = Targets(Traces.encode_sets(layers, [found.decode_sets()[0]])).batch(np.arange(1))
    torch.testing.assert_close(head.cost(hidden, Targets(found).batch(np.arange(1))), head.cost(hidden, encoded))


def test_wide_groups_cost_the_same_whether_gathered_or_not() -> None:
    layers = Layers.of(Taxonomy.from_edges([(None, f"n{number}") for number in range(300)]))
    head = build_head(layers, WIDTH).double()
    hidden, labels = hidden_rows(4), ["n5", "n7", "n5", "n299"]
    targets = Targets(Traces.encode(layers, labels))
    gathered = head.cost(hidden, targets.batch(np.arange(4)))
    head.max_gathered_cells = 0
    torch.testing.assert_close(head.cost(hidden, targets.batch(np.arange(4))), gathered)


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(HiNetError, match="wiring: expected 'chain' or 'skip', got 'Skip'"):
        HeadSettings(wiring="Skip")  # type: ignore[arg-type]
    with pytest.raises(HiNetError, match="need wiring 'skip'"):
        HeadSettings(wiring="chain", tied=True)


def test_a_taxonomy_of_one_node_is_certain() -> None:
    layers = Layers.of(Taxonomy.from_edges([(None, "only")]))
    for settings in (default(), paper()):
        head = build_head(layers, WIDTH, settings)
        assert head.option_scores(torch.randn(2, WIDTH)).exp().sum(0).tolist() == [2.0, 2.0]
        cost = head.cost(torch.randn(2, WIDTH), Targets(Traces.encode(layers, ["only"] * 2)).batch(np.arange(2)))
        assert cost.abs().max() < 1e-6


def test_the_paper_has_a_parameter_for_every_pair_of_neighbouring_neurons() -> None:
    edges = [("r", str(a)) for a in range(4)] + [(str(a), f"{a}{b}") for a in range(4) for b in range(3)]
    layers = Layers.of(Taxonomy.from_edges(edges), ends=())
    for mask, count in (("dense", 4 * 10 + 12 * 4 + 1 * 12), ("masked", 4 * 10 + 12 + 12)):
        head = build_head(layers, 10, paper(mask))  # type: ignore[arg-type]
        assert sum(parameter.numel() for parameter in head.parameters()) == count


def test_dense_weights_that_would_not_fit_are_rejected() -> None:
    edges = [("r", f"a{number}") for number in range(8_000)] + [(f"a{number}", f"b{number}") for number in range(8_000)]
    layers = Layers.of(Taxonomy.from_edges(edges), ends=())
    with pytest.raises(HiNetError, match=r"layer 1 to layer 2 are 8,000 x 8,000 = 0.3 GB.*mask='masked'"):
        build_head(layers, WIDTH, paper())


def test_level_weights_weigh_the_levels() -> None:
    layers = Layers.of(Taxonomy.from_edges([("r", "a"), ("r", "b"), ("a", "c"), ("a", "d")]))
    targets = Targets(Traces.encode(layers, ["a"])).batch(np.arange(1))  # its stop is a choice, at level 2
    hidden = hidden_rows(1)
    costs = []
    for weights in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (1.0, 1.0, 0.0)):
        torch.manual_seed(0)
        head = build_head(layers, WIDTH, HeadSettings(level_weights=weights)).double()
        costs.append(float(head.cost(hidden, targets).detach()))
    assert costs[0] + costs[1] == pytest.approx(costs[2])
    with pytest.raises(HiNetError, match="`level_weights` needs 3 numbers"):
        build_head(layers, WIDTH, HeadSettings(level_weights=(1.0,)))
