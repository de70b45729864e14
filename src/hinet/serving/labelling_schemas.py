"""Schemas of requests and responses of a labelling project."""

from __future__ import annotations

from typing import Annotated, Literal

from hinet.serving.schemas import (
    MAX_CORRECT_NODES,
    MAX_ID,
    NamedNode,
    Neighbour,
    NodeId,
    PageQuery,
    Parameters,
    Probability,
    RequestBody,
    ResponseValue,
    Time,
    Trace,
    doc,
)

MAX_BATCH = 50  # rows per request for the next rows
MAX_NOTE = 2_000  # characters
MAX_ROWS = 10_000  # rows that a request adds

Annotator = Annotated[
    str, doc("Name of the person who labels.", min_length=1, max_length=100, pattern=r"\S", examples=["Ada"])
]
RowId = Annotated[int, doc("Id of a row of the project.", ge=1, le=MAX_ID)]
Reason = Annotated[
    Literal["uncertain", "different", "branch", "random", "second", "requested"],
    doc(
        "Why this row is next: its answer is uncertain; it differs from what is known; its branch has few labels; it "
        "was drawn at random, to measure accuracy; another person has labelled it, to measure agreement; or it was "
        "requested by its id."
    ),
]
Note = Annotated[str, doc("Note of the person.", max_length=MAX_NOTE)]


class Person(ResponseValue):
    """A person who labels."""

    name: str
    labels: int = doc("Labels that count.")
    skipped: int


class ProjectModel(ResponseValue):
    """The model that answers."""

    name: str = doc("Its name in `/v1/classify` and other requests.")
    version: str
    rows: int = doc("Labelled rows that it was trained on; 0 if it has only the taxonomy.")
    trained: Time


class Retraining(ResponseValue):
    """A training that runs in the background."""

    started: Time
    rows: int = doc("Labelled rows that it trains on.")


class Project(ResponseValue):
    """A labelling project."""

    name: str = doc("Name of its folder.")
    rows: int = doc("All rows.")
    labelled: int = doc("Rows with a label.")
    skipped: int = doc("Rows without a label that somebody skipped.")
    left: int = doc("Rows that nobody has labelled or skipped.")
    scored: Probability = doc("Share of the rows left that the current model has ranked.")
    several: bool = doc("Whether a row may have several labels.")
    annotators: list[Person]
    model: ProjectModel
    retraining: Retraining | None = doc("Null if none runs.")
    retraining_problem: str | None = doc("Why the last training failed, if it did.")
    labels_since_training: int = doc("Labelled rows that the model was not trained on.")
    next_training: int = doc("Value of `labels_since_training` that starts the next training.")
    disagreements: int = doc("Rows on which people disagree.")


class NextRequest(RequestBody):
    """A request for rows to label."""

    annotator: Annotator
    count: int = doc("Maximum number of rows.", 1, ge=1, le=MAX_BATCH)
    ids: list[RowId] = doc(
        "Lend these rows, whoever had them, with the answers of now, instead of the next ones.",
        [],
        max_length=MAX_BATCH,
    )


class Suggestion(Trace):
    """A trace that may be right, with the known text of its node that is most like the row."""

    nearest: Neighbour | None = doc("Null if the model has no vectors, or knows no text of the node.")


class RowToLabel(ResponseValue):
    """A row to label."""

    id: RowId
    text: str
    reason: Reason
    best: list[Suggestion] = doc("The five most probable traces, best first; fewer if there are fewer labels.")


class NextResponse(ResponseValue):
    """Rows to label, lent to one person."""

    rows: list[RowToLabel] = doc("Most worth a label first; empty if none are left.")
    left: int = doc("Rows that nobody has labelled, skipped or borrowed.")
    lease_seconds: float = doc("Time after which rows without a label are given to others.")


class LabelRequest(RequestBody):
    """A label for a row: its nodes, or `skip`."""

    annotator: Annotator
    id: RowId
    nodes: list[NodeId] = doc(
        "The right nodes; several only if the project has several labels.", [], max_length=MAX_CORRECT_NODES
    )
    skip: bool = doc("Leave the row without a label.", False)
    settle: bool = doc("Settle a disagreement: this label counts, whatever others said.", False)
    note: Note = ""


class LabelResponse(ResponseValue):
    """A label that was written to disk."""

    label_id: int
    id: RowId
    time: Time
    predicted: list[NodeId] = doc("Answer of the model before it knew the label.")
    probability: Probability
    right: bool | None = doc("Whether that was the label; null for a row without one.")
    learned: bool = doc("Whether the model remembers the label already; else from the next training on.")


class GivenLabel(ResponseValue):
    """A label or skip that counts."""

    label_id: int
    id: RowId
    text: str
    annotator: str
    time: Time
    nodes: list[NamedNode]
    skip: bool
    settle: bool
    note: str
    predicted: list[NodeId]
    probability: Probability


class TableQuery(Parameters):
    """Parameters of a table."""

    escape_formulas: bool = doc("Put ' before cells that a spreadsheet would compute.", False)


class LabelQuery(PageQuery):
    """A page of labels."""

    annotator: str | None = doc("Only labels of this person.", None, max_length=100)


class LabelPage(ResponseValue):
    """A page of labels, the newest first."""

    items: list[GivenLabel]
    total: int
    offset: int
    limit: int


class RowsRequest(RequestBody):
    """Texts to add to the rows."""

    texts: list[str] = doc("Texts; those of existing rows are not added again.", min_length=1, max_length=MAX_ROWS)


class RowsResponse(ResponseValue):
    """Rows that were written to disk."""

    ids: list[RowId] = doc("Id of the row of each text, new or not.")
    added: int = doc("Number of new rows.")


# Progress


class Accuracy(ResponseValue):
    """Share of rows whose answer before the label was right, with an interval of 95%."""

    value: Probability
    low: Probability
    high: Probability
    rows: int


class CurvePoint(ResponseValue):
    """Accuracy of some consecutive labels."""

    labels: int = doc("Labels given up to the last of these.")
    accuracy: Probability
    low: Probability
    high: Probability


class LevelAccuracy(ResponseValue):
    """Accuracy down to a level of the taxonomy."""

    level: int = doc("1 at the top.")
    accuracy: Probability
    rows: int = doc("Labels at least as deep.")


class BranchAccuracy(NamedNode):
    """Accuracy of the labels at or below a top node."""

    accuracy: Probability
    low: Probability
    high: Probability
    rows: int


class Acceptance(ResponseValue):
    """Answers that need no look: of those with at least `threshold`, at most the share `risk` is wrong."""

    threshold: Probability
    coverage: Probability = doc("Share of the rows left whose answer has this probability.")
    risk: Probability
    certainty: Probability = doc("Certainty of the bound, for rows like those labelled.")
    rows: int = doc("Labels that the bound is computed from.")


class Saturation(ResponseValue):
    """More labels no longer raise accuracy."""

    message: str


class Agreement(ResponseValue):
    """Agreement of two people on the rows that both have labelled."""

    rows: int
    agreed: Probability = doc("Share of these rows with the same label.")
    kappa: float = doc("Cohen's kappa; 1 is perfect, 0 is chance.")
    hierarchical_kappa: float = doc("The same, with partial credit for the common ancestors of two labels.")


class Progress(ResponseValue):
    """How good the model is: every label was first predicted."""

    labels: int = doc("First labels of rows, which all figures are about.")
    accuracy: Accuracy | None = doc("Of the last 100 labels.")
    random: Accuracy | None = doc(
        "Of the last 100 rows that were drawn at random: an estimate of the rows that were left when they were drawn."
    )
    curve: list[CurvePoint]
    levels: list[LevelAccuracy] = doc("Of the last 100 labels.")
    branches: list[BranchAccuracy] = doc("Of all labels; most labels first.")
    accept: Acceptance | None = doc("Null if there are too few labels for a bound.")
    saturation: Saturation | None = doc("Null if more labels help.")
    agreement: Agreement | None = doc("Null if no two people have labelled the same row.")


class OnePersonsLabel(ResponseValue):
    """The label that one person gave to a row."""

    label_id: int
    annotator: str
    time: Time
    nodes: list[NamedNode]
    note: str


class Disagreement(ResponseValue):
    """A row with different labels."""

    id: RowId
    text: str
    labels: list[OnePersonsLabel] = doc("The last label of each person, oldest first.")


class DisagreementPage(ResponseValue):
    """A page of disagreements, the oldest row first."""

    items: list[Disagreement]
    total: int
    offset: int
    limit: int
