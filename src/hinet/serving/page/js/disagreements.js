// Rows on which people disagree: a choice settles each.

import * as api from "./api.js";
import { count, counted, failure, fill, h, name, say } from "./dom.js";

const PAGE = 20; // rows per request

export class Disagreements {
  // actions: settle(id, nodes), open(ids, fields).
  constructor(actions) {
    Object.assign(this, { actions, items: [], total: 0 });
    this.list = h("ul.disagreements");
    this.title = h("h2");
    this.more = h("div");
    this.element = h("section.card", { hidden: true }, this.title, this.list, this.more);
  }

  // Loads the first ones if there are any.
  async load(total) {
    if (!total && !this.total) return;
    const page = await api.disagreements(0, PAGE);
    this.total = page.total;
    if (JSON.stringify(page.items) === JSON.stringify(this.items.slice(0, PAGE))) return this.drawFrame();
    this.items = page.items;
    this.draw();
  }

  async loadMore() {
    const known = new Set(this.items.map(({ id }) => id));
    try {
      const page = await api.disagreements(this.items.length, PAGE);
      this.items.push(...page.items.filter(({ id }) => !known.has(id)));
      this.draw();
    } catch (error) {
      fill(
        this.more,
        failure(error, () => this.loadMore()),
      );
    }
  }

  draw() {
    fill(
      this.list,
      this.items.map((item) => this.row(item)),
    );
    this.drawFrame();
  }

  drawFrame() {
    this.element.hidden = !this.total;
    this.title.textContent = `${counted(this.total, "disagreement")} to settle`;
    const left = this.total - this.items.length;
    fill(
      this.more,
      left > 0 && h("button.link", { type: "button", onclick: () => this.loadMore() }, `Show more of ${count(left)}`),
    );
  }

  row(item) {
    const problem = h("div.problem");
    const settle = async (nodes) => {
      try {
        await this.actions.settle(item.id, nodes);
      } catch (error) {
        fill(
          problem,
          failure(error, () => settle(nodes)),
        );
        return;
      }
      this.items = this.items.filter((other) => other !== item);
      this.total -= 1;
      this.draw();
      say("Settled");
    };
    const open = () =>
      this.actions.open([item.id], { settle: true }).catch((error) => fill(problem, failure(error, open)));
    return h(
      "li",
      h("p.clamp", { dir: "auto" }, item.text),
      h(
        "ul",
        item.labels.map(({ annotator, nodes, note }) =>
          h(
            "li",
            h(
              "button.suggestion",
              { type: "button", onclick: () => settle(nodes.map(({ node }) => node)) },
              h(
                "span.what",
                h(
                  "span.title",
                  nodes.flatMap(({ title, node }, index) => [index ? ", " : "", name(title || node)]),
                ),
                h("span.crumbs", name(annotator), note && [": ", h("bdi", note)]),
              ),
            ),
          ),
        ),
      ),
      h("button.link", { type: "button", onclick: open }, "Another label …"),
      problem,
    );
  }
}
