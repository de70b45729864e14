// A text with the words behind a step, and those that the model does not know.

import { h, signed } from "./dom.js";

const PART = /^\[.*\]$/; // a feature that is a part of a word
const LISTED = 12; // listed words with their contributions
const segmenter = new Intl.Segmenter(undefined, { granularity: "word" });

// Contributions of features to the words of a text, spread evenly over their letters.
// Positions are in code points, as in the service.
function wordPushes(text, reasons, unknown) {
  const length = Array.from(text).length;
  const push = new Float64Array(length);
  const isUnknown = new Uint8Array(length);
  for (const { push: total, places } of reasons) {
    const letters = places.reduce((sum, [start, end]) => sum + end - start, 0);
    for (const [start, end] of places) for (let at = start; at < end; at++) push[at] += total / letters;
  }
  for (const { start, end } of unknown) isUnknown.fill(1, start, end);
  let at = 0;
  return Array.from(segmenter.segment(text), ({ segment, isWordLike }) => {
    const start = at;
    at += Array.from(segment).length;
    const sum = push.subarray(start, at).reduce((total, value) => total + value, 0);
    return { segment, push: isWordLike || sum ? sum : 0, isUnknown: isUnknown[start] === 1, isSpace: !segment.trim() };
  });
}

export function marked(text, reasons, unknown) {
  const words = wordPushes(text, reasons, unknown);
  const most = words.reduce((largest, { push }) => Math.max(largest, Math.abs(push)), 1e-9);
  const parts = words.map(({ segment, push, isUnknown, isSpace }) => {
    if (isUnknown) return h("span.unknown", { title: "unknown to the model" }, segment);
    if (isSpace || Math.abs(push) < most / 50) return segment;
    const kind = push > 0 ? "for" : "against";
    return h(`mark.${kind}`, { title: signed(push), vars: { s: Math.abs(push) / most } }, segment);
  });
  const label = "Your text with the most important words";
  return h("p.words", { dir: "auto", tabindex: 0, role: "group", "aria-label": label }, parts);
}

export const legend = (hasUnknown) =>
  h(
    "p.legend",
    h("span", h("mark.for", { vars: { s: 0.7 } }, "for"), " the chosen step"),
    h("span", h("mark.against", { vars: { s: 0.7 } }, "against"), " it"),
    hasUnknown && h("span", h("span.unknown", "unknown"), " to the model"),
  );

// Contributions to the difference between the step and its rival, as bars to both sides.
export function pushes({ reasons, others, rest }) {
  const hasParts = reasons.slice(0, LISTED).some(({ feature }) => PART.test(feature));
  const unlisted = reasons.slice(LISTED).reduce((sum, { push }) => sum + push, others);
  const lines = [
    ...reasons.slice(0, LISTED).map(({ feature, push }) => [feature, push, true]),
    ["other words", unlisted, false],
    ["without any word", rest, false],
  ].filter(([, push, own]) => own || Math.abs(push) >= 0.005);
  const most = Math.max(...lines.map(([, push]) => Math.abs(push)), 1e-9);
  const list = h(
    "ul.pushes",
    lines.map(([feature, push, own]) =>
      h(
        "li",
        { class: own ? null : "muted" },
        h("span", h("bdi", feature)),
        h(
          "span.scale",
          { "aria-hidden": "true" },
          h("span", { class: push < 0 ? "against" : "for", vars: { s: Math.abs(push) / most } }),
        ),
        h("span.number", signed(push)),
      ),
    ),
  );
  return [list, hasParts && h("p.legend", "In brackets: parts of words, a space for the edge of a word.")];
}
