// The taxonomy to choose a node from: a search, and the tree.

import * as api from "./api.js";
import { crumbs } from "./answer.js";
import { count, failure, fill, h, name, note, say } from "./dom.js";
import { Tree } from "./tree.js";

const PAUSE = 150; // milliseconds without a key before a search

export class Picker {
  // picked(item) is called with a node of the tree; found(match) with one of the search, which the tree shows by default.
  constructor(app, picked, found = (match) => this.reveal(match)) {
    Object.assign(this, { app, picked, found });
    this.problem = h("div.problem");
    this.tree = new Tree(
      "Taxonomy",
      (node, offset, limit) => this.load(node, offset, limit),
      (item) => this.picked(item),
      (error) => fill(this.problem, failure(error, this.tree.root.shown.size ? null : () => this.tree.showTop())),
    );
    this.query = h("input", {
      type: "search",
      placeholder: "Search by title, id or synonym",
      "aria-label": "Search the taxonomy",
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.searchSoon(),
      onkeydown: (event) => this.onKey(event),
    });
    this.matches = h("div.matches", { hidden: true });
    this.scroll = h("div.tree-scroll", this.tree.element);
    this.parts = [this.query, this.problem, this.matches, this.scroll];
  }

  async load(node, offset, limit) {
    const page = await api.children(this.app.model.name, node, offset, limit);
    fill(this.problem);
    return page;
  }

  async onKey(event) {
    if (event.key === "ArrowDown") this.focusFirst(event);
    if (event.key === "Escape" && this.query.value) {
      event.preventDefault();
      this.end();
    }
    if (event.key === "Enter" && this.query.value.trim()) {
      event.preventDefault();
      clearTimeout(this.timer);
      await this.search();
      this.matches.querySelector(".match")?.click();
    }
  }

  searchSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.search(), PAUSE);
  }

  async search() {
    const query = this.query.value.trim();
    this.searching?.abort();
    if (!query) return this.end();
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
        { type: "button", onclick: () => this.found(match), onkeydown: (event) => this.moveMatch(event) },
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

  // Ends the search, and shows the tree.
  end() {
    clearTimeout(this.timer);
    this.query.value = "";
    this.matches.hidden = true;
    this.scroll.hidden = false;
  }

  async reveal(match) {
    this.end();
    const item = await this.tree.reveal([...match.ancestors, match]);
    this.tree.focus(item);
    this.tree.scrollTo(item);
    this.picked(item);
  }
}
