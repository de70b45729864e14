// The view to classify a text.

import * as api from "./api.js";
import { Branches } from "./branches.js";
import { counted, failure, fill, h, note } from "./dom.js";
import { Workbench } from "./workbench.js";

const TRACES = 5;
const SIBLINGS = 8;

export function create(panel, app) {
  const { model, service } = app;
  const branches = new Branches(app, (added) => {
    if (bench.input) ask();
    if (!added) fields.first.focus();
  });
  const bench = new Workbench(app, { branches });
  const fields = model.kind === "text" ? textField(service) : rowFields(model);
  const button = h("button.primary", { type: "submit" }, "Classify");
  const examples =
    model.kind === "text" &&
    model.examples.length > 0 &&
    h(
      "div.examples",
      h("span.muted", { id: "examples-title" }, "Try"),
      h(
        "ul",
        { "aria-labelledby": "examples-title" },
        model.examples.slice(0, 5).map((text) =>
          h(
            "li",
            h(
              "button.chip",
              {
                type: "button",
                title: text,
                onclick: () => {
                  fields.first.value = text;
                  ask();
                },
              },
              h("bdi", text),
            ),
          ),
        ),
      ),
    );
  const form = h(
    "form.card.ask",
    {
      onsubmit: (event) => {
        event.preventDefault();
        ask();
      },
      onkeydown: (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask();
      },
    },
    fields.element,
    branches.element,
    h("div.line", button, h("span.muted.hint", h("kbd", "Ctrl"), " ", h("kbd", "Enter"))),
    examples,
  );
  const place = h(
    "div.card.result",
    note("No answer yet", `Type a text and see where it lands among ${counted(model.labels, "label")}, and why.`),
  );
  let running = null;

  async function ask() {
    const input = fields.read();
    if (!input) return fields.first.focus();
    running?.abort();
    const { signal } = (running = new AbortController());
    const wait = setTimeout(() => place.classList.add("waiting"), 200);
    button.setAttribute("aria-busy", "true");
    try {
      const request = input.text != null ? { text: input.text } : { rows: [input.row] };
      const { results } = await api.classify(
        {
          model: model.name,
          ...request,
          ...branches.fields,
          top: TRACES,
          siblings: SIBLINGS,
          unknown_words: true,
        },
        signal,
      );
      if (!results[0].traces.length) fill(place, note("No answer", "The model gives no label for this text."));
      else {
        bench.show(input, results[0]);
        fill(place, bench.answer.element);
      }
    } catch (error) {
      if (error.name !== "AbortError") fill(place, failure(error, ask));
    } finally {
      clearTimeout(wait);
      if (!signal.aborted) {
        place.classList.remove("waiting");
        button.removeAttribute("aria-busy");
      }
    }
  }

  bench.main.append(form, place);
  fill(
    panel,
    h("h1.hidden", "Classify a text"),
    model.problem && h("p.banner", `A newer version of this model was refused: ${model.problem}`),
    bench.element,
  );
  if (matchMedia("(min-width: 900px)").matches && document.activeElement === document.body) fields.first.focus();
  return { key: (key) => (key === "t" ? (fields.first.focus(), true) : bench.key(key)) };
}

function textField(service) {
  const first = h("textarea", {
    id: "text",
    rows: 3,
    dir: "auto",
    maxlength: service.limits.text_length,
    placeholder: "Text to classify",
  });
  const element = h("label.field", "Text", first);
  return { element, first, read: () => (first.value.trim() ? { text: first.value } : null) };
}

// One field per column; numbers are sent as numbers.
function rowFields(model) {
  const inputs = model.columns.map((column) => [
    column,
    h("input", { type: "text", dir: "auto", autocomplete: "off" }),
  ]);
  const element = h(
    "div.columns",
    inputs.map(([column, input]) => h("label.field", h("bdi", column), input)),
  );
  const read = () => {
    const cells = inputs.map(([column, { value }]) => [
      column,
      value.trim() === "" ? null : Number.isFinite(Number(value)) ? Number(value) : value,
    ]);
    return cells.some(([, value]) => value !== null) ? { row: Object.fromEntries(cells) } : null;
  };
  return { element, first: inputs[0][1], read };
}
