// The view to label the rows of a project, by keyboard or by hand.

import * as api from "./api.js";
import { crumbs } from "./answer.js";
import { counted, failure, fill, h, name, note, percent, say, share } from "./dom.js";
import { Labelling } from "./labelling.js";
import { Picker } from "./picker.js";
import { Progress } from "./progress.js";
import { keep, stored } from "./storage.js";

const ANNOTATOR = "hinet-annotator";
const REASONS = {
  uncertain: "The model is unsure",
  different: "Unlike anything the model knows",
  branch: "Few labels in this branch",
  random: "Drawn at random, to measure accuracy",
  second: "Somebody has labelled it: a second opinion",
  settle: "A disagreement to settle",
  typed: "Added by hand",
};
const titleOf = ({ title, node }) => title || node;
const short = (text) => (text.length > 80 ? `${text.slice(0, 79)}…` : text);
const quoted = (text) => ["“", h("bdi", short(text)), "”"];

export function create(panel, app) {
  let view = null;
  const title = h("h1.hidden", "Label");

  async function load() {
    fill(panel, title, h("p.busy", "Loading the project …"));
    try {
      const project = await api.project();
      const annotator = stored(ANNOTATOR);
      const start = (given) => {
        view = new LabelView(app, project, given, () => askName(project, view.annotator, rename));
        fill(panel, title, view.element);
        view.start();
      };
      const rename = (given) => {
        view.rename(given);
        fill(panel, title, view.element);
      };
      if (annotator) start(annotator);
      else askName(project, "", start);
    } catch (error) {
      fill(panel, title, failure(error, load));
    }
  }

  function askName(project, before, use) {
    const field = h("input", {
      type: "text",
      maxlength: 100,
      required: true,
      pattern: ".*\\S.*",
      autocomplete: "name",
      value: before,
      list: "annotators",
    });
    const form = h(
      "form.card.who",
      {
        onsubmit: (event) => {
          event.preventDefault();
          keep(ANNOTATOR, field.value.trim());
          use(field.value.trim());
        },
      },
      h("h2", "Who labels?"),
      h("p.muted", "Your name is kept with every label that you give, and in this browser. There are no accounts."),
      h("label.field", "Name", field),
      h(
        "datalist",
        { id: "annotators" },
        project.annotators.map((person) => h("option", { value: person.name })),
      ),
      h("div.actions", h("button.primary", { type: "submit" }, before ? "Use this name" : "Start labelling")),
    );
    fill(panel, title, form);
    field.focus();
  }

  load();
  return {
    shown: () => view?.shown(),
    key: (key, event) => (view?.element.isConnected ? view.key(key, event) : false),
  };
}

class LabelView {
  constructor(app, project, annotator, rename) {
    this.several = project.several;
    this.chosen = []; // nodes of the answer, in projects of several labels
    this.labelling = new Labelling({
      name: project.name,
      annotator,
      changed: () => this.draw(),
      saved: () => this.progress.loadSoon(),
    });
    const model = app.models.find((each) => each.name === project.model.name) ?? app.model;
    this.picker = new Picker(
      { ...app, model },
      (item) => this.picked(item),
      (match) => this.found(match),
    );
    this.progress = new Progress(project, annotator, {
      retrained: () => this.labelling.outdate(),
      settle: (id, nodes) => this.labelling.settle(id, nodes),
      open: (ids, fields) => this.open(ids, fields),
      rename,
    });
    this.element = this.build();
  }

  build() {
    const button = (label, key, action, kind = "button") =>
      h(kind, { type: "button", onclick: action }, label, " ", h("kbd", { "aria-hidden": "true" }, key));
    this.reason = h("p.eyebrow");
    this.text = h("div.label-text", { dir: "auto", tabindex: 0, role: "group", "aria-label": "Text to label" });
    this.best = h("ol.suggestions", { "aria-label": "Best answers" });
    this.answer = h("ul.chips", { "aria-label": "Chosen labels", hidden: true });
    this.confirm = button("Confirm", "Enter", () => this.give(), "button.primary");
    this.skipButton = button("Skip", "s", () => this.skip());
    this.noteButton = button("Note", "n", () => this.openNote());
    this.undoButton = button("Undo", "u", () => this.undo());
    this.noteField = h("input", {
      type: "text",
      maxlength: 2000,
      dir: "auto",
      onkeydown: (event) => {
        if (!["Enter", "Escape"].includes(event.key)) return;
        event.preventDefault();
        this.row.focus({ preventScroll: true });
      },
    });
    this.noteLine = h("label.field", { hidden: true }, "Note, kept with the label", this.noteField);
    this.body = h("div.queue");
    this.last = h("p.last", { hidden: true });
    this.trouble = h("div.trouble");
    this.row = h("section.card.queue.label-row", { tabindex: -1, "aria-label": "Row to label" }, this.body);
    this.tray = h("div.tray", { hidden: true });
    this.other = h(
      "section.card.tree-card.other-label",
      { "aria-label": "Another label" },
      h("div.tree-head", h("h2", "Another label"), h("kbd", { title: "Press / to search" }, "/")),
      this.picker.parts,
      this.tray,
    );
    this.picker.query.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.defaultPrevented) this.row.focus();
    });
    return h(
      "div.bench.label",
      h("div.main", h("h2.hidden", "Row to label"), this.trouble, this.row, this.last, this.other),
      this.progress.element,
    );
  }

  start() {
    fill(this.body, h("p.busy", "Loading rows …"));
    this.labelling.start();
    this.picker.tree.showTop();
    this.progress.start();
  }

  shown() {
    this.progress.load();
  }

  get annotator() {
    return this.labelling.annotator;
  }

  rename(annotator) {
    this.labelling.annotator = annotator;
    this.progress.rename(annotator);
    this.row.focus();
  }

  // Drawing

  draw() {
    const { row, problem } = this.labelling;
    if (row) this.drawRow(row);
    else this.drawNoRow(problem);
    this.drawTrouble();
  }

  drawNoRow(problem) {
    this.drawn = null;
    this.other.hidden = true;
    if (problem)
      fill(
        this.body,
        failure(problem, () => this.labelling.fill()),
      );
    else if (this.labelling.isEmpty)
      fill(
        this.body,
        note(
          "No rows are left",
          "All rows have labels, or are with other people. Add texts on this page, or look again later.",
          h(
            "div.actions",
            h("button", { type: "button", onclick: () => this.labelling.fill() }, "Look again"),
            this.undoButton,
          ),
        ),
      );
    else fill(this.body, h("p.busy", "Loading rows …"));
  }

  drawRow(row) {
    if (this.drawn?.row === row && this.drawn.best === row.best && this.drawn.waits === row.waits) return;
    const isNew = this.drawn?.row !== row;
    this.drawn = { row, best: row.best, waits: row.waits };
    if (isNew) {
      const hadFocus = this.row.contains(document.activeElement) || this.other.contains(document.activeElement);
      this.chosen = [];
      this.noteField.value = "";
      this.noteLine.hidden = true;
      this.tray.hidden = true;
      this.other.hidden = false;
      this.picker.end();
      this.reason.textContent = REASONS[row.settle ? "settle" : (row.reason ?? "typed")];
      this.text.textContent = row.text;
      this.text.classList.toggle("long", row.text.length > 280);
      this.text.scrollTop = 0;
      if (hadFocus || document.activeElement === document.body) this.row.focus({ preventScroll: true });
      say(`${this.reason.textContent}: ${short(row.text)}`);
      const actions = h("div.actions", this.several && this.confirm, this.skipButton, this.noteButton, this.undoButton);
      fill(this.body, this.reason, this.text, this.best, this.answer, actions, this.noteLine);
      this.row.scrollIntoView({ block: "nearest" });
    }
    this.best.classList.toggle("waits", row.waits === true);
    fill(
      this.best,
      row.best.map((trace, index) => this.suggestion(trace, index, row)),
    );
    this.drawChosen();
  }

  suggestion(trace, index, { waits }) {
    const known = trace.nearest?.text && trace.nearest.text !== trace.title && trace.nearest;
    return h(
      "li",
      h(
        "button.suggestion",
        {
          type: "button",
          disabled: waits,
          "aria-pressed": this.several ? "false" : null,
          onclick: () => this.choose(index),
        },
        h("kbd", { "aria-hidden": "true" }, String(index + 1)),
        h(
          "span.what",
          h(
            "span.title",
            name(titleOf(trace)),
            " ",
            trace.title && trace.title !== trace.node && h("code", name(trace.node)),
          ),
          trace.steps.length > 1 && h("span.crumbs", crumbs(trace.steps.slice(0, -1))),
          known && h("span.known", "most like: ", quoted(known.text)),
        ),
        share(trace.probability),
      ),
    );
  }

  drawChosen() {
    if (!this.several) return;
    const nodes = this.chosen.map(({ node }) => node);
    this.answer.hidden = !nodes.length;
    this.confirm.disabled = !nodes.length;
    const remove = (item) =>
      h(
        "button.remove",
        { type: "button", "aria-label": `Remove ${titleOf(item)}`, onclick: () => this.toggle(item) },
        "×",
      );
    fill(
      this.answer,
      this.chosen.map((item) => h("li", name(titleOf(item)), remove(item))),
    );
    [...this.best.querySelectorAll(".suggestion")].forEach((button, index) =>
      button.setAttribute("aria-pressed", nodes.includes(this.drawn.row.best[index].node)),
    );
  }

  // Labels that are not stored yet, or refused, and an undo that failed.
  drawTrouble() {
    const { unsent, unsentProblem, refused } = this.labelling;
    const alerts = refused.map((entry) =>
      failure(
        Object.assign(entry.error, { title: `The label of “${short(entry.row.text)}” was refused` }),
        () => this.labelling.retry(entry),
        "Label it again",
      ),
    );
    if (unsentProblem)
      alerts.unshift(
        failure(
          {
            title: `${counted(unsent.length, "label is", "labels are")} not stored yet`,
            message: `${unsentProblem.title}. ${unsentProblem.message} Nothing is lost: labels are kept in this browser and sent again. You can go on.`,
          },
          () => this.labelling.send(),
          "Send now",
        ),
      );
    if (this.undoProblem) alerts.push(failure(this.undoProblem, () => this.undo()));
    fill(this.trouble, alerts);
  }

  drawLast(row, what) {
    fill(this.last, h("span.muted", "Last: ", quoted(row.text), " – "), what);
    this.last.hidden = false;
  }

  // Actions

  get isReady() {
    return this.drawn && !this.drawn.waits;
  }

  choose(index) {
    const trace = this.isReady && this.drawn.row.best[index];
    if (trace && this.several) this.toggle(trace);
    else if (trace) this.give([trace]);
  }

  toggle(item) {
    const without = this.chosen.filter(({ node }) => node !== item.node);
    this.chosen = without.length < this.chosen.length ? without : [...this.chosen, item];
    this.drawChosen();
    say(this.chosen.map(titleOf).join(", ") || "No label chosen");
  }

  give(items = this.chosen) {
    const { row } = this.labelling;
    if (!row || !items.length) return;
    const nodes = items.map(({ node }) => node);
    this.drawLast(
      row,
      items.flatMap((item, index) => [index ? ", " : "", h("strong", name(titleOf(item)))]),
    );
    this.labelling.give({ nodes, ...(row.settle && { settle: true }), ...this.noteFields });
  }

  skip() {
    const { row } = this.labelling;
    if (!row) return;
    this.drawLast(row, h("strong", "skipped"));
    this.labelling.give({ skip: true, ...this.noteFields });
  }

  get noteFields() {
    const text = this.noteField.value.trim();
    return text ? { note: text } : {};
  }

  openNote() {
    this.noteLine.hidden = false;
    this.noteField.focus();
  }

  async undo() {
    if (this.undoing) return;
    this.undoing = true;
    this.undoProblem = null;
    try {
      const undone = await this.labelling.undo();
      this.last.hidden = true;
      say(undone ? "The last label was taken back" : "There is nothing to undo");
    } catch (error) {
      this.undoProblem = error;
    } finally {
      this.undoing = false;
      this.drawTrouble();
    }
  }

  found(match) {
    if (this.several) {
      this.picker.end();
      this.row.focus({ preventScroll: true });
      this.toggle(match);
    } else this.give([match]);
  }

  // A node of the tree is chosen, which also opens its branch: a button makes it the label.
  picked(item) {
    const use = this.several ? () => this.toggle(item) : () => this.give([item]);
    fill(
      this.tray,
      h("p.crumbs", crumbs(item.path)),
      h(
        "div.actions",
        h("button.primary", { type: "button", onclick: use }, this.several ? "Add this label" : "This is the label"),
      ),
    );
    this.tray.hidden = false;
  }

  async open(ids, fields) {
    await this.labelling.open(ids, fields);
    this.row.focus();
  }

  // Handles a shortcut, and returns whether the key was one.
  key(key, event) {
    if (event.repeat) return true; // a key that is held down labels one row
    if (key === "/") this.picker.query.focus();
    else if (/^[1-5]$/.test(key)) this.choose(Number(key) - 1);
    else if (key === "s") this.skip();
    else if (key === "u") this.undo();
    else if (key === "n" && this.labelling.row) this.openNote();
    else if (key === "Enter" && this.several && !event.target.closest("button, a, summary, [role=treeitem]"))
      this.give();
    else return false;
    return true;
  }
}
