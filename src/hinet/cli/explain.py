"""``hinet explain``: the words behind the label of a text, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hinet.cli.options import AsJson, EncoderFolder, ModelFolder, ThreadedRun, option, print_json
from hinet.errors import HiNetError, quoted

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from rich.text import Text

    from hinet.classifier.explanation import Explanation, Step
    from hinet.classifier.labels import TextStyle
    from hinet.taxonomy import Taxonomy

_TEXT = "The text to explain; - for standard input. For a model of several columns, a row as a JSON object."


def explain(
    model: ModelFolder,
    text: Annotated[str, typer.Argument(help=_TEXT, show_default=False)],
    run: ThreadedRun,
    label: Annotated[
        str | None, option("Label to explain, written as in the training rows (default: the predicted one).")
    ] = None,
    most: Annotated[int, option("Features to list per step.", min=1)] = 5,
    as_json: AsJson = False,
    encoder: EncoderFolder = None,
) -> None:
    """Explain every step of a prediction: the words for the chosen node against its strongest rival.

    Example: hinet explain model "dark rye bread"

    The probability of a step is relative to its siblings; steps without alternatives are left out. A step may lose to
    its rival and still be on the most probable trace. Unknown words are listed first; parts of them may still be known
    features.
    """
    from hinet.classifier.saved_model import load_model
    from hinet.files.streams import decoding_error, read_text

    loaded = load_model(model, run.threads, encoder=encoder)
    text = read_text("-").strip() if text == "-" else text
    if decoding_error(text, "utf-8"):
        raise HiNetError(f"{quoted(text)} is not valid text; type it in UTF-8")
    if not text.strip():
        raise HiNetError("the text is empty; give the words to explain")
    explanation = loaded.explain(text, label, most=most)
    if as_json:
        print_json(_as_dict(explanation, loaded.style))
        return
    from rich.console import Console

    Console(highlight=False).print(_explanation_text(text, explanation, loaded.fitted.codec.taxonomy))


def _as_dict(explanation: Explanation, style: TextStyle) -> dict[str, Any]:
    from hinet.classifier.prediction_table import label_text

    steps = [{**vars(step), "reasons": [reason._asdict() for reason in step.reasons]} for step in explanation.steps]
    trace = explanation.trace._asdict() | {"label": label_text(explanation.trace.label, style)}
    nearest = [each.to_dict() for each in explanation.nearest]
    return {"trace": trace, "steps": steps, "unknown_words": list(explanation.unknown_words), "nearest": nearest}


def _explanation_text(text: str, explanation: Explanation, taxonomy: Taxonomy) -> Text:
    from rich.text import Text

    from hinet.taxonomy import PATH_SEP, last_name

    lines = Text()
    lines.append(f"{text}\n", style="bold")
    steps = PATH_SEP.join(map(last_name, explanation.trace.steps))
    lines.append(f"{steps}  {explanation.trace.probability:.3f}\n\n", style="cyan")
    if explanation.unknown_words:
        lines.append(f"unknown words: {', '.join(explanation.unknown_words)}\n\n", style="yellow")
    if explanation.nearest:
        lines.append("\n".join(explanation.nearest_lines()) + "\n\n", style="dim")
    if not any(step.reasons for step in explanation.steps):
        lines.append("the text has no known feature: the trace is the most frequent in training\n\n", style="yellow")
    for step in explanation.steps:
        _draw_step(lines, step, taxonomy)
    return lines


def _draw_step(lines: Any, step: Step, taxonomy: Taxonomy) -> None:
    lines.append(f"{step.probability:.2f}  ", style="green" if step.probability > 0.8 else "yellow")
    lines.append(f"{_with_title(step.chosen, taxonomy)}", style="bold")
    lines.append(f"  against {_with_title(step.rival, taxonomy)} by {step.difference:+.2f}\n")
    for reason in step.reasons:
        lines.append(f"    {reason.push:+7.2f}  ", style="green" if reason.push > 0 else "red")
        lines.append(f"{reason.feature}\n")
    lines.append(f"    {step.others:+7.2f}  other features\n    {step.rest:+7.2f}  without any feature\n", style="dim")


def _with_title(node: str, taxonomy: Taxonomy) -> str:
    """Return a node with its title, if it has one."""
    from hinet.taxonomy import last_name

    if node not in taxonomy:
        return node
    title = taxonomy.titles[taxonomy.position(node)]
    return last_name(node) if node.endswith(title) else f"{node} {title}"
