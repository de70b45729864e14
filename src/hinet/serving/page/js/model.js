// The view of a model and its evaluation.

import * as api from "./api.js";
import { count, exactPercent, failure, fill, h, name, note, percent } from "./dom.js";
import { calibration, coverage, levels } from "./plots.js";
import { sunburst } from "./sunburst.js";

const FIGURES = [
  ["accuracy", "Right labels", exactPercent],
  ["hierarchical_f1", "Hierarchical F1", exactPercent],
  ["calibration_error", "Calibration error", exactPercent],
  ["brier_score", "Brier score", (value) => value.toFixed(3)],
];

const figures = (entries) =>
  h(
    "dl.figures",
    entries.map(([label, value]) => h("div.figure", h("dt", label), h("dd", value))),
  );
const card = (title, detail, ...content) => h("section.card", h("h2", title), detail && h("p", detail), content);

export function create(panel, app) {
  fill(panel, h("p.busy", "Loading …"));
  (async function load() {
    try {
      const details = await api.model(app.model.name);
      fill(panel, h("h1.hidden", `Model ${details.name}`), h("div.model", about(details), texts(details.texts), evaluation(details)));
    } catch (error) {
      fill(panel, failure(error, load));
    }
  })();
  return {};
}

function about(model) {
  const { calibration: fitted } = model;
  return h(
    "section.card",
    h("h2", name(model.name)),
    model.problem && h("div.note.failed", h("h3", "A newer version was refused"), h("p", model.problem)),
    figures([
      ["Labels", count(model.labels)],
      ["Nodes", count(model.nodes)],
      ["Levels", count(model.levels)],
      ["Rows in training", model.trained_rows > 0 ? count(model.trained_rows) : "none"],
      ["Size", `${(model.bytes / 1e6).toFixed(1)} MB`],
    ]),
    h(
      "div.facts",
      model.trained_rows === 0 && h("span", "Trained on the titles of its taxonomy alone; it has seen no rows"),
      h("span", model.is_tree ? "A tree" : "A DAG: nodes may have several parents"),
      model.several_labels && h("span", "Several labels per text"),
      h("span", `Engine: ${model.engine}`),
      h(
        "span",
        "Columns: ",
        model.columns.flatMap((column, index) => [index > 0 && ", ", h("bdi", column)]),
      ),
      Object.entries(model.metrics).map(([rows, { accuracy, rows: number }]) =>
        h("span", `${capital(rows)}: ${exactPercent(accuracy)} of ${count(number)} right`),
      ),
      fitted &&
        h(
          "span",
          `Calibrated on ${count(fitted.rows)} rows: error ${percent(fitted.error_before)}, then ${percent(fitted.error_after)}`,
        ),
      fitted?.risk &&
        h("span", `At ${percent(fitted.risk.threshold)} confidence at most ${percent(fitted.risk.risk)} are wrong`),
      h("span", `Loaded ${new Date(model.loaded).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" })}`),
      h("span", "Version ", h("code", model.version)),
    ),
  );
}

const SIGNALS = { known_words: "Known words", similarity: "Similarity", confidence: "Confidence" };

// The classified texts by day, and whether they still look like the first ones.
function texts(found) {
  if (!found) return null;
  const { reference, recent, signals, days } = found;
  const changed = signals.filter(({ differs }) => differs);
  const told = ({ signal, reference: before, recent: now }) =>
    `${SIGNALS[signal]}: ${percent(before)} on average in the first days, ${percent(now)} now`;
  const shown = Object.keys(SIGNALS).filter((signal) => days.some((day) => day[signal] != null));
  return card(
    "Texts",
    recent
      ? `The days from ${recent.first} to ${recent.last} are compared with ${reference.first} to ${reference.last}.`
      : "There are too few texts to compare the last days with the first ones.",
    changed.length > 0 &&
      h(
        "div.note.failed",
        { role: "status" },
        h("h3", "The texts no longer look like the first ones"),
        changed.map((signal) => h("p", told(signal))),
      ),
    h(
      "div.table-box",
      { tabindex: 0, role: "region", "aria-label": "Texts by day" },
      h(
        "table",
        h(
          "thead",
          h(
            "tr",
            h("th", { scope: "col" }, "Day"),
            ["Texts", ...shown.map((signal) => SIGNALS[signal])].map((name) =>
              h("th", { scope: "col", class: "number" }, name),
            ),
          ),
        ),
        h(
          "tbody",
          days
            .toReversed()
            .map((day) =>
              h(
                "tr",
                h("td", day.day),
                h("td.number", count(day.texts)),
                shown.map((signal) => h("td.number", day[signal] == null ? "–" : percent(day[signal]))),
              ),
            ),
        ),
      ),
    ),
  );
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

function evaluation({ evaluation: found, calibration: fitted }) {
  if (!found)
    return h(
      "section.card",
      note(
        "No evaluation was kept",
        h(
          "span",
          "Evaluate the model on labelled rows with ",
          h("code", "hinet evaluate MODEL rows.csv --keep"),
          " to see its accuracy by level, calibration, coverage and errors here.",
        ),
      ),
    );
  return [
    card(
      "Evaluation",
      h("span", `${count(found.rows)} rows of `, name(found.name)),
      figures(
        FIGURES.filter(([key]) => found.metrics[key] != null).map(([key, label, format]) => [
          label,
          format(found.metrics[key]),
        ]),
      ),
    ),
    h(
      "div.plots",
      card(
        "Accuracy by level",
        "Share of correct nodes among the rows that reach the level.",
        levels(found.level_accuracy),
      ),
      card(
        "Calibration",
        "On the dashed line, confidence equals accuracy. Bars: share of rows.",
        calibration(found.calibration),
      ),
      card(
        "Coverage",
        "Share of wrong answers if only the most confident ones are given.",
        coverage(found.coverage, fitted?.risk),
      ),
    ),
    found.branches.length > 0 &&
      card(
        "Where the errors are",
        "A ring for each level, from the top. Choose a branch to look into it.",
        sunburst(found.branches, found.rows),
      ),
    found.confused.length > 0 &&
      card("Most confused", "Rows with the first label that were answered with the second.", confused(found.confused)),
  ];
}

function confused(pairs) {
  const cell = ({ node, title }) =>
    h("td", h("span.clamp", { title: title || node }, name(title || node), " ", title !== node && h("code", name(node))));
  return h(
    "div.table-box",
    { tabindex: 0, role: "region", "aria-label": "Most confused labels" },
    h(
      "table",
      h(
        "thead",
        h(
          "tr",
          h("th", { scope: "col" }, "True label"),
          h("th", { scope: "col" }, "Answer"),
          h("th", { scope: "col", class: "number" }, "Rows"),
        ),
      ),
      h(
        "tbody",
        pairs
          .slice(0, 20)
          .map(({ true: right, predicted, rows }) =>
            h("tr", cell(right), cell(predicted), h("td.number", count(rows))),
          ),
      ),
    ),
  );
}
