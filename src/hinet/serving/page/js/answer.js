// An answer: the chosen trace with falling probabilities, its words, the slider of confidence, and the other traces.

import * as api from "./api.js";
import { failure, fill, h, meter, name, percent, say, share } from "./dom.js";
import { legend, marked, pushes } from "./words.js";

const WORDS = 200; // requested words, to mark them in the text

const idOf = ({ node, title }) => title && title !== node && h("code", name(node));
const titled = ({ node, title }) => name(title || node || "(the root)");

export class Answer {
  // traceChosen(trace) is called with the trace that is shown.
  constructor(app, traceChosen) {
    Object.assign(this, { app, traceChosen, threshold: 0, isRestricted: false, element: h("div.answer") });
    this.actions = h("div.actions");
  }

  show(input, result) {
    Object.assign(this, { input, result, explained: new Map() });
    this.choose(0);
    const [best] = result.traces;
    say(`Answer: ${best.title || best.node}, ${percent(best.probability)}`);
  }

  get trace() {
    return this.result?.traces[this.chosen];
  }

  // The predicted nodes; a multilabel model may predict none.
  get predicted() {
    return this.result.labels.map(({ node }) => node);
  }

  // The nodes to accept: the whole answer, or the end of the chosen trace.
  get accepted() {
    return this.chosen || !this.predicted.length ? [this.trace.node] : this.predicted;
  }

  get heading() {
    if (this.chosen) return `Trace ${this.chosen + 1}`;
    const labels = this.predicted.length;
    if (labels > 1) return `Most probable of ${labels} labels`;
    return labels ? "Answer" : "No label is probable enough. The most probable one is";
  }

  choose(index, focus = false) {
    if (!this.result?.traces[index]) return false;
    this.chosen = index;
    this.step = Math.max(0, this.trace.steps.length - 1);
    this.draw();
    if (focus) this.element.querySelectorAll(".other")[index]?.focus();
    this.traceChosen(this.trace, index);
    this.explain();
    return true;
  }

  draw() {
    const { trace } = this;
    const last = trace.steps.at(-1);
    const endsEarly = last && last.probability - trace.probability > 1e-6;
    this.stopLine = h("p.stop-line");
    this.explanation = h("div.explanation", h("p.busy", "Loading the explanation …"));
    this.steps = h(
      "ol.trace",
      { "aria-label": "Steps from the top down" },
      trace.steps.map((step, index) => this.stepRow(step, index)),
      endsEarly &&
        h(
          "li.end",
          h("div.step-text", h("span.name", "and ends here"), h("span.percent", percent(trace.probability))),
          meter(trace.probability),
        ),
    );
    const { labels } = this.result;
    fill(
      this.element,
      h(
        "header.headline",
        h("p.eyebrow", this.heading),
        h("h2", titled(trace), " ", idOf(trace)),
        h("p.big-percent", percent(trace.probability)),
      ),
      labels.length > 1 &&
        h(
          "div.labels",
          h("p.eyebrow", "All labels"),
          h(
            "ul.chips",
            labels.map((label) => h("li", titled(label), " ", h("span.percent", percent(label.probability)))),
          ),
        ),
      this.actions,
      !this.app.model.several_labels && this.slider(),
      h("div.trace-box", { vars: { t: this.threshold } }, this.steps),
      this.explanation,
      this.others(),
    );
    this.stopAt();
  }

  stepRow(step, index) {
    const button = h(
      "button.step",
      { type: "button", "aria-pressed": String(index === this.step), onclick: () => this.chooseStep(index) },
      h(
        "span.step-text",
        h("span.what", titled(step), " ", idOf(step), h("span.tag", "stops here")),
        h("span.percent", percent(step.probability)),
      ),
      meter(step.probability),
    );
    return h("li", { vars: { level: Math.min(index, 16) } }, button);
  }

  chooseStep(index) {
    this.step = index;
    this.steps
      .querySelectorAll(".step")
      .forEach((button, at) => button.setAttribute("aria-pressed", String(at === index)));
    this.drawExplanation();
  }

  // Confidence: where the trace would stop

  slider() {
    const id = "confidence-" + (Answer.number = (Answer.number ?? 0) + 1);
    const output = h("output", { for: id }, percent(this.threshold));
    const input = h("input", {
      type: "range",
      id,
      min: 0,
      max: 100,
      step: 1,
      value: Math.round(100 * this.threshold),
      "aria-describedby": `${id}-stop`,
      oninput: () => {
        this.threshold = input.value / 100;
        output.textContent = percent(this.threshold);
        this.stopAt();
      },
    });
    const calibrated = !this.isRestricted && this.app.model.calibration?.risk; // holds for all answers together
    this.stopLine.id = `${id}-stop`;
    return h(
      "div.confidence",
      h("div.line", h("label", { for: id }, "Required confidence"), output),
      input,
      calibrated &&
        h(
          "button.link",
          {
            type: "button",
            onclick: () => {
              input.value = Math.round(100 * calibrated.threshold);
              input.dispatchEvent(new Event("input"));
            },
          },
          `Use ${percent(calibrated.threshold)}: at most ${percent(calibrated.risk)} wrong`,
        ),
      this.stopLine,
    );
  }

  stopAt() {
    const { steps } = this.trace;
    const sure = steps.filter(({ probability }) => probability >= this.threshold).length;
    this.steps.parentElement.style.setProperty("--t", this.threshold);
    this.steps.parentElement.classList.toggle("asked", this.threshold > 0);
    [...this.steps.children].forEach((row, index) => {
      row.classList.toggle(
        "beyond",
        this.threshold > 0 && (index < steps.length ? index >= sure : this.trace.probability < this.threshold),
      );
      row.classList.toggle("stop", this.threshold > 0 && index === sure - 1);
    });
    const at = steps[sure - 1];
    if (!this.threshold) fill(this.stopLine, "Any confidence will do: the whole trace is the answer.");
    else if (!at) fill(this.stopLine, "Not sure enough of any step: there is no answer.");
    else
      fill(
        this.stopLine,
        sure === steps.length ? "Sure to the last step: " : "The trace stops at ",
        h("strong", titled(at)),
        ".",
      );
  }

  // Words

  async explain() {
    const { input, trace, chosen } = this;
    try {
      if (!this.explained.has(chosen)) {
        const found = await api.explain({
          model: this.app.model.name,
          ...input,
          node: chosen || this.isRestricted ? trace.node : undefined,
          words: WORDS,
        });
        this.explained.set(chosen, found);
      }
      if (this.trace !== trace) return;
      const withChoice = trace.steps.findLastIndex((step) => this.reasonsOf(step));
      this.chooseStep(withChoice < 0 ? this.step : withChoice);
    } catch (error) {
      if (this.trace === trace)
        fill(
          this.explanation,
          failure(error, () => this.explain()),
        );
    }
  }

  // The reasons of a step of the shown trace, if there was a choice.
  reasonsOf(step) {
    const { steps } = this.explained.get(this.chosen);
    return step && steps.find(({ chosen }) => chosen.node === step.node && !chosen.stops);
  }

  drawExplanation() {
    const found = this.explained.get(this.chosen);
    if (!found) return;
    const step = this.trace.steps[this.step];
    const reasons = this.reasonsOf(step);
    const unknown = found.unknown_words;
    const { text } = this.input;
    fill(
      this.explanation,
      h("h3", { title: step && (step.title || step.node) }, "Why “", step ? titled(step) : "this", "”?"),
      text != null && marked(text, reasons?.reasons ?? [], unknown),
      reasons ? rivalLine(reasons) : h("p.rival", this.withoutReasons(step, found.trace)),
      reasons &&
        h(
          "details",
          { open: text == null },
          h("summary", text == null ? "What each value adds" : "What each word adds"),
          pushes(reasons),
        ),
      text != null && (reasons || unknown.length > 0) && legend(unknown.length > 0),
      found.nearest.length > 0 && mostLike(found.nearest),
      text == null && unknown.length > 0 && h("p.rival", "Unknown words: ", unknown.map(({ word }) => word).join(", ")),
    );
    this.explanation.dataset.done = "";
  }

  // In a DAG, the words are those of the most probable way to a node.
  withoutReasons(step, explained) {
    const isOther = step && !explained.steps.some(({ node }) => node === step.node);
    return isOther ? "The words of this way to the node are not known." : "There was no other option at this step.";
  }

  // Other traces

  others() {
    const { traces } = this.result;
    if (traces.length < 2) return null;
    const row = (trace, index) =>
      h(
        "li",
        h(
          "button.other",
          { type: "button", "aria-pressed": String(index === this.chosen), onclick: () => this.choose(index, true) },
          h("span.rank", String(index + 1)),
          h(
            "span.what",
            titled(trace),
            " ",
            idOf(trace),
            index > 0 && h("span.crumbs", crumbs(apart(traces[0].steps, trace.steps.slice(0, -1)))),
          ),
          share(trace.probability),
        ),
      );
    return h("section.others", h("h3", "Best traces"), h("ol", traces.map(row)));
  }
}

// A model of several labels decides on each node by itself.
const rivalLine = ({ rival, probability }) =>
  rival
    ? h(
        "p.rival",
        "Against ",
        rival.stops && "ending at ",
        titled(rival),
        `, its strongest rival. ${percent(probability)} among the siblings.`,
      )
    : h("p.rival", `Decided by itself, without a rival: ${percent(probability)}.`);

// The steps of a trace from the last one that it shares with the best on.
function apart(best, steps) {
  const shared = steps.findIndex(({ node }, index) => node !== best[index]?.node);
  const from = Math.max(0, (shared < 0 ? steps.length : shared) - 1);
  return from ? [{ node: "…" }, ...steps.slice(from)] : steps;
}

export function crumbs(steps) {
  return steps.flatMap((step, index) => [
    index > 0 && h("span", { "aria-hidden": "true", class: "arrow" }, " › "),
    titled(step),
  ]);
}

// The known texts that are most like the text, with the nodes they belong to.
function mostLike(nearest) {
  const place = ({ origin, row }) => (origin === "row" ? `row ${row}` : origin);
  return h(
    "details.nearest",
    { open: true },
    h("summary", "Most like"),
    h(
      "ul",
      ...nearest.map((each) =>
        h("li", each.text == null ? "" : `“${each.text}” `, h("small", `${place(each)}, `, titled(each), `, ${each.similarity.toFixed(2)}`)),
      ),
    ),
  );
}
