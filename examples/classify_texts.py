"""Train, evaluate, predict with confidence, explain, save and update a classifier on a chapter of ICD-10-CM."""

import tempfile
import warnings

import numpy as np

from hinet import HiNetClassifier, load, load_icd10cm
from hinet.metrics import hierarchical_f1

icd = load_icd10cm()
train, test = (
    part.take(np.flatnonzero([label[0] in "AB" for label in part.labels]))  # infectious and parasitic diseases
    for part in (icd.train, icd.test)
)
first, more = (train.take(np.arange(start, len(train), 2)) for start in (0, 1))
classifier = HiNetClassifier(icd.taxonomy).fit(first.texts, first.labels)
predicted = classifier.predict(test.texts)
print(f"accuracy {classifier.score(test.texts, test.labels):.2f}")
print(f"hierarchical F1 {hierarchical_f1(test.labels, predicted, taxonomy=icd.taxonomy):.2f}")

found = classifier.calibrate(more.texts, more.labels)  # rows that were not used for training
print(f"temperature {found.temperature:.2f}, calibration error {found.error_before:.3f} -> {found.error_after:.3f}")

phrase = "Typhoid fever with pneumonia"
for trace in classifier.predict_traces([phrase], k=2)[0]:
    print(f"{trace.probability:.2f}", " > ".join(trace.steps))
print("at least 90% sure:", classifier.predict([phrase], min_confidence=0.9)[0])
print(classifier.explain(phrase, most=3))

with tempfile.TemporaryDirectory() as folder:
    classifier.save(f"{folder}/model")
    again = load(f"{folder}/model")
print(again.predict([phrase]) == classifier.predict([phrase]))

with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # accuracy on old rows may drop
    again.partial_fit(more.texts, more.labels)  # includes new labels
print(f"accuracy after more rows {again.score(test.texts, test.labels):.2f}")
