// The view to review doubtful rows by keyboard.

import * as api from "./api.js";
import { count, failure, fill, h, note, percent } from "./dom.js";
import { Workbench } from "./workbench.js";

export function create(panel, app) {
  const { model, service } = app;
  const title = h("h1.hidden", "Review");
  if (!service.review || !service.feedback) {
    const missing = [!service.feedback && "--feedback FILE", !service.review && "--review"].filter(Boolean).join(" ");
    fill(
      panel,
      title,
      h(
        "div.card",
        note(
          "There is no review queue",
          `Start the service with ${missing}: it then keeps classified texts, and lists the most doubtful ones.`,
        ),
      ),
    );
    return {};
  }

  const bench = new Workbench(app, { done: () => finish() });
  const text = h("div.queue-text", { dir: "auto", tabindex: 0, role: "group", "aria-label": "Text to review" });
  const place = h("p.eyebrow");
  const facts = h("p.facts");
  const order = h(
    "select",
    { onchange: () => load() },
    h("option", { value: "unsure" }, "least sure first"),
    h("option", { value: "split" }, "split between branches first"),
  );
  const button = (label, key, action) => h("button", { type: "button", onclick: action }, label, " ", h("kbd", key));
  const body = h("div.queue");
  const queue = h("div.card.queue", h("div.queue-head", place, h("label", "Order", order)), body);
  const result = h("div.card.result");
  const buttons = h(
    "div.actions",
    button("Skip", "s", () => skip()),
    button("Previous", "k", () => move(-1)),
    button("Next", "j", () => move(1)),
  );
  const keys = { a: "accept", c: "correct", 1: "to 3: a trace", "?": "all keys" };
  const hint = h(
    "p.facts.hint",
    Object.entries(keys).map(([key, what]) => h("span", h("kbd", key), ` ${what}`)),
  );
  let items = [];
  let at = 0;
  let left = 0; // rows in the queue, including those that are not loaded
  let handled = 0;

  async function load() {
    fill(body, h("p.busy", "Loading the queue …"));
    try {
      const page = await api.review(model.name, order.value, 0);
      [items, at, left] = [page.items, 0, page.total];
      draw();
    } catch (error) {
      result.hidden = true;
      fill(body, failure(error, load));
    }
  }

  function draw() {
    const item = items[at];
    result.hidden = !item;
    place.textContent = item
      ? `${count(at + 1)} of ${count(left)} to review${handled ? `, ${count(handled)} done` : ""}`
      : "Review";
    if (!item) {
      bench.clear();
      fill(
        body,
        note(
          handled ? "All done" : "Nothing to review",
          handled
            ? `You looked at ${count(handled)}. The queue is empty.`
            : "Texts that were classified by the service appear here if the model was not sure of them.",
          h("button", { type: "button", onclick: load }, "Look again"),
        ),
      );
      return;
    }
    text.textContent =
      item.text ??
      Object.entries(item.row)
        .map(([column, cell]) => `${column}: ${cell}`)
        .join("\n");
    fill(
      facts,
      h("span", `Sure: ${percent(1 - item.unsure)}`),
      h("span", `First step: ${percent(1 - item.split)}`),
      h("span", new Date(item.received).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" })),
    );
    fill(body, text, facts, buttons, hint);
    bench.show(item.text != null ? { text: item.text } : { row: item.row }, item.result, item.id);
    fill(result, bench.answer.element);
  }

  function move(step) {
    if (!items[at + step]) return at + step >= items.length && left > items.length ? loadMore() : undefined;
    at += step;
    draw();
  }

  async function loadMore() {
    try {
      const page = await api.review(model.name, order.value, items.length);
      const known = new Set(items.map(({ id }) => id));
      items.push(...page.items.filter(({ id }) => !known.has(id)));
      left = page.total;
      if (items[at + 1]) at += 1;
      draw();
    } catch (error) {
      body.append(failure(error));
    }
  }

  // The item was removed from the queue; the next one takes its place.
  function finish() {
    handled += 1;
    left -= 1;
    items.splice(at, 1);
    if (!items.length && left > 0) return load();
    at = Math.min(at, items.length - 1);
    if (at < 0) at = 0;
    draw();
    text.focus({ preventScroll: true });
  }

  async function skip() {
    const item = items[at];
    if (!item) return;
    try {
      await api.feedback({ model: model.name, verdict: "skip", review: item.id });
      finish();
    } catch (error) {
      body.append(failure(error));
    }
  }

  bench.main.append(queue, result);
  fill(panel, title, bench.element);
  load();

  return {
    shown: () => (items.length ? null : load()),
    key(key) {
      if (!items.length && key !== "/") return false;
      const keys = { s: skip, j: () => move(1), k: () => move(-1) };
      if (!keys[key]) return bench.key(key);
      keys[key]();
      return true;
    },
  };
}
