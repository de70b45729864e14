// The branches that answers must, or must not, lie in: kept in the address of the page, shown as chips.

import * as api from "./api.js";
import { fill, h, name, say } from "./dom.js";

const KINDS = { within: "Only in", exclude: "Not in" };

export class Branches {
  // changed() is called when a branch is added or removed.
  constructor(app, changed) {
    Object.assign(this, { app, changed, titles: new Map(), element: h("div.limits", { hidden: true }) });
    this.draw();
  }

  // The fields of a request: none without a branch.
  get fields() {
    const query = new URLSearchParams(location.search);
    const given = Object.keys(KINDS).map((kind) => [kind, query.getAll(kind)]);
    return Object.fromEntries(given.filter(([, nodes]) => nodes.length));
  }

  // The buttons for a node of the tree.
  actions({ node, title, children }) {
    const branch = children !== 0;
    const button = (kind, text) =>
      h("button", { type: "button", onclick: () => this.change(kind, node, title) }, text);
    return [
      branch && button("within", "Answer only in this branch"),
      button("exclude", branch ? "Never in this branch" : "Never this label"),
    ];
  }

  // Adds a branch, or removes it if it is there.
  change(kind, node, title) {
    const fields = this.fields;
    const before = fields[kind] ?? [];
    const adds = !before.includes(node);
    fields[kind] = adds ? [...before, node] : before.filter((other) => other !== node);
    const query = new URLSearchParams(Object.entries(fields).flatMap(([key, nodes]) => nodes.map((each) => [key, each])));
    if (query.size) query.set("model", this.app.model.name);
    history.replaceState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}${location.hash}`);
    this.titles.set(node, title || node);
    this.draw();
    if (adds) [...this.element.querySelectorAll("button")].at(-1).focus();
    say(adds ? `${KINDS[kind]} ${title || node}` : `${title || node} removed`);
    this.changed(adds);
  }

  draw() {
    const given = Object.entries(this.fields).flatMap(([kind, nodes]) => nodes.map((node) => [kind, node]));
    this.element.hidden = !given.length;
    fill(
      this.element,
      h("ul.chips", { "aria-label": "Branches" }, given.map(([kind, node]) => this.chip(kind, node))),
      h(
        "p.muted",
        this.app.model.several_labels
          ? "Every label keeps its own probability."
          : "Probabilities are conditional: as if the right answer were among what is allowed.",
      ),
    );
  }

  chip(kind, node) {
    const text = name(this.titles.get(node) ?? node);
    if (!this.titles.has(node)) this.loadTitle(node, text);
    const remove = () => this.change(kind, node, this.titles.get(node));
    const label = `Remove: ${KINDS[kind]} ${node}`;
    return h(
      "li",
      h("span.muted", `${KINDS[kind]} `),
      text,
      h("button.remove", { type: "button", "aria-label": label, onclick: remove }, "×"),
    );
  }

  async loadTitle(node, text) {
    this.titles.set(node, node);
    try {
      const { title } = (await api.children(this.app.model.name, node, 0, 1)).node;
      this.titles.set(node, title || node);
      text.textContent = title || node;
    } catch {
      return; // an unknown node keeps its id, and the answer says that it is unknown
    }
  }
}
