// How far the labelling is, how good the model is, and what is to do besides labelling.

import * as api from "./api.js";
import { Disagreements } from "./disagreements.js";
import { count, counted, failure, fill, h, meter, name, percent, say } from "./dom.js";
import { learning, levels } from "./plots.js";
import { rowsCard } from "./project_rows.js";

const SOON = 250; // milliseconds after a label until the figures are loaded
const OFTEN = 2000; // milliseconds between two looks while a training runs
const SELDOM = 10_000;
const BRANCHES = 6; // branches shown before the others

const interval = ({ low, high }) => `${percent(low)} to ${percent(high)}`;
const time = (text) => new Date(text).toLocaleTimeString("en", { timeStyle: "short" });

export class Progress {
  // actions: retrained(), settle(id, nodes), open(ids, fields), rename().
  constructor(project, annotator, actions) {
    Object.assign(this, { project, annotator, actions });
    this.state = h("div.progress-state");
    this.figures = h("div.progress-figures", h("p.busy", "Loading …"));
    this.problem = h("div.problem");
    this.disagreements = new Disagreements(actions);
    this.element = h(
      "aside.progress",
      { "aria-label": "Progress" },
      h("section.card", h("h2", "Progress"), this.state),
      h("section.card", h("h2", "How good is it?"), this.problem, this.figures),
      this.disagreements.element,
      rowsCard(
        (ids) => actions.open(ids, { reason: "typed" }),
        () => this.loadSoon(),
      ),
    );
    this.drawState();
  }

  start() {
    this.load();
  }

  rename(annotator) {
    this.annotator = annotator;
    this.drawState();
    this.load();
  }

  loadSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), SOON);
  }

  // Loads the figures, and again later as long as the page is seen.
  async load() {
    clearTimeout(this.timer);
    if (this.loading) return (this.again = true);
    this.loading = true;
    this.again = false;
    try {
      const [project, progress] = await Promise.all([api.project(), api.progress()]);
      const isRetrained = project.model.version !== this.project.model.version;
      this.project = project;
      this.drawState();
      this.drawFigures(progress);
      if (isRetrained) {
        this.actions.retrained();
        say("The model was retrained");
      }
      await this.disagreements.load(project.disagreements);
      fill(this.problem);
    } catch (error) {
      fill(
        this.problem,
        failure(error, () => this.load()),
      );
    } finally {
      this.loading = false;
    }
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.look(), this.again ? SOON : this.project.retraining ? OFTEN : SELDOM);
  }

  look() {
    if (!this.element.isConnected) return; // another view; `shown` continues
    if (document.hidden || this.element.closest("[hidden]")) this.timer = setTimeout(() => this.look(), SELDOM);
    else this.load();
  }

  drawState() {
    const { rows, labelled, skipped, annotators, scored } = this.project;
    const done = rows ? labelled / rows : 0;
    const others = annotators.filter((person) => person.name !== this.annotator);
    const own = annotators.find((person) => person.name === this.annotator);
    redraw(
      this.state,
      h("p.big", h("strong", count(labelled)), ` of ${counted(rows, "row")}`, h("span.muted", ` ${percent(done)}`)),
      h("div", { role: "img", "aria-label": `${percent(done)} of the rows have labels` }, meter(done)),
      h(
        "p.facts",
        skipped > 0 && h("span", `${count(skipped)} skipped`),
        scored < 1 && h("span", `Ranking rows: ${percent(scored)}`),
      ),
      h(
        "ul.people",
        { "aria-label": "People" },
        h(
          "li",
          h("strong", name(this.annotator)),
          ` ${count(own?.labels ?? 0)} `,
          h("button.link", { type: "button", onclick: () => this.actions.rename() }, "Change the name"),
        ),
        others.map((person) => h("li", name(person.name), ` ${count(person.labels)}`)),
      ),
      this.training(),
    );
  }

  training() {
    const {
      model,
      retraining,
      retraining_problem: problem,
      labels_since_training: since,
      next_training: next,
    } = this.project;
    const known = model.rows
      ? `The model was trained on ${counted(model.rows, "label")}, ${time(model.trained)}.`
      : "The model knows the taxonomy and the labels so far.";
    const left = Math.max(0, next - since);
    return h(
      "div.training",
      retraining
        ? h("p.busy", `Training on ${counted(retraining.rows, "row")} in the background …`)
        : h(
            "p.muted",
            known,
            " ",
            left ? `${counted(left, "label")} until the next training.` : "The next training starts soon.",
          ),
      problem && h("div.note.failed", h("h3", "The last training failed"), h("p", problem)),
    );
  }

  drawFigures(progress) {
    const { accuracy, random, curve, accept, saturation, agreement } = progress;
    if (!progress.labels || (!accuracy && !curve.length))
      return fill(
        this.figures,
        h(
          "p.muted",
          "Every label is compared with the answer that the model gave before. The accuracy appears here after a few more labels.",
        ),
      );
    redraw(
      this.figures,
      accuracy &&
        h(
          "p",
          h("strong.big-percent", percent(accuracy.value)),
          ` of the last ${counted(accuracy.rows, "answer")} were right`,
          h("span.muted", ` (${interval(accuracy)}). Hard rows come first, so answers to other rows are better.`),
        ),
      curve.length > 0 && h("div.curve", learning(curve)),
      random &&
        h(
          "p.muted",
          `Estimate from ${count(random.rows)} rows drawn at random from those that were left: `,
          h("strong", percent(random.value)),
          ` (${interval(random)}).`,
        ),
      accept &&
        h(
          "p.promise",
          `Accept without looking above ${accept.threshold.toFixed(2)}: `,
          h("strong", `${percent(accept.coverage)} of the rows`),
          ` left, at most ${percent(accept.risk)} wrong`,
          h("span.muted", ` (${percent(accept.certainty)} certain, from ${counted(accept.rows, "label")}).`),
        ),
      saturation && h("p.promise", capital(saturation.message), "."),
      agreement &&
        h(
          "p",
          h("strong", `${percent(agreement.agreed)} agreement`),
          ` on ${counted(agreement.rows, "row")} of two people: `,
          h("span", { title: "Cohen's kappa; 1 is perfect, 0 is chance" }, `kappa ${agreement.kappa.toFixed(2)}`),
          `, ${agreement.hierarchical_kappa.toFixed(2)} with credit for near labels.`,
        ),
      progress.levels.length > 0 &&
        h("details", h("summary", "By level"), levels(progress.levels.map((level) => level.accuracy))),
      progress.branches.length > 0 && h("details", h("summary", "By branch"), branches(progress.branches)),
    );
  }
}

// Draws new figures; what is open stays open, and what has the focus keeps it.
function redraw(element, ...content) {
  const open = new Set([...element.querySelectorAll("details[open] > summary")].map((each) => each.textContent));
  const focused = element.contains(document.activeElement) && document.activeElement.textContent;
  fill(element, ...content);
  for (const summary of element.querySelectorAll("summary")) summary.parentElement.open = open.has(summary.textContent);
  if (focused) [...element.querySelectorAll("summary, button")].find((each) => each.textContent === focused)?.focus();
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

function branches(found) {
  const row = (branch) =>
    h(
      "li",
      h("span.what", name(branch.title || branch.node), h("span.muted", ` ${counted(branch.rows, "label")}`)),
      meter(branch.accuracy),
      h("span.percent", { title: interval(branch) }, percent(branch.accuracy)),
    );
  return [
    h("ol.levels.by-branch", found.slice(0, BRANCHES).map(row)),
    found.length > BRANCHES &&
      h(
        "details",
        h("summary", `${count(found.length - BRANCHES)} more`),
        h("ol.levels.by-branch", found.slice(BRANCHES).map(row)),
      ),
  ];
}
