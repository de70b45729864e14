"""What requests and responses of the service hold."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

LONGEST_NAME = 10_000  # characters of a node id, a label or a search
MOST_TRACES = 100  # that one text can be answered with
MOST_SIBLINGS = 1_000  # of one step
MOST_WORDS = 1_000  # that explain one step
MOST_RIGHT_NODES = 100  # of one text
MOST_COLUMNS = 50  # that can be named
LONGEST_SEARCH = 200  # characters
PAGE = 50  # nodes or rows of a page, unless told otherwise
LARGEST_PAGE = 500
MAX_ID = 2**53  # larger integers are not exact in JavaScript
LARGEST_REVIEW = 100  # rows of a page of the review queue

Probability = Annotated[float, Field(ge=0, le=1)]
NodeId = Annotated[str, Field(max_length=LONGEST_NAME, examples=["S52.5"])]
ModelName = Annotated[str | None, Field(description="Name of a served model; the first one if it is left out.")]
Row = Annotated[
    dict[str, Any],
    Field(
        description="A row by column, for a model of several columns.", examples=[{"title": "rye bread", "price": 2}]
    ),
]


Name = Annotated[str, Field(min_length=1, max_length=200)]
Offset = Annotated[int, Field(ge=0, le=1 << 31, description="Number of the first one to give, from 0.")]
Limit = Annotated[int, Field(ge=1, le=LARGEST_PAGE, description="Number of those to give, at most.")]


class Asked(BaseModel):
    """A body of a request: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Answered(BaseModel):
    """A body of a response."""

    model_config = ConfigDict(extra="forbid")


# Classify


class ClassifyRequest(Asked):
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
    top: Annotated[int, Field(ge=1, le=MOST_TRACES, description="Number of traces per text, best first.")] = 1
    min_confidence: Annotated[
        Annotated[float, Field(gt=0, le=1)] | Literal["calibrated"] | None,
        Field(
            description="Answer with the deepest node of at least this probability, or with none; a model of several "
            "labels with all labels of at least this probability. 'calibrated' is the threshold that was found in "
            "training for a risk."
        ),
    ] = None
    siblings: Annotated[
        int,
        Field(
            ge=0,
            le=MOST_SIBLINGS,
            description="Number of siblings, most probable first, to give at each step of the best trace, and of "
            "children below its end.",
        ),
    ] = 0
    unknown_words: Annotated[bool, Field(description="Whether to list the words that the model does not know.")] = False


class Label(Answered):
    """A node that a text is classified as."""

    label: Annotated[str, Field(description="As labels were written in training.", examples=["S52.5"])]
    node: NodeId
    title: Annotated[str, Field(examples=["Fracture of lower end of radius"])]
    probability: Probability


class Sibling(Answered):
    """Another option at a step: a node, or to stop at the node above."""

    node: NodeId
    title: str
    probability: Annotated[Probability, Field(description="Of the path down to it, as that of a step.")]
    children: Annotated[int, Field(description="Number of its children.")]
    stops: Annotated[bool, Field(description="Whether this option is to stop at the node above, which `node` is then.")]


class Siblings(Answered):
    """The most probable other options at a step."""

    total: Annotated[int, Field(description="Number of other options at this step.")]
    nodes: list[Sibling]


class TraceStep(Answered):
    """A node on the way down, with the probability of the path down to it; these fall from step to step."""

    node: NodeId
    title: str
    probability: Probability
    siblings: Annotated[Siblings | None, Field(description="If asked for, in the best trace.")] = None


class Trace(Label):
    """A path from the top down; its probability is that of also stopping at its last step."""

    steps: list[TraceStep]
    below: Annotated[
        Siblings | None, Field(description="The children of the last step, where siblings were asked for.")
    ] = None


class Word(Answered):
    """A part of a text: `text[start:end]`, counted in Unicode code points."""

    word: Annotated[str, Field(examples=["wrist"])]
    start: int
    end: int


class Result(Answered):
    """The answer to one text."""

    labels: Annotated[
        list[Label],
        Field(description="The answer: one label, several if the model gives several, none if it is not sure enough."),
    ]
    traces: Annotated[list[Trace], Field(description="The `top` best traces, the most probable first.")]
    unknown_words: Annotated[list[Word] | None, Field(description="If asked for, each occurrence.")] = None


class ClassifyResponse(Answered):
    """The answers to texts, in their order."""

    model: Annotated[str, Field(examples=["icd10cm"])]
    version: Annotated[str, Field(description="Digest of the model's manifest.", examples=["9b1f0a3c5d7e8f01"])]
    results: list[Result]


class Query(BaseModel):
    """Parameters in the URL: unknown ones are refused."""

    model_config = ConfigDict(extra="forbid")

    model: ModelName = None


class FileQuery(Query):
    """What is asked of a table."""

    format: Annotated[
        Literal["csv", "tsv", "jsonl", "parquet"] | None, Field(description="By default that of Content-Type.")
    ] = None
    text: Annotated[list[Name], Field(max_length=MOST_COLUMNS, description="Columns of the text.")] = []
    top: Annotated[
        Annotated[int, Field(ge=1, le=MOST_TRACES)] | None,
        Field(
            description="Number of traces per row, best first; by default 1. A model of several labels answers with "
            "its `top` most probable labels; by default with all above its thresholds."
        ),
    ] = None
    min_confidence: Annotated[
        Annotated[float, Field(gt=0, le=1)] | Literal["calibrated"] | None,
        Field(
            description="Answer with the deepest node of at least this probability, or with none; a model of several "
            "labels with all labels of at least this probability."
        ),
    ] = None
    levels: Annotated[bool, Field(description="Add every step of the trace with its probability.")] = False
    titles: Annotated[bool, Field(description="Add the titles of labels.")] = False
    keep: Annotated[list[Name], Field(max_length=MOST_COLUMNS, description="Columns to copy to the answer.")] = []
    keep_all: Annotated[bool, Field(description="Copy all columns to the answer.")] = False
    prefix: Annotated[str, Field(max_length=100, description="Put before the names of new columns.")] = ""
    escape_formulas: Annotated[
        bool, Field(description="Put ' before cells of CSV and TSV that a spreadsheet would compute.")
    ] = False


# Explain


class ExplainRequest(Asked):
    """A text or row to explain the best trace of, or that of a label."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "broken wrist", "words": 5}]})

    model: ModelName = None
    text: Annotated[str | None, Field(description="One text.")] = None
    row: Row | None = None
    node: Annotated[NodeId | None, Field(description="Node to explain; the best answer if it is left out.")] = None
    words: Annotated[int, Field(ge=1, le=MOST_WORDS, description="Number of words, strongest first, per step.")] = 10


class Reason(Answered):
    """A word, pair of words, part of a word or other feature, and what it adds for the step against its rival."""

    feature: Annotated[str, Field(examples=["wrist"])]
    push: Annotated[float, Field(description="In log odds; negative if it speaks for the rival.")]
    places: Annotated[
        list[tuple[int, int]], Field(description="Start and end, in code points of the text, of every occurrence.")
    ]


class Option(Answered):
    """A node to go down to, or to stop at."""

    node: NodeId
    title: str
    stops: Annotated[bool, Field(description="Whether the option is to stop at this node.")]


class StepReasons(Answered):
    """Why one option was chosen over its strongest rival, at a step where there was a choice.

    All pushes, `others` and `rest` add up to `difference`. A model of several labels decides on each node by itself:
    there is no rival.
    """

    chosen: Option
    rival: Annotated[Option | None, Field(description="Null if the model gives several labels.")]
    probability: Annotated[
        Probability, Field(description="Of the chosen option among its siblings; without a rival, by itself.")
    ]
    difference: Annotated[
        float, Field(description="Log odds of the chosen option against the rival; without a rival, its log odds.")
    ]
    reasons: list[Reason]
    others: Annotated[float, Field(description="What features that are not listed add.")]
    rest: Annotated[float, Field(description="What is there without any feature.")]


class ExplainResponse(Answered):
    """The words behind every step."""

    model: str
    version: str
    trace: Trace
    steps: list[StepReasons]
    unknown_words: list[Word]


# Taxonomy


class NodeQuery(Query):
    """Which node to show, with which of its children."""

    node: Annotated[NodeId | None, Field(description="The top of the taxonomy if it is left out.")] = None
    offset: Offset = 0
    limit: Limit = PAGE


class SearchQuery(Query):
    """What to search, and which of the nodes found to give."""

    q: Annotated[str, Field(max_length=LONGEST_SEARCH, description="Words, all of which must occur.")]
    offset: Offset = 0
    limit: Limit = PAGE


class Node(Answered):
    """A node of the taxonomy."""

    node: NodeId
    title: str
    children: Annotated[int, Field(description="Number of its children.")]
    is_label: Annotated[bool, Field(description="Whether the model can answer with it.")]


class NodePage(Answered):
    """A node with a page of its children; without a node, the top of the taxonomy."""

    model: str
    version: str
    node: Annotated[Node | None, Field(description="Null above the top nodes, if nothing stands there.")]
    ancestors: Annotated[list[Node], Field(description="From the top down; the node itself is not among them.")]
    children: list[Node]
    total: Annotated[int, Field(description="Number of all children.")]
    offset: int
    limit: int


class Match(Node):
    """A node that a search found."""

    matched: Annotated[Literal["id", "title", "synonym"], Field(description="What the query was found in.")]
    text: Annotated[str, Field(description="The id, title or synonym that it was found in.")]
    ancestors: list[Node]


class MatchPage(Answered):
    """A page of what a search found: ids, then titles, then synonyms; of each, what starts with the query first."""

    model: str
    version: str
    query: str
    matches: list[Match]
    total: int
    offset: int
    limit: int


# Feedback and review


class FeedbackRequest(Asked):
    """A person's verdict on a text: its right label, whether the model had it (accept) or not (correct).

    `skip` only takes a row off the review queue.
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
        list[NodeId], Field(max_length=MOST_RIGHT_NODES, description="The right nodes; none with the verdict skip.")
    ] = []
    predicted: Annotated[
        list[NodeId], Field(max_length=MOST_RIGHT_NODES, description="The nodes that the model had answered.")
    ] = []
    review: Annotated[
        int | None,
        Field(ge=1, le=MAX_ID, description="Id in the review queue, whose row is done; it may stand for text or row."),
    ] = None


class FeedbackResponse(Answered):
    """Feedback that is kept on disk."""

    id: int
    model: str
    received: Annotated[str, Field(description="UTC, ISO 8601.", examples=["2026-11-17T09:30:00.123Z"])]


class FeedbackQuery(Query):
    """Which feedback to give."""

    offset: Offset = 0
    limit: Limit = PAGE


class FeedbackItem(Answered):
    """Feedback as it is kept."""

    id: int
    received: Annotated[str, Field(description="UTC, ISO 8601.")]
    version: Annotated[str, Field(description="Version of the model that had answered.")]
    verdict: Literal["accept", "correct"]
    row: Annotated[dict[str, Any], Field(description="The row to train on, as `hinet feedback export` writes it.")]
    nodes: list[NodeId]
    predicted: list[NodeId]
    exported: Annotated[str | None, Field(description="Time of the first export, UTC, ISO 8601; null if none was.")]


class FeedbackPage(Answered):
    """A page of feedback, the newest first."""

    model: str
    version: str
    items: list[FeedbackItem]
    total: int
    offset: int
    limit: int


class ReviewQuery(Query):
    """Which rows of the queue to give."""

    order: Annotated[
        Literal["unsure", "split"], Field(description="Least probable answer first, or least probable first step.")
    ] = "unsure"
    offset: Offset = 0
    limit: Annotated[int, Field(ge=1, le=LARGEST_REVIEW, description="Number of rows to give, at most.")] = 20


class ReviewItem(Answered):
    """A row that was classified and deserves a look."""

    id: int
    text: str | None
    row: dict[str, Any] | None
    received: str
    unsure: Annotated[Probability, Field(description="1 less the probability of the answer.")]
    split: Annotated[Probability, Field(description="1 less the probability of the first step: between branches.")]
    result: Annotated[Result, Field(description="What the present model answers: 3 traces, siblings, unknown words.")]


class ReviewPage(Answered):
    """A page of the review queue, the rows most worth a look first."""

    model: str
    version: str
    items: list[ReviewItem]
    total: int
    offset: int
    limit: int


# Models


class Bin(Answered):
    """Answers of about one confidence: a point of the calibration curve."""

    confidence: Annotated[Probability, Field(description="Mean confidence.")]
    accuracy: Annotated[Probability, Field(description="Share of right answers.")]
    share: Annotated[Probability, Field(description="Share of all rows.")]


class CoveragePoint(Answered):
    """If only the answers of at least a confidence count: how many they are, and how many of them are wrong."""

    threshold: Probability
    coverage: Probability
    risk: Probability


class ConfusedPair(Answered):
    """A wrong answer that is common."""

    true: Option
    predicted: Option
    rows: int


class Branch(Answered):
    """A node with the rows whose true label is at or below it, and how many of them were answered wrongly."""

    node: NodeId
    title: str
    parent: Annotated[NodeId | None, Field(description="A node of the same list; null at the top.")]
    depth: Annotated[int, Field(description="1 at the top.")]
    rows: int
    errors: int


class Evaluation(Answered):
    """How the model did on labelled rows, by `hinet evaluate --keep`."""

    name: Annotated[str, Field(description="Of the file of rows.", examples=["test.csv"])]
    evaluated: Annotated[str, Field(description="UTC, ISO 8601.")]
    rows: int
    metrics: Annotated[
        dict[str, float],
        Field(examples=[{"accuracy": 0.89, "hierarchical_f1": 0.959, "calibration_error": 0.009, "brier_score": 0.08}]),
    ]
    level_accuracy: Annotated[list[Probability], Field(description="From the top level down.")]
    calibration: list[Bin]
    coverage: Annotated[list[CoveragePoint], Field(description="At most 200 points, coverage rising.")]
    confused: Annotated[list[ConfusedPair], Field(description="At most 50 pairs, most rows first.")]
    branches: Annotated[list[Branch], Field(description="At most 500 nodes with errors, parents before children.")]


class RiskThreshold(Answered):
    """The threshold of confidence at which at most a share of the answers is wrong, as found in training."""

    risk: float
    threshold: float


class Calibration(Answered):
    """What calibration in training found."""

    rows: int
    temperature: float
    error_before: float
    error_after: float
    risk: RiskThreshold | None


class ValidationFigures(Answered):
    """How the model did on the rows of training or validation."""

    rows: int
    accuracy: float
    hierarchical_f1: float


class Model(Answered):
    """A served model."""

    name: str
    version: Annotated[str, Field(description="Digest of the manifest; it changes when the model does.")]
    kind: Annotated[Literal["text", "row"], Field(description="What it classifies.")]
    columns: Annotated[list[str], Field(description="The columns of its rows; of a model of texts, that of the text.")]
    several_labels: Annotated[bool, Field(description="Whether a text may have several labels.")]
    nodes: int
    labels: int
    levels: int
    is_tree: bool
    trained_rows: int
    engine: str
    bytes: int
    versions: dict[str, str]
    metrics: Annotated[dict[str, ValidationFigures], Field(description="Of rows of training or validation, by name.")]
    calibration: Calibration | None
    examples: Annotated[list[str], Field(description="Texts to try: titles of some labels.")]
    loaded: Annotated[str, Field(description="UTC, ISO 8601.")]
    problem: Annotated[
        str | None, Field(description="Why a newer version in the folder was refused; null if none was.")
    ]


class ModelDetails(Model):
    """A served model with its evaluation, if one was kept."""

    manifest: Annotated[
        dict[str, Any], Field(description="Of the manifest: format, settings of training, training data and files.")
    ]
    evaluation: Evaluation | None


class Limits(Answered):
    """What the service refuses to exceed."""

    body_bytes: int
    file_bytes: int
    texts: Annotated[int, Field(description="Per request.")]
    text_length: Annotated[int, Field(description="In characters.")]
    seconds: Annotated[float, Field(description="Per request.")]


class Service(Answered):
    """What the service was started with."""

    hinet: Annotated[str, Field(description="Version of hinet.")]
    feedback: Annotated[bool, Field(description="Whether feedback is kept.")]
    review: Annotated[bool, Field(description="Whether there is a review queue.")]
    limits: Limits


class FailedModel(Answered):
    """A model that the service was started with, and that cannot be served."""

    name: str
    problem: Annotated[str, Field(description="Why it cannot be loaded.")]


class ModelList(Answered):
    """All served models; a request that names none asks the first that the service was started with."""

    models: list[Model]
    failed: Annotated[
        list[FailedModel],
        Field(description="Models that cannot be loaded; each is tried again when its folder changes."),
    ]
    service: Service


class Status(Answered):
    """Whether the service runs, or is ready for requests."""

    status: Literal["ok", "ready"]
    models: Annotated[list[str], Field(description="Names of the models that are loaded.")]


class FieldError(Answered):
    """A field of a request that is wrong."""

    field: Annotated[str, Field(description="JSON path, or name of a parameter.", examples=["texts[3]"])]
    message: str


class Problem(Answered):
    """An error, after RFC 9457."""

    type: Annotated[str, Field(examples=["urn:hinet:problem:invalid-request"])]
    title: Annotated[str, Field(examples=["The request is invalid"])]
    status: Annotated[int, Field(examples=[422])]
    detail: Annotated[str, Field(examples=["top: Input should be less than or equal to 100"])]
    errors: Annotated[list[FieldError], Field(description="The fields that are wrong, if any.")] = []
