// An answer next to the tree, with feedback; shared by Classify and Review.

import * as api from "./api.js";
import { Answer, crumbs } from "./answer.js";
import { count, failure, fill, h, name, note, say } from "./dom.js";
import { Tree } from "./tree.js";

const PAUSE = 150; // milliseconds without a key before a search

export class Workbench {
  // done(verdict) is called when feedback is stored.
  constructor(app, done = () => {}) {
    Object.assign(this, { app, done, picks: [] });
    this.answer = new Answer(app, (trace, index) => this.traceChosen(trace, index));
    this.problem = h("div.problem");
    this.tree = new Tree(
      "Taxonomy",
      (node, offset, limit) => this.load(node, offset, limit),
      (item) => this.picked(item),
      (error) => fill(this.problem, failure(error, this.tree.root.shown.size ? null : () => this.tree.showTop())),
    );
    this.element = this.draw();
    this.tree.showTop();
  }

  draw() {
    this.query = h("input", {
      type: "search",
      placeholder: "Search by title, id or synonym",
      "aria-label": "Search the taxonomy",
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.searchSoon(),
      onkeydown: (event) => {
        if (event.key === "ArrowDown") this.focusFirst(event);
        if (event.key === "Escape" && this.query.value) {
          event.preventDefault();
          this.query.value = "";
          this.endSearch();
        }
      },
    });
    this.matches = h("div.matches", { hidden: true });
    this.tray = h("div.tray", { hidden: true });
    this.main = h("div.main");
    return h(
      "div.bench",
      this.main,
      h(
        "aside.card.tree-card",
        { "aria-label": "Taxonomy" },
        h("div.tree-head", h("h2", "Taxonomy"), h("span.muted", `${count(this.app.model.nodes)} nodes`)),
        this.query,
        this.problem,
        this.matches,
        (this.scroll = h("div.tree-scroll", this.tree.element)),
        this.tray,
      ),
    );
  }

  async load(node, offset, limit) {
    const page = await api.children(this.app.model.name, node, offset, limit);
    fill(this.problem);
    return page;
  }

  // An answer to a text or row; `review` is its id in the queue, if it comes from there.
  show(input, result, review) {
    Object.assign(this, { input, review });
    this.sent = false;
    this.fresh = true;
    this.clearPicks();
    this.query.value = "";
    this.endSearch();
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
    } else if (this.app.model.several_labels)
      await this.tree.showLabels(traces.filter(({ node }) => accepted.includes(node)));
    else this.tree.showTraces(traces);
    this.drawActions();
  }

  // Search

  searchSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.search(), PAUSE);
  }

  async search() {
    const query = this.query.value.trim();
    this.searching?.abort();
    if (!query) return this.endSearch();
    this.searching = new AbortController();
    try {
      const page = await api.search(this.app.model.name, query, 0, this.searching.signal);
      this.drawMatches(page, []);
    } catch (error) {
      if (error.name !== "AbortError") this.showMatches(failure(error, () => this.search()));
    }
  }

  drawMatches(page, before) {
    const rows = [...before, ...page.matches.map((match) => this.matchRow(match))];
    const more =
      rows.length < page.total &&
      h(
        "button.link",
        {
          type: "button",
          onclick: async () => {
            this.drawMatches(await api.search(this.app.model.name, page.query, rows.length), rows);
          },
        },
        `Show more of ${count(page.total - rows.length)}`,
      );
    if (rows.length) this.showMatches(h("p.muted", `${count(page.total)} found`), h("ul", rows), more);
    else this.showMatches(note("Nothing found", "All words of the search must occur in an id, title or synonym."));
    say(`${count(page.total)} found`);
  }

  matchRow(match) {
    return h(
      "li",
      h(
        "button.match",
        { type: "button", onclick: () => this.goTo(match), onkeydown: (event) => this.moveMatch(event) },
        h("span.what", name(match.title || match.node), " ", match.title !== match.node && h("code", name(match.node))),
        match.matched === "synonym" && h("span.synonym", "also called ", name(match.text)),
        match.ancestors.length > 0 && h("span.crumbs", crumbs(match.ancestors)),
      ),
    );
  }

  moveMatch(event) {
    const all = [...this.matches.querySelectorAll(".match")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    (all[all.indexOf(event.target) + step] ?? (step < 0 ? this.query : event.target)).focus();
  }

  focusFirst(event) {
    const first = this.matches.hidden
      ? this.tree.element.querySelector("[tabindex='0']")
      : this.matches.querySelector(".match");
    if (!first) return;
    event.preventDefault();
    first.focus();
  }

  showMatches(...content) {
    fill(this.matches, content);
    this.matches.hidden = false;
    this.scroll.hidden = true;
  }

  endSearch() {
    this.matches.hidden = true;
    this.scroll.hidden = false;
  }

  async goTo(match) {
    this.query.value = "";
    this.endSearch();
    const item = await this.tree.reveal([...match.ancestors, match]);
    this.tree.focus(item);
    this.tree.scrollTo(item);
    this.picked(item);
  }

  // Feedback

  drawActions() {
    const { service } = this.app;
    const { accepted, result } = this.answer;
    if (!result) return;
    if (this.sent) return fill(this.answer.actions, h("p.kept", this.sent));
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
    this.query.focus();
    this.query.scrollIntoView({ block: "nearest" });
    say("Search or pick the right node in the tree");
  }

  picked(item) {
    const { service, model } = this.app;
    const path = h("p.crumbs", crumbs(item.path));
    this.pick = item;
    if (!this.input || this.sent || !service.feedback) return this.drawTray(path);
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
    if (key === "/") this.query.focus();
    else if (!this.answer.result) return false;
    else if (key === "a" && this.app.service.feedback) this.accept();
    else if (key === "c" && this.app.service.feedback) this.correct();
    else if (/^[1-9]$/.test(key)) return this.answer.choose(Number(key) - 1);
    else return false;
    return true;
  }
}
