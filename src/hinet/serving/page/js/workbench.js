// An answer next to the tree, with feedback; shared by Classify and Review.

import * as api from "./api.js";
import { Answer, crumbs } from "./answer.js";
import { count, failure, fill, h, name, say } from "./dom.js";
import { Picker } from "./picker.js";

export class Workbench {
  // done(verdict) is called when feedback is stored; `branches` may restrict the answers.
  constructor(app, { done = () => {}, branches = null } = {}) {
    Object.assign(this, { app, done, branches, picks: [] });
    this.answer = new Answer(app, (trace, index) => this.traceChosen(trace, index));
    this.picker = new Picker(app, (item) => this.picked(item));
    this.tree = this.picker.tree;
    this.element = this.draw();
    this.tree.showTop();
  }

  draw() {
    this.tray = h("div.tray", { hidden: true });
    this.main = h("div.main");
    return h(
      "div.bench",
      this.main,
      h(
        "aside.card.tree-card",
        { "aria-label": "Taxonomy" },
        h("div.tree-head", h("h2", "Taxonomy"), h("span.muted", `${count(this.app.model.nodes)} nodes`)),
        this.picker.parts,
        this.tray,
      ),
    );
  }

  // An answer to a text or row; `review` is its id in the queue, if it comes from there.
  show(input, result, review) {
    Object.assign(this, { input, review });
    this.sent = false;
    this.fresh = true;
    this.answer.isRestricted = Object.keys(this.branches?.fields ?? {}).length > 0;
    this.clearPicks();
    this.picker.end();
    this.answer.show(input, result);
    this.drawActions();
  }

  // No answer: the tree can still be browsed.
  clear() {
    this.input = null;
    this.answer.result = null;
    this.clearPicks();
    this.tree.clear();
    this.tree.showTop();
  }

  async traceChosen(trace, index) {
    const { traces } = this.answer.result;
    const { accepted } = this.answer;
    const { fresh } = this;
    this.fresh = false;
    if (index || !fresh) {
      await this.tree.reveal(trace.steps);
      this.tree.markTraces([trace]);
    } else if (this.app.model.several_labels || this.answer.isRestricted)
      await this.tree.showLabels(
        traces.filter(({ node }) => accepted.includes(node)),
        traces,
      );
    else this.tree.showTraces(traces);
    this.drawActions();
  }

  // Feedback

  drawActions() {
    const { service } = this.app;
    if (!this.answer.result) return; // cleared while the tree was loading
    const { accepted } = this.answer;
    if (this.sent) return fill(this.answer.actions, h("p.kept", this.sent));
    if (service.project && !service.feedback)
      return fill(
        this.answer.actions,
        h("p.muted", "To keep the right label, add the text in the view ", h("a", { href: "#label" }, "Label"), "."),
      );
    if (!service.feedback)
      return fill(
        this.answer.actions,
        h(
          "p.muted",
          "Feedback is off. Start the service with ",
          h("code", "--feedback FILE"),
          " to keep what people accept and correct.",
        ),
      );
    const what = accepted.length > 1 ? `all ${accepted.length}` : accepted[0];
    fill(
      this.answer.actions,
      h("button.primary", { type: "button", onclick: () => this.accept() }, "Accept ", name(what)),
      h("button", { type: "button", onclick: () => this.correct() }, "Correct …"),
    );
  }

  accept() {
    if (!this.answer.result || this.sent) return;
    const { accepted, predicted } = this.answer;
    this.send(accepted.every((node) => predicted.includes(node)) ? "accept" : "correct", accepted);
  }

  correct() {
    this.picker.query.focus();
    this.picker.query.scrollIntoView({ block: "nearest" });
    say("Search or pick the right node in the tree");
  }

  picked(item) {
    const { service, model } = this.app;
    const path = h("p.crumbs", crumbs(item.path));
    this.pick = item;
    const limit = this.branches && h("div.actions", this.branches.actions(item));
    if (!this.input || this.sent || !service.feedback) return this.drawTray(path, limit);
    const add = () => {
      const without = this.picks.filter(({ node }) => node !== item.node);
      this.picks = model.several_labels ? [...without, item] : [item];
      if (model.several_labels) this.picked(item);
      else this.send("correct", [item.node]);
    };
    const use = h(
      "button.primary",
      { type: "button", onclick: add },
      model.several_labels ? "Add to the right answer" : "This is the right answer",
    );
    this.drawTray(
      path,
      this.picks.length > 0 && this.picksList(),
      h(
        "div.actions",
        use,
        this.picks.length > 0 &&
          h(
            "button.primary",
            {
              type: "button",
              onclick: () =>
                this.send(
                  "correct",
                  this.picks.map(({ node }) => node),
                ),
            },
            `Send ${this.picks.length}`,
          ),
      ),
      limit,
    );
  }

  picksList() {
    return h(
      "ul.chips",
      this.picks.map((item) =>
        h(
          "li",
          name(item.title || item.node),
          h(
            "button.remove",
            {
              type: "button",
              "aria-label": `Remove ${item.title || item.node}`,
              onclick: () => {
                this.picks = this.picks.filter((other) => other !== item);
                this.picked(this.pick);
              },
            },
            "×",
          ),
        ),
      ),
    );
  }

  drawTray(...content) {
    fill(this.tray, content);
    this.tray.hidden = false;
  }

  clearPicks() {
    this.picks = [];
    this.tray.hidden = true;
  }

  async send(verdict, nodes) {
    const { model } = this.app;
    try {
      await api.feedback({
        model: model.name,
        ...this.input,
        review: this.review,
        verdict,
        nodes,
        predicted: this.answer.predicted,
      });
    } catch (error) {
      this.answer.actions.append(failure(error));
      return;
    }
    this.sent =
      verdict === "accept"
        ? "Accepted. It is kept for training."
        : `Corrected to ${nodes.join(", ")}. It is kept for training.`;
    this.clearPicks();
    this.drawActions();
    say(this.sent);
    this.done(verdict);
  }

  // Handles a shortcut, and returns whether the key was one.
  key(key) {
    if (key === "/") this.picker.query.focus();
    else if (!this.answer.result) return false;
    else if (key === "a" && this.app.service.feedback) this.accept();
    else if (key === "c" && this.app.service.feedback) this.correct();
    else if (/^[1-9]$/.test(key)) return this.answer.choose(Number(key) - 1);
    else return false;
    return true;
  }
}
