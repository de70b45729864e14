"""Schemas of requests and responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, Field

MAX_NAME = 10_000  # characters of a node id or label
MAX_TRACES = 100  # per text
MAX_SIBLINGS = 1_000  # per step
MAX_WORDS = 1_000  # per explained step
MAX_CORRECT_NODES = 100  # per text
MAX_BRANCHES = 100  # branches that a request allows or excludes
MAX_COLUMNS = 50  # named columns
MAX_SEARCH = 200  # characters
PAGE = 50  # default number of nodes or rows per page
MAX_PAGE = 500
MAX_ID = 2**53  # larger integers are not exact in JavaScript
MAX_REVIEW_PAGE = 100  # rows per page of the review queue


def doc(description: str, default: Any = ..., **constraints: Any) -> Any:
    """Return a field with a description; without a default, it is required."""
    return Field(default, description=description, **constraints)


def _with_examples(*examples: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [*examples]})


Probability = Annotated[float, Field(ge=0, le=1)]
MinConfidence = Annotated[
    Annotated[float, Field(gt=0, le=1)] | Literal["calibrated"] | None,
    doc(
        "Predict the deepest node of at least this probability, or none; a root that is a label has probability 1. For "
        "a multilabel model, predict all labels of at least this probability. 'calibrated' is the threshold for the "
        "risk that was given in training."
    ),
]
NodeId = Annotated[str, Field(max_length=MAX_NAME, examples=["S52.5"])]
Within = Annotated[
    list[NodeId],
    doc(
        "Nodes below which to answer. The answers are the best among what `within` and `exclude` allow, and "
        "probabilities are conditional on it, except for a multilabel model. Siblings are left out.",
        max_length=MAX_BRANCHES,
    ),
]
Exclude = Annotated[list[NodeId], doc("Nodes that are never answered, nor those below them.", max_length=MAX_BRANCHES)]
ModelName = Annotated[str | None, doc("Name of a served model (default: the first one).")]
Version = Annotated[str, doc("Digest of the model's manifest.", examples=["9b1f0a3c5d7e8f01"])]
Row = Annotated[
    dict[str, Any],
    doc("A row by column, for a model of several columns.", examples=[{"title": "rye bread", "price": 2}]),
]
Time = Annotated[str, doc("UTC, ISO 8601.", examples=["2026-11-17T09:30:00.123Z"])]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Id = Annotated[int, Ge(1), Le(MAX_ID)]
TableName = Literal["csv", "tsv", "jsonl", "parquet", "xlsx"]


class RequestBody(BaseModel, extra="forbid", strict=True):
    """Body of a request: unknown fields are refused."""


class Parameters(BaseModel, extra="forbid"):
    """Parameters in the URL: unknown ones are refused."""


class Query(Parameters):
    """Parameters of a request to a model."""

    model: ModelName = None


class PageQuery(Parameters):
    """Parameters of a page of results."""

    offset: int = doc("Index of the first item, from 0.", 0, ge=0, le=1 << 31)
    limit: int = doc("Maximum number of items.", PAGE, ge=1, le=MAX_PAGE)

    @property
    def place(self) -> dict[str, int]:
        """The page, as responses show it."""
        return {"offset": self.offset, "limit": self.limit}


class ResponseValue(BaseModel, extra="forbid"):
    """A value in a response."""


class NamedNode(ResponseValue):
    """A node and its title."""

    node: NodeId
    title: str = Field(examples=["Fracture of lower end of radius"])


class ModelResponse(ResponseValue):
    """A response of a model."""

    model: str = Field(examples=["icd10cm"])
    version: Version


class Page(ModelResponse):
    """A page of results."""

    total: int = doc("Number of items on all pages.")
    offset: int
    limit: int


# Classify


class ClassifyRequest(RequestBody):
    """Texts or rows to classify: exactly one of `text`, `texts` and `rows`."""

    model_config = _with_examples(
        {"text": "broken wrist"},
        {"texts": ["broken wrist", "sore throat"], "top": 3, "siblings": 10, "unknown_words": True},
        {"text": "broken wrist", "min_confidence": 0.9},
    )

    model: ModelName = None
    text: str | None = doc("One text.", None)
    texts: list[str] | None = doc("Several texts.", None, min_length=1)
    rows: list[Row] | None = doc("Rows, for a model of several columns.", None, min_length=1)
    top: int = doc("Number of traces per text, best first.", 1, ge=1, le=MAX_TRACES)
    min_confidence: MinConfidence = None
    within: Within = []
    exclude: Exclude = []
    siblings: int = doc(
        "Maximum number of siblings per step of the best trace, and of children below.", 0, ge=0, le=MAX_SIBLINGS
    )
    unknown_words: bool = doc("List the words that the model does not know.", False)


class Label(NamedNode):
    """A predicted node."""

    label: str = doc("As labels were written in training.", examples=["S52.5"])
    probability: Probability


class Sibling(NamedNode):
    """Another option at a step: a node, or stopping at the node above."""

    probability: Probability = doc("Probability of the path down to it.")
    children: int = doc("Number of its children.")
    stops: bool = doc("Whether the option is to stop at `node`, the node above.")


class Siblings(ResponseValue):
    """The most probable other options at a step."""

    total: int = doc("Number of other options at this step.")
    nodes: list[Sibling]


class TraceStep(NamedNode):
    """A step of a trace, with the probability of the path down to it, which falls from step to step."""

    probability: Probability
    siblings: Siblings | None = doc("Of the best trace, if requested.", None)


class Trace(Label):
    """A path from the top down; its probability includes stopping at the last step."""

    steps: list[TraceStep]
    below: Siblings | None = doc("Children of the last step, if siblings were requested.", None)


class Word(ResponseValue):
    """A part of a text: `text[start:end]`, counted in Unicode code points."""

    word: str = Field(examples=["wrist"])
    start: int
    end: int


class Result(ResponseValue):
    """The answer to one text."""

    labels: list[Label] = doc("The predicted label; several for a multilabel model, none below `min_confidence`.")
    traces: list[Trace] = doc("The `top` best traces, the most probable first.")
    unknown_words: list[Word] | None = doc("Each occurrence, if requested.", None)


class ClassifyResponse(ModelResponse):
    """The answers to texts, in their order."""

    results: list[Result]


class FileQuery(Query):
    """Options for a table."""

    format: TableName | None = doc("Default: by Content-Type.", None)
    to: TableName | None = doc("Format of the answer (default: that of the table).", None)
    text: list[Name] = doc("Text columns.", [], max_length=MAX_COLUMNS)
    top: Annotated[int, Field(ge=1, le=MAX_TRACES)] | None = doc(
        "Number of traces per row (default: 1), or labels of a multilabel model (default: by its thresholds).", None
    )
    min_confidence: MinConfidence = None
    within: Within = []
    exclude: Exclude = []
    levels: bool = doc("Add every step of the trace with its probability.", False)
    titles: bool = doc("Add the titles of labels.", False)
    keep: list[Name] = doc("Columns to copy to the answer.", [], max_length=MAX_COLUMNS)
    keep_all: bool = doc("Copy all columns to the answer.", False)
    prefix: str = doc("Prefix of the names of new columns.", "", max_length=100)
    escape_formulas: bool = doc("Put ' before cells of CSV and TSV that a spreadsheet would compute.", False)


# Explain


class ExplainRequest(RequestBody):
    """A text or row whose best trace, or trace to a given node, is explained."""

    model_config = _with_examples({"text": "broken wrist", "words": 5})

    model: ModelName = None
    text: str | None = doc("One text.", None)
    row: Row | None = None
    node: NodeId | None = doc("Node to explain (default: the best answer).", None)
    words: int = doc("Maximum number of words per step, strongest first.", 10, ge=1, le=MAX_WORDS)


class Reason(ResponseValue):
    """A word, word pair, part of a word or other feature, and its contribution to the step against the rival."""

    feature: str = Field(examples=["wrist"])
    push: float = doc("In log odds; negative if it favours the rival.")
    places: list[tuple[int, int]] = doc("Start and end of every occurrence, in code points.")


class Option(NamedNode):
    """A node to descend to, or to stop at."""

    stops: bool = doc("Whether the option is to stop at this node.")


class StepReasons(ResponseValue):
    """Why one option was chosen over its strongest rival, at a step where there was a choice.

    All pushes, `others` and `rest` add up to `difference`. A multilabel model decides each node independently, without
    a rival.
    """

    chosen: Option
    rival: Option | None = doc("Null for a multilabel model.")
    probability: Probability = doc("Probability of the chosen option among its siblings; without a rival, on its own.")
    difference: float = doc("Log odds of the chosen option against the rival; without a rival, its log odds.")
    reasons: list[Reason]
    others: float = doc("Contribution of features that are not listed.")
    rest: float = doc("Contribution without any feature.")


class Neighbour(ResponseValue):
    """A known text, the node that it belongs to, and how much it is like the given text."""

    text: str | None = doc("Null if the model does not keep its training texts.")
    node: str
    title: str
    similarity: float
    origin: Literal["row", "title", "correction"]
    row: int | None = doc("Number of the training row.")


class ExplainResponse(ModelResponse):
    """The words behind every step."""

    trace: Trace
    steps: list[StepReasons]
    unknown_words: list[Word]
    nearest: list[Neighbour] = doc("Known texts that are most like this one; empty without vectors.")


# Taxonomy


class NodeQuery(PageQuery, Query):
    """A node and a page of its children."""

    node: NodeId | None = doc("Id of the node (default: the top of the taxonomy).", None)


class SearchQuery(PageQuery, Query):
    """A search and a page of its matches."""

    q: str = doc("Words, all of which must occur.", max_length=MAX_SEARCH)


class Node(NamedNode):
    """A node of the taxonomy."""

    children: int = doc("Number of its children.")
    is_label: bool = doc("Whether the model can predict it.")


class NodePage(Page):
    """A node with a page of its children."""

    node: Node | None = doc("Null for the top of a taxonomy without a root.")
    ancestors: list[Node] = doc("From the top down, without the node itself.")
    children: list[Node]


class Match(Node):
    """A node that matches a search."""

    matched: Literal["id", "title", "synonym"] = doc("Kind of the matching text.")
    text: str = doc("The matching id, title or synonym.")
    ancestors: list[Node]


class MatchPage(Page):
    """A page of matches: ids, then titles, then synonyms; in each group, texts that start with the query first."""

    query: str
    matches: list[Match]


# Feedback and review


class FeedbackRequest(RequestBody):
    """A verdict on a text: its correct label, predicted by the model (accept) or not (correct).

    `skip` only removes a row from the review queue.
    """

    model_config = _with_examples(
        {"text": "broken wrist", "verdict": "accept", "nodes": ["S62.1"], "predicted": ["S62.1"]},
        {"text": "broken wrist", "verdict": "correct", "nodes": ["S52.5"], "predicted": ["S62.1"], "review": 7},
    )

    model: ModelName = None
    text: str | None = doc("The text.", None)
    row: Row | None = None
    verdict: Literal["accept", "correct", "skip"]
    nodes: list[NodeId] = doc("The correct nodes; none with the verdict skip.", [], max_length=MAX_CORRECT_NODES)
    predicted: list[NodeId] = doc("The nodes that the model predicted.", [], max_length=MAX_CORRECT_NODES)
    review: int | None = doc(
        "Id of the row in the review queue, instead of text or row; the row is removed.", None, ge=1, le=MAX_ID
    )


class FeedbackResponse(ResponseValue):
    """Feedback that was written to disk."""

    id: int
    model: str
    received: Time
    learned: bool = doc("Whether the model remembers it, so that the next answers take it into account.")


class FeedbackQuery(PageQuery, Query):
    """A page of feedback."""


class FeedbackItem(ResponseValue):
    """Stored feedback."""

    id: int
    received: Time
    version: str = doc("Version of the model that answered.")
    verdict: Literal["accept", "correct"]
    row: dict[str, Any] = doc("The training row, as `hinet feedback export` writes it.")
    nodes: list[NodeId]
    predicted: list[NodeId]
    exported: str | None = doc("Time of the first export, UTC, ISO 8601; null if never exported.")


class FeedbackPage(Page):
    """A page of feedback, the newest first."""

    items: list[FeedbackItem]


class ReviewQuery(PageQuery, Query):
    """A page of the review queue."""

    order: Literal["unsure", "split"] = doc("Least probable answer first, or least probable first step.", "unsure")
    limit: int = doc("Maximum number of rows.", 20, ge=1, le=MAX_REVIEW_PAGE)


class ReviewItem(ResponseValue):
    """A classified row to review."""

    id: int
    text: str | None
    row: dict[str, Any] | None
    received: Time
    unsure: Probability = doc("1 minus the probability of the answer.")
    split: Probability = doc("1 minus the probability of the first step.")
    result: Result = doc("Answer of the current model: 3 traces, siblings, unknown words.")


class ReviewPage(Page):
    """A page of the review queue, the most doubtful rows first."""

    items: list[ReviewItem]


# Models


class Bin(ResponseValue):
    """A point of the calibration curve: answers of similar confidence."""

    confidence: Probability = doc("Mean confidence.")
    accuracy: Probability = doc("Share of correct answers.")
    share: Probability = doc("Share of all rows.")


class CoveragePoint(ResponseValue):
    """Share of answers of at least a confidence, and the share of wrong ones among them."""

    threshold: Probability
    coverage: Probability
    risk: Probability


class ConfusedPair(ResponseValue):
    """A frequent wrong answer."""

    true: Option
    predicted: Option
    rows: int


class Branch(NamedNode):
    """A node with the number of rows whose true label is at or below it, and of wrong answers to them."""

    parent: NodeId | None = doc("A node of the same list; null at the top.")
    depth: int = doc("1 at the top.")
    rows: int
    errors: int


class Evaluation(ResponseValue):
    """Evaluation of the model on labelled rows, by `hinet evaluate --keep`."""

    name: str = doc("Name of the file of rows.", examples=["test.csv"])
    evaluated: Time
    rows: int
    metrics: dict[str, float] = Field(
        examples=[{"accuracy": 0.89, "hierarchical_f1": 0.959, "calibration_error": 0.009, "brier_score": 0.08}]
    )
    level_accuracy: list[Probability] = doc("From the top level down.")
    calibration: list[Bin]
    coverage: list[CoveragePoint] = doc("At most 200 points, in order of coverage.")
    confused: list[ConfusedPair] = doc("At most 50 pairs, most rows first.")
    branches: list[Branch] = doc("At most 500 nodes with errors, parents before children.")


class RiskThreshold(ResponseValue):
    """A confidence threshold, calibrated so that at most a share of the answers is wrong."""

    risk: float
    threshold: float


class Calibration(ResponseValue):
    """Result of the calibration in training."""

    rows: int
    temperature: float
    error_before: float
    error_after: float
    risk: RiskThreshold | None


class ValidationFigures(ResponseValue):
    """Metrics of the model on training or validation rows."""

    rows: int
    accuracy: float
    hierarchical_f1: float


class Days(ResponseValue):
    """Some days and their number of texts."""

    first: str = Field(examples=["2026-11-01"])
    last: str
    texts: int


SignalName = Literal["known_words", "similarity", "confidence"]


class SignalComparison(ResponseValue):
    """The texts of the last days next to those of the first days."""

    signal: SignalName
    reference: Probability = doc("Mean of the first days.")
    recent: Probability = doc("Mean of the last days.")
    distance: Probability = doc("Kolmogorov-Smirnov distance of both.")
    limit: float = doc("Distance above which the texts differ.")
    differs: bool


class TextDay(ResponseValue):
    """The texts of a day, UTC, with the means of what is counted."""

    day: str = Field(examples=["2026-11-17"])
    texts: int
    known_words: Probability | None = doc("Share of the words and word pairs of a text that the model knows.")
    similarity: Probability | None = doc("Cosine of the nearest known text, of a sample.")
    confidence: Probability | None = doc("Probability of the best answer.")


class Texts(ResponseValue):
    """Classified texts by day, and whether the last ones differ from the first ones."""

    reference: Days | None = doc("The first days; null until they have 500 texts.")
    recent: Days | None = doc("The last complete days; null if they have too few texts.")
    signals: list[SignalComparison]
    differs: bool
    days: list[TextDay] = doc("At most 30, in order.")


class Model(ResponseValue):
    """A served model."""

    name: str
    version: Version
    kind: Literal["text", "row"] = doc("Kind of its inputs.")
    columns: list[str] = doc("Its input columns.")
    several_labels: bool = doc("Whether a text may have several labels.")
    nodes: int
    labels: int
    levels: int
    is_tree: bool
    trained_rows: int
    engine: str
    bytes: int
    versions: dict[str, str]
    metrics: dict[str, ValidationFigures] = doc("Metrics of training or validation rows, by name.")
    calibration: Calibration | None
    examples: list[str] = doc("Texts to try: titles of some labels.")
    corrections: int = doc("Feedback that the running model remembers.")
    loaded: Time
    problem: str | None = doc("Why a newer version in the folder was refused, if so.")


class ModelDetails(Model):
    """A served model with its evaluation, if there is one."""

    manifest: dict[str, Any] = doc("Parts of the manifest: format, training settings, training data and files.")
    evaluation: Evaluation | None
    texts: Texts | None = doc("The texts that were classified since the version was first served.")


class Limits(ResponseValue):
    """Limits of requests."""

    body_bytes: int
    file_bytes: int
    texts: int = doc("Per request.")
    text_length: int = doc("In characters.")
    seconds: float = doc("Per request.")


class Service(ResponseValue):
    """Features and limits of the service."""

    hinet: str = doc("Version of hinet.")
    feedback: bool = doc("Whether feedback is stored.")
    review: bool = doc("Whether there is a review queue.")
    project: bool = doc("Whether there is a labelling project.")
    limits: Limits


class FailedModel(ResponseValue):
    """A model that cannot be served."""

    name: str
    problem: str = doc("Why it cannot be loaded.")


class ModelList(ResponseValue):
    """All served models; the first one given to `hinet serve` is the default."""

    models: list[Model]
    failed: list[FailedModel] = doc("Models that cannot be loaded; each is tried again when its folder changes.")
    service: Service


class Status(ResponseValue):
    """Whether the service runs, or is ready for requests."""

    status: Literal["ok", "ready"]
    models: list[str] = doc("Names of the models that are loaded.")


class FieldError(ResponseValue):
    """An invalid field of a request."""

    field: str = doc("JSON path, or name of a parameter.", examples=["texts[3]"])
    message: str


class Problem(ResponseValue):
    """An error as in RFC 9457."""

    type: str = Field(examples=["urn:hinet:problem:invalid-request"])
    title: str = Field(examples=["The request is invalid"])
    status: int = Field(examples=[422])
    detail: str = Field(examples=["top: Input should be less than or equal to 100"])
    errors: list[FieldError] = doc("Invalid fields, if any.", [])
