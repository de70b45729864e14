"""Schemas of requests and responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_NAME = 10_000  # characters of a node id or label
MAX_TRACES = 100  # per text
MAX_SIBLINGS = 1_000  # per step
MAX_WORDS = 1_000  # per explained step
MAX_CORRECT_NODES = 100  # per text
MAX_COLUMNS = 50  # named columns
MAX_SEARCH = 200  # characters
PAGE = 50  # default number of nodes or rows per page
MAX_PAGE = 500
MAX_ID = 2**53  # larger integers are not exact in JavaScript
MAX_REVIEW_PAGE = 100  # rows per page of the review queue

Probability = Annotated[float, Field(ge=0, le=1)]
MinConfidence = Annotated[
    Annotated[float, Field(gt=0, le=1)] | Literal["calibrated"] | None,
    Field(
        description="Predict the deepest node of at least this probability, or none; for a multilabel model, all "
        "labels of at least this probability. 'calibrated' is the threshold for the risk that was given in training."
    ),
]
NodeId = Annotated[str, Field(max_length=MAX_NAME, examples=["S52.5"])]
ModelName = Annotated[str | None, Field(description="Name of a served model (default: the first one).")]
Version = Annotated[str, Field(description="Digest of the model's manifest.", examples=["9b1f0a3c5d7e8f01"])]
Row = Annotated[
    dict[str, Any],
    Field(
        description="A row by column, for a model of several columns.", examples=[{"title": "rye bread", "price": 2}]
    ),
]
Time = Annotated[str, Field(description="UTC, ISO 8601.", examples=["2026-11-17T09:30:00.123Z"])]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Offset = Annotated[int, Field(ge=0, le=1 << 31, description="Index of the first item, from 0.")]


class RequestBody(BaseModel):
    """Body of a request: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Query(BaseModel):
    """Parameters in the URL: unknown ones are refused."""

    model_config = ConfigDict(extra="forbid")

    model: ModelName = None


class PageQuery(Query):
    """Parameters of a page of results."""

    offset: Offset = 0
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE, description="Maximum number of items.")] = PAGE


class ResponseValue(BaseModel):
    """A value in a response."""

    model_config = ConfigDict(extra="forbid")


class ModelResponse(ResponseValue):
    """A response of a model."""

    model: Annotated[str, Field(examples=["icd10cm"])]
    version: Version


class Page(ModelResponse):
    """A page of results."""

    total: Annotated[int, Field(description="Number of items on all pages.")]
    offset: int
    limit: int


# Classify


class ClassifyRequest(RequestBody):
    """Texts or rows to classify: exactly one of `text`, `texts` and `rows`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"text": "broken wrist"},
                {"texts": ["broken wrist", "sore throat"], "top": 3, "siblings": 10, "unknown_words": True},
                {"text": "broken wrist", "min_confidence": 0.9},
            ]
        }
    )

    model: ModelName = None
    text: Annotated[str | None, Field(description="One text.")] = None
    texts: Annotated[list[str] | None, Field(min_length=1, description="Several texts.")] = None
    rows: Annotated[list[Row] | None, Field(min_length=1, description="Rows, for a model of several columns.")] = None
    top: Annotated[int, Field(ge=1, le=MAX_TRACES, description="Number of traces per text, best first.")] = 1
    min_confidence: MinConfidence = None
    siblings: Annotated[
        int,
        Field(
            ge=0,
            le=MAX_SIBLINGS,
            description="Maximum number of siblings, most probable first, at each step of the best trace, and of "
            "children below its end.",
        ),
    ] = 0
    unknown_words: Annotated[bool, Field(description="List the words that the model does not know.")] = False


class Label(ResponseValue):
    """A predicted node."""

    label: Annotated[str, Field(description="As labels were written in training.", examples=["S52.5"])]
    node: NodeId
    title: Annotated[str, Field(examples=["Fracture of lower end of radius"])]
    probability: Probability


class Sibling(ResponseValue):
    """Another option at a step: a node, or stopping at the node above."""

    node: NodeId
    title: str
    probability: Annotated[Probability, Field(description="Probability of the path down to it.")]
    children: Annotated[int, Field(description="Number of its children.")]
    stops: Annotated[bool, Field(description="Whether the option is to stop at `node`, the node above.")]


class Siblings(ResponseValue):
    """The most probable other options at a step."""

    total: Annotated[int, Field(description="Number of other options at this step.")]
    nodes: list[Sibling]


class TraceStep(ResponseValue):
    """A step of a trace, with the probability of the path down to it, which falls from step to step."""

    node: NodeId
    title: str
    probability: Probability
    siblings: Annotated[Siblings | None, Field(description="Of the best trace, if requested.")] = None


class Trace(Label):
    """A path from the top down; its probability includes stopping at the last step."""

    steps: list[TraceStep]
    below: Annotated[Siblings | None, Field(description="Children of the last step, if siblings were requested.")] = (
        None
    )


class Word(ResponseValue):
    """A part of a text: `text[start:end]`, counted in Unicode code points."""

    word: Annotated[str, Field(examples=["wrist"])]
    start: int
    end: int


class Result(ResponseValue):
    """The answer to one text."""

    labels: Annotated[
        list[Label],
        Field(description="The predicted label; several for a multilabel model, none below `min_confidence`."),
    ]
    traces: Annotated[list[Trace], Field(description="The `top` best traces, the most probable first.")]
    unknown_words: Annotated[list[Word] | None, Field(description="Each occurrence, if requested.")] = None


class ClassifyResponse(ModelResponse):
    """The answers to texts, in their order."""

    results: list[Result]


class FileQuery(Query):
    """Options for a table."""

    format: Annotated[
        Literal["csv", "tsv", "jsonl", "parquet"] | None, Field(description="Default: by Content-Type.")
    ] = None
    text: Annotated[list[Name], Field(max_length=MAX_COLUMNS, description="Text columns.")] = []
    top: Annotated[
        Annotated[int, Field(ge=1, le=MAX_TRACES)] | None,
        Field(
            description="Number of traces per row, best first (default: 1). For a multilabel model, number of labels, "
            "most probable first (default: all above its thresholds)."
        ),
    ] = None
    min_confidence: MinConfidence = None
    levels: Annotated[bool, Field(description="Add every step of the trace with its probability.")] = False
    titles: Annotated[bool, Field(description="Add the titles of labels.")] = False
    keep: Annotated[list[Name], Field(max_length=MAX_COLUMNS, description="Columns to copy to the answer.")] = []
    keep_all: Annotated[bool, Field(description="Copy all columns to the answer.")] = False
    prefix: Annotated[str, Field(max_length=100, description="Prefix of the names of new columns.")] = ""
    escape_formulas: Annotated[
        bool, Field(description="Put ' before cells of CSV and TSV that a spreadsheet would compute.")
    ] = False


# Explain


class ExplainRequest(RequestBody):
    """A text or row whose best trace, or trace to a given node, is explained."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "broken wrist", "words": 5}]})

    model: ModelName = None
    text: Annotated[str | None, Field(description="One text.")] = None
    row: Row | None = None
    node: Annotated[NodeId | None, Field(description="Node to explain (default: the best answer).")] = None
    words: Annotated[
        int, Field(ge=1, le=MAX_WORDS, description="Maximum number of words per step, strongest first.")
    ] = 10


class Reason(ResponseValue):
    """A word, word pair, part of a word or other feature, and its contribution to the step against the rival."""

    feature: Annotated[str, Field(examples=["wrist"])]
    push: Annotated[float, Field(description="In log odds; negative if it favours the rival.")]
    places: Annotated[list[tuple[int, int]], Field(description="Start and end of every occurrence, in code points.")]


class Option(ResponseValue):
    """A node to descend to, or to stop at."""

    node: NodeId
    title: str
    stops: Annotated[bool, Field(description="Whether the option is to stop at this node.")]


class StepReasons(ResponseValue):
    """Why one option was chosen over its strongest rival, at a step where there was a choice.

    All pushes, `others` and `rest` add up to `difference`. A multilabel model decides each node independently, without
    a rival.
    """

    chosen: Option
    rival: Annotated[Option | None, Field(description="Null for a multilabel model.")]
    probability: Annotated[
        Probability,
        Field(description="Probability of the chosen option among its siblings; without a rival, on its own."),
    ]
    difference: Annotated[
        float, Field(description="Log odds of the chosen option against the rival; without a rival, its log odds.")
    ]
    reasons: list[Reason]
    others: Annotated[float, Field(description="Contribution of features that are not listed.")]
    rest: Annotated[float, Field(description="Contribution without any feature.")]


class ExplainResponse(ModelResponse):
    """The words behind every step."""

    trace: Trace
    steps: list[StepReasons]
    unknown_words: list[Word]


# Taxonomy


class NodeQuery(PageQuery):
    """A node and a page of its children."""

    node: Annotated[NodeId | None, Field(description="Id of the node (default: the top of the taxonomy).")] = None


class SearchQuery(PageQuery):
    """A search and a page of its matches."""

    q: Annotated[str, Field(max_length=MAX_SEARCH, description="Words, all of which must occur.")]


class Node(ResponseValue):
    """A node of the taxonomy."""

    node: NodeId
    title: str
    children: Annotated[int, Field(description="Number of its children.")]
    is_label: Annotated[bool, Field(description="Whether the model can predict it.")]


class NodePage(Page):
    """A node with a page of its children."""

    node: Annotated[Node | None, Field(description="Null for the top of a taxonomy without a root.")]
    ancestors: Annotated[list[Node], Field(description="From the top down, without the node itself.")]
    children: list[Node]


class Match(Node):
    """A node that matches a search."""

    matched: Annotated[Literal["id", "title", "synonym"], Field(description="Kind of the matching text.")]
    text: Annotated[str, Field(description="The matching id, title or synonym.")]
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

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"text": "broken wrist", "verdict": "accept", "nodes": ["S62.1"], "predicted": ["S62.1"]},
                {"text": "broken wrist", "verdict": "correct", "nodes": ["S52.5"], "predicted": ["S62.1"], "review": 7},
            ]
        }
    )

    model: ModelName = None
    text: Annotated[str | None, Field(description="The text.")] = None
    row: Row | None = None
    verdict: Literal["accept", "correct", "skip"]
    nodes: Annotated[
        list[NodeId], Field(max_length=MAX_CORRECT_NODES, description="The correct nodes; none with the verdict skip.")
    ] = []
    predicted: Annotated[
        list[NodeId], Field(max_length=MAX_CORRECT_NODES, description="The nodes that the model predicted.")
    ] = []
    review: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_ID,
            description="Id of the row in the review queue, instead of text or row; the row is removed.",
        ),
    ] = None


class FeedbackResponse(ResponseValue):
    """Feedback that was written to disk."""

    id: int
    model: str
    received: Time


class FeedbackQuery(PageQuery):
    """A page of feedback."""


class FeedbackItem(ResponseValue):
    """Stored feedback."""

    id: int
    received: Time
    version: Annotated[str, Field(description="Version of the model that answered.")]
    verdict: Literal["accept", "correct"]
    row: Annotated[dict[str, Any], Field(description="The training row, as `hinet feedback export` writes it.")]
    nodes: list[NodeId]
    predicted: list[NodeId]
    exported: Annotated[
        str | None, Field(description="Time of the first export, UTC, ISO 8601; null if never exported.")
    ]


class FeedbackPage(Page):
    """A page of feedback, the newest first."""

    items: list[FeedbackItem]


class ReviewQuery(Query):
    """A page of the review queue."""

    order: Annotated[
        Literal["unsure", "split"], Field(description="Least probable answer first, or least probable first step.")
    ] = "unsure"
    offset: Offset = 0
    limit: Annotated[int, Field(ge=1, le=MAX_REVIEW_PAGE, description="Maximum number of rows.")] = 20


class ReviewItem(ResponseValue):
    """A classified row to review."""

    id: int
    text: str | None
    row: dict[str, Any] | None
    received: Time
    unsure: Annotated[Probability, Field(description="1 minus the probability of the answer.")]
    split: Annotated[Probability, Field(description="1 minus the probability of the first step.")]
    result: Annotated[Result, Field(description="Answer of the current model: 3 traces, siblings, unknown words.")]


class ReviewPage(Page):
    """A page of the review queue, the most doubtful rows first."""

    items: list[ReviewItem]


# Models


class Bin(ResponseValue):
    """A point of the calibration curve: answers of similar confidence."""

    confidence: Annotated[Probability, Field(description="Mean confidence.")]
    accuracy: Annotated[Probability, Field(description="Share of correct answers.")]
    share: Annotated[Probability, Field(description="Share of all rows.")]


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


class Branch(ResponseValue):
    """A node with the number of rows whose true label is at or below it, and of wrong answers to them."""

    node: NodeId
    title: str
    parent: Annotated[NodeId | None, Field(description="A node of the same list; null at the top.")]
    depth: Annotated[int, Field(description="1 at the top.")]
    rows: int
    errors: int


class Evaluation(ResponseValue):
    """Evaluation of the model on labelled rows, by `hinet evaluate --keep`."""

    name: Annotated[str, Field(description="Name of the file of rows.", examples=["test.csv"])]
    evaluated: Time
    rows: int
    metrics: Annotated[
        dict[str, float],
        Field(examples=[{"accuracy": 0.89, "hierarchical_f1": 0.959, "calibration_error": 0.009, "brier_score": 0.08}]),
    ]
    level_accuracy: Annotated[list[Probability], Field(description="From the top level down.")]
    calibration: list[Bin]
    coverage: Annotated[list[CoveragePoint], Field(description="At most 200 points, in order of coverage.")]
    confused: Annotated[list[ConfusedPair], Field(description="At most 50 pairs, most rows first.")]
    branches: Annotated[list[Branch], Field(description="At most 500 nodes with errors, parents before children.")]


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


class Model(ResponseValue):
    """A served model."""

    name: str
    version: Version
    kind: Annotated[Literal["text", "row"], Field(description="Kind of its inputs.")]
    columns: Annotated[list[str], Field(description="Its input columns.")]
    several_labels: Annotated[bool, Field(description="Whether a text may have several labels.")]
    nodes: int
    labels: int
    levels: int
    is_tree: bool
    trained_rows: int
    engine: str
    bytes: int
    versions: dict[str, str]
    metrics: Annotated[
        dict[str, ValidationFigures], Field(description="Metrics of training or validation rows, by name.")
    ]
    calibration: Calibration | None
    examples: Annotated[list[str], Field(description="Texts to try: titles of some labels.")]
    loaded: Time
    problem: Annotated[str | None, Field(description="Why a newer version in the folder was refused, if so.")]


class ModelDetails(Model):
    """A served model with its evaluation, if there is one."""

    manifest: Annotated[
        dict[str, Any], Field(description="Parts of the manifest: format, training settings, training data and files.")
    ]
    evaluation: Evaluation | None


class Limits(ResponseValue):
    """Limits of requests."""

    body_bytes: int
    file_bytes: int
    texts: Annotated[int, Field(description="Per request.")]
    text_length: Annotated[int, Field(description="In characters.")]
    seconds: Annotated[float, Field(description="Per request.")]


class Service(ResponseValue):
    """Features and limits of the service."""

    hinet: Annotated[str, Field(description="Version of hinet.")]
    feedback: Annotated[bool, Field(description="Whether feedback is stored.")]
    review: Annotated[bool, Field(description="Whether there is a review queue.")]
    limits: Limits


class FailedModel(ResponseValue):
    """A model that cannot be served."""

    name: str
    problem: Annotated[str, Field(description="Why it cannot be loaded.")]


class ModelList(ResponseValue):
    """All served models; the first one given to `hinet serve` is the default."""

    models: list[Model]
    failed: Annotated[
        list[FailedModel],
        Field(description="Models that cannot be loaded; each is tried again when its folder changes."),
    ]
    service: Service


class Status(ResponseValue):
    """Whether the service runs, or is ready for requests."""

    status: Literal["ok", "ready"]
    models: Annotated[list[str], Field(description="Names of the models that are loaded.")]


class FieldError(ResponseValue):
    """An invalid field of a request."""

    field: Annotated[str, Field(description="JSON path, or name of a parameter.", examples=["texts[3]"])]
    message: str


class Problem(ResponseValue):
    """An error as in RFC 9457."""

    type: Annotated[str, Field(examples=["urn:hinet:problem:invalid-request"])]
    title: Annotated[str, Field(examples=["The request is invalid"])]
    status: Annotated[int, Field(examples=[422])]
    detail: Annotated[str, Field(examples=["top: Input should be less than or equal to 100"])]
    errors: Annotated[list[FieldError], Field(description="Invalid fields, if any.")] = []
