// The view that classifies a whole table.

import * as api from "./api.js";
import { Branches } from "./branches.js";
import { count, counted, failure, fill, h, percent, say } from "./dom.js";
import { FORMATS, formatOf, rowCounter, start } from "./tables.js";

const HEAD = 65536; // bytes read to find the columns
const PREVIEW = 8; // rows
const NAMES = { csv: "CSV", tsv: "TSV", jsonl: "JSON lines", parquet: "Parquet", xlsx: "Excel" };
const CONFIDENCES = [0.5, 0.8, 0.9, 0.95, 0.99];
const ANSWERS = /^(label|title|trace|probability|level)(_|$)/; // names of columns that the service adds

function size(bytes) {
  if (bytes < 1e6) return `${count(Math.ceil(bytes / 1e3))} kB`;
  return bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(1)} GB`;
}

export function create(panel, app) {
  const { model, service } = app;
  const branches = new Branches(app, () => {});
  const stage = h("div.stage");
  const picker = h("input.hidden", {
    type: "file",
    tabindex: -1,
    "aria-label": "Table to classify",
    accept: ".csv,.tsv,.tab,.jsonl,.ndjson,.parquet,.xlsx",
    onchange: () => picker.files[0] && choose(picker.files[0]),
  });
  const drop = h(
    "div.drop",
    {
      ondragover: (event) => {
        event.preventDefault();
        drop.classList.add("over");
      },
      ondragleave: () => drop.classList.remove("over"),
      ondrop: (event) => {
        event.preventDefault();
        drop.classList.remove("over");
        if (event.dataTransfer.files[0]) choose(event.dataTransfer.files[0]);
      },
    },
    h("h2", "Drop a table here"),
    h(
      "p.muted",
      `CSV, TSV, JSON lines, Parquet or Excel, up to ${size(service.limits.file_bytes)}. It comes back in the same order, with the answers as columns.`,
    ),
    h("button", { type: "button", onclick: () => picker.click() }, "Choose a file"),
    picker,
  );

  async function choose(file) {
    picker.value = "";
    const format = formatOf(file.name);
    if (!format)
      return fill(
        stage,
        failure(
          new api.Problem(
            "This kind of file cannot be read",
            `${file.name} is neither .csv, .tsv, .jsonl, .parquet nor .xlsx. Compressed files must be unpacked first.`,
          ),
        ),
      );
    if (file.size > service.limits.file_bytes)
      return fill(
        stage,
        failure(
          new api.Problem(
            "The file is too large",
            `It has ${size(file.size)}; the service takes ${size(service.limits.file_bytes)}. hinet predict has no limit.`,
          ),
        ),
      );
    let head = { columns: [], rows: [] };
    if (!FORMATS[format].binary) {
      try {
        head = start(await file.slice(0, HEAD).text(), format, file.size <= HEAD);
      } catch (error) {
        return fill(stage, failure(new api.Problem("The file cannot be read", `${file.name}: ${error.message}`)));
      }
      if (!head.columns.length)
        return fill(stage, failure(new api.Problem("The file is empty", `${file.name} has no rows.`)));
    }
    drawOptions(file, format, head);
  }

  function drawOptions(file, format, head) {
    const column = model.kind === "text" && columnChoice(model, head.columns);
    const several = model.several_labels;
    const top = h("input", {
      type: "number",
      name: "top",
      min: 1,
      max: 100,
      value: several ? null : 1,
      placeholder: several ? "All above the thresholds" : null,
      required: !several,
    });
    const least = h(
      "select",
      { name: "min_confidence" },
      h("option", { value: "" }, several ? "Learned thresholds" : "Always in full"),
      model.calibration?.risk &&
        h("option", { value: "calibrated" }, `Calibrated: at most ${percent(model.calibration.risk.risk)} wrong`),
      CONFIDENCES.map((value) => h("option", { value }, `At least ${percent(value)} sure`)),
    );
    const check = (name, text, checked) => {
      const box = h("input", { type: "checkbox", name, value: "true", checked });
      return h("label.check", box, text);
    };
    const levels = check("levels", "Every step with its probability", false);
    const prefix = FORMATS[format].binary || head.columns.some((name) => ANSWERS.test(name)) ? "predicted_" : "";
    const to = h(
      "select",
      { name: "to" },
      Object.entries(NAMES).map(([value, name]) => h("option", { value, selected: value === format }, name)),
    );
    const escaped = check("escape_formulas", "Safe to open in a spreadsheet", true);
    escaped.firstChild.disabled = !FORMATS[format].separator;
    const go = h("button.primary", { type: "submit" }, "Classify the table");
    const form = h(
      "form.card.options",
      {
        onsubmit: (event) => {
          event.preventDefault();
          const chosen = Object.fromEntries(new FormData(form));
          run(file, format, { model: model.name, format, ...branches.fields, ...chosen });
        },
        onchange: () => {
          least.disabled = !several && top.value > 1;
          escaped.firstChild.disabled = !FORMATS[to.value].separator;
          levels.firstChild.disabled = !least.disabled && least.value !== "";
        },
      },
      h("h2", h("bdi", file.name), " ", h("span.muted", size(file.size))),
      head.rows.length > 0 && preview(head, "First rows of the table"),
      h(
        "div.columns",
        column && h("label.field", "Column of the texts", column),
        h("label.field", several ? "Labels per row" : "Answers per row", top),
        h("label.field", "Confidence", least),
        h("label.field", "New columns start with", h("input", { type: "text", name: "prefix", value: prefix })),
        h("label.field", "Format of the answer", to),
      ),
      h(
        "div.checks",
        check("titles", "Titles", true),
        !several && levels,
        check("keep_all", "Keep the columns of the table", true),
        escaped,
      ),
      h("div", go),
    );
    fill(stage, form);
    (column && !column.value ? column : go).focus();
  }

  async function run(file, format, query) {
    const control = new AbortController();
    const { to } = query;
    const { binary, type } = FORMATS[to];
    const bar = h("progress", { "aria-label": "Progress" });
    const line = h("p.muted", "The service reads and checks the table …");
    fill(
      stage,
      h(
        "div.card.options",
        h("h2", h("bdi", file.name)),
        bar,
        line,
        h("div", h("button", { type: "button", onclick: () => control.abort() }, "Cancel")),
      ),
    );
    say("Classifying");
    try {
      const response = await api.classifyFile(file, query, FORMATS[format].type, control.signal);
      const rows = Number(response.headers.get("Hinet-Rows")) || null;
      const parts = [];
      const counted = rowCounter(to);
      let done = 0;
      if (rows && !binary) bar.max = rows;
      for (const reader = response.body.getReader(); ;) {
        const { value, done: ended } = await reader.read();
        if (ended) break;
        parts.push(value);
        if (binary)
          line.textContent = `${size(parts.reduce((sum, part) => sum + part.length, 0))} received`;
        else {
          done = counted(value);
          if (rows) bar.value = Math.min(done, rows);
          line.textContent = rows ? `${count(Math.min(done, rows))} of ${count(rows)} rows` : `${count(done)} rows`;
        }
      }
      const savedAs = `classified_${to === format ? file.name : file.name.replace(/\.[^.]*$/, `.${to}`)}`;
      await drawDone(file, to, new Blob(parts, { type }), rows ?? done, savedAs);
    } catch (error) {
      if (error.name === "AbortError") fill(stage, h("p.muted", "Cancelled. Nothing was kept."));
      else
        fill(
          stage,
          failure(
            error instanceof api.Problem
              ? Object.assign(error, error.status === 422 && { title: "The table cannot be classified" })
              : new api.Problem("The answer is incomplete", "The service stopped before the table was done."),
            () => choose(file),
            "Back to the options",
          ),
        );
    }
  }

  async function drawDone(file, format, blob, rows, savedAs) {
    const head = FORMATS[format].binary
      ? { rows: [] }
      : start(await blob.slice(0, HEAD).text(), format, blob.size <= HEAD);
    const link = h(
      "a.button.primary",
      { href: URL.createObjectURL(blob), download: savedAs },
      "Download ",
      h("bdi", savedAs),
    );
    fill(
      stage,
      h(
        "div.card.options",
        h("h2", `${counted(rows, "row")} classified`),
        head.rows.length > 0 && preview(head, "First rows of the answer"),
        h(
          "div.actions",
          link,
          h("button", { type: "button", onclick: () => choose(file) }, "Other options"),
          h("span.muted", size(blob.size)),
        ),
      ),
    );
    link.focus();
    say(`${counted(rows, "row")} classified`);
  }

  fill(panel, h("h1.hidden", "Classify a table"), h("div.file", drop, branches.element, stage));
  return { shown: () => branches.draw() };
}

function columnChoice(model, columns) {
  if (!columns.length)
    return h("input", { type: "text", name: "text", placeholder: model.columns[0] ?? "", dir: "auto" });
  const ours = model.columns.find((column) => columns.includes(column));
  return h(
    "select",
    { name: "text", required: true },
    !ours && columns.length > 1 && h("option", { value: "" }, "Choose …"),
    columns.map((name) => h("option", { value: name, selected: name === ours }, name)),
  );
}

function preview({ columns, rows }, label) {
  const cell = (value) => h("td", { dir: "auto" }, typeof value === "object" ? JSON.stringify(value) : String(value));
  return h(
    "div.table-box",
    { tabindex: 0, role: "region", "aria-label": label },
    h(
      "table",
      h(
        "thead",
        h(
          "tr",
          columns.map((column) => h("th", { scope: "col" }, h("bdi", column))),
        ),
      ),
      h(
        "tbody",
        rows.slice(0, PREVIEW).map((row) =>
          h(
            "tr",
            columns.map((_, index) => cell(row[index] ?? "")),
          ),
        ),
      ),
    ),
  );
}
