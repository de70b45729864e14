"""Build a taxonomy with a shared child, print its layers, and trace labels through them."""

from hinet import Layers, Taxonomy, TaxonomyError, Traces

taxonomy = Taxonomy.from_edges(
    [("thing", "tool"), ("thing", "toy"), ("tool", "drone"), ("toy", "drone"), ("toy", "doll")],
    attributes={"title": {"drone": "Flying camera"}},
)
print(taxonomy)
print("parents of drone:", taxonomy.parents("drone"))

layers = Layers.of(taxonomy, ends=["drone", "doll", "toy"])
print("complete traces:", layers.count_traces())
for number, layer in enumerate(layers, start=1):
    print(f"layer {number}: {len(layer.nodes)} neurons{' and a stop neuron' if layer.has_stop else ''}")

for label, paths in zip(("drone", "toy"), Traces.encode(layers, ["drone", "toy"]).paths(), strict=True):
    print(label, "<-", " | ".join(" > ".join(path) for path in paths))

try:
    Taxonomy.from_edges([("hen", "egg"), ("egg", "hen"), (None, "farm")])
except TaxonomyError as error:
    print("rejected:", error)
