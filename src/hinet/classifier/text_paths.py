"""Labels that are paths as text, such as ``A > B``: how they are cut, and how nodes are written as they were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hinet.classifier.label_rows import missing_label
from hinet.errors import LabelError
from hinet.taxonomy import PATH_MARK, PATH_SEP, as_id, has_paths, path_id, split_path
from hinet.taxonomy.path_text import find_separator, path_error

AUTO = "auto"  # the rule of hinet.taxonomy.path_text
PathSep = Literal["auto"] | str | None


@dataclass(frozen=True)
class TextStyle:
    """Where labels are cut into steps, and what stands between steps when they are written."""

    mark: str
    between: str = PATH_SEP
    spelled: Mapping[tuple[str, ...], str] = field(default_factory=dict)  # by steps, where we would write otherwise

    def cut(self, row: int, label: Any) -> tuple[str, ...]:
        """Return the steps of a label; the error names the row."""
        text = as_id(label)
        if text.strip() == "":
            raise missing_label(row)
        if reason := path_error(text, self.mark):
            raise LabelError(f"row {row}: {reason}, or set `path_sep=None` if labels are not paths")
        return split_path(text, self.mark)

    def written(self, steps: Sequence[str]) -> str:
        """Return a path as the user wrote it or would have written it."""
        steps = tuple(map(str, steps))
        return self.spelled.get(steps) or self._usual(steps)

    def _usual(self, steps: Sequence[str]) -> str:
        r"""Return a path as it can be cut: with a blank after ``a\`` and before ``>``, as ``\>`` belongs to a name."""
        if self.between[:1].isspace():
            return path_id(steps, self.between)
        return path_id([*(f"{step} " if step.endswith("\\") else step for step in steps[:-1]), steps[-1]], self.between)

    def with_labels(self, labels: Iterable[str]) -> TextStyle:
        """Return the style that also knows how these labels are written; of several ways the first counts."""
        first: dict[tuple[str, ...], str] = {}
        for text in labels:
            first.setdefault(split_path(text, self.mark), text)
        spelled = {steps: text for steps, text in first.items() if self._usual(steps) != text}
        return replace(self, spelled={**spelled, **self.spelled})


def text_style(labels: Sequence[Any], path_sep: PathSep, *, has_taxonomy: bool) -> TextStyle | None:
    """Return how labels are paths as text, or None if they are not; ``given`` says that there is a taxonomy."""
    texts = [label for label in labels if isinstance(label, str)]
    if path_sep is None or not texts or (path_sep == AUTO and (has_taxonomy or not has_paths(texts))):
        return None
    mark = PATH_MARK if path_sep == AUTO else path_sep
    return TextStyle(mark, find_separator(texts, mark)).with_labels(texts)
