"""From texts to traces with probabilities on a CPU: the fused engine on a slice of ICD-10-CM."""

import numpy as np

from hinet import Layers, Traces, load_icd10cm
from hinet.data.text import TextFeatures
from hinet.engine import EngineSettings, FusedModel, Search, fit
from hinet.metrics import accuracy

icd = load_icd10cm()
train, test = icd.train.take(np.arange(1_500)), icd.test.take(np.arange(200))
layers = Layers.of(icd.taxonomy, ends=sorted({*train.labels, *test.labels}))

features, rows = TextFeatures.fit_transform(train.texts)
model = fit(rows, Traces.encode(layers, train.labels), EngineSettings(seed=0))
print(model.mix)  # weights of the experts

search = Search(model)
found = search.traces(features.transform(test.texts))
print(f"accuracy {accuracy(Traces.encode(layers, test.labels), found.traces):.2f}")
print(f"{found.touched.mean():.0f} of {model.outputs:,} outputs computed per text")

typhoid = features.transform(["Typhoid fever with pneumonia"])
for path, log_p in zip(
    search.traces(typhoid, k=3).traces.paths()[0], search.traces(typhoid, k=3).traces.log_p, strict=True
):
    print(f"{np.exp(log_p):.2f}", " > ".join(path))
sure = search.deepest_confident(typhoid, min_probability=0.9)
print("deepest confident node:", icd.taxonomy.ids[sure.nodes[0]], f"{sure.probability[0]:.2f}")

again = FusedModel.from_arrays(layers, model.to_arrays(half=True))  # half precision halves the size
print(again.nbytes == model.nbytes, Search(again).traces(typhoid).traces.decode())
