// The taxonomy as a tree: lazy, in pages, with the keyboard of the WAI-ARIA tree pattern.
// An item is a node at one place; a node of a DAG may have several, so items are found by their path.

import { count, counted, fill, h, meter, name, percent } from "./dom.js";

const PAGE = 50;
const TYPING = 700; // milliseconds within which typed letters form one word

export class Tree {
  // load(node, offset, limit) returns {children: [{node, title, children}], total}; picked(item) is called on selection.
  constructor(label, load, picked, failed) {
    Object.assign(this, { load, picked, failed, selected: null, typed: "", typedAt: 0 });
    this.element = h("ul.tree", { role: "tree", "aria-label": label });
    this.element.addEventListener("keydown", (event) => this.onKey(event));
    this.element.addEventListener("click", (event) => this.onClick(event));
    this.items = new WeakMap(); // items by element
    this.clear();
  }

  clear() {
    this.selected = null;
    this.probabilities = new Map(); // probabilities of the paths in the traces of an answer
    fill(this.element);
    this.root = { path: [], depth: 0, group: this.element, shown: new Map(), offset: 0, total: null, parent: null };
  }

  // Items

  add(parent, { node, title, children, probability, stops }, before = null) {
    const key = stops ? "" : node;
    const known = parent.shown.get(key);
    if (known) {
      if (probability != null) this.mark(known, probability);
      return known;
    }
    const item = {
      node,
      title,
      parent,
      stops,
      children: stops ? 0 : children,
      depth: parent.depth + 1,
      path: stops ? parent.path : [...parent.path, { node, title }],
      shown: new Map(),
      offset: 0,
      total: null,
      group: null,
    };
    item.twist = h("span.twist", { "aria-hidden": "true" });
    item.share = h("span.share", { "aria-hidden": "true" });
    const text = stops ? h("span.name", "ends here") : name(title || node);
    item.row = h(
      "div.row",
      item.twist,
      h("span.what", text, " ", !stops && title && title !== node && h("code", name(node))),
      item.share,
    );
    item.element = h(
      "li",
      { role: "treeitem", tabindex: -1, "aria-level": item.depth, "aria-selected": "false", class: stops && "stops" },
      item.row,
    );
    this.items.set(item.element, item);
    parent.shown.set(key, item);
    parent.group.insertBefore(item.element, before ?? parent.more?.element ?? null);
    this.expandable(item);
    this.mark(item, probability ?? (stops ? null : this.probabilities.get(keyOf(item.path))));
    if (!this.element.querySelector("[tabindex='0']")) item.element.tabIndex = 0;
    return item;
  }

  expandable(item) {
    if (item.children === 0) item.element.removeAttribute("aria-expanded");
    else if (!item.element.hasAttribute("aria-expanded")) item.element.setAttribute("aria-expanded", "false");
  }

  mark(item, probability) {
    item.probability = probability;
    fill(item.share, probability != null && [meter(probability), h("span.percent", percent(probability))]);
    const parts = [
      item.stops ? "ends here" : item.title || item.node,
      !item.stops && item.title !== item.node && item.node,
      probability != null && percent(probability),
      item.children > 0 && counted(item.children, "child", "children"),
    ];
    item.element.setAttribute("aria-label", parts.filter(Boolean).join(", "));
  }

  number(parent) {
    const size = Math.max(parent.total ?? 0, parent.group.children.length);
    [...parent.group.children].forEach((element, index) => {
      element.setAttribute("aria-setsize", size);
      element.setAttribute("aria-posinset", index + 1);
    });
  }

  // A last row for the children that are not shown.
  updateMore(parent) {
    const nodes = [...parent.shown.values()].filter((item) => !item.stops).length;
    const left = (parent.total ?? 0) - nodes;
    parent.more?.element.remove();
    parent.more = null;
    if (left > 0) {
      const text = `Show ${count(Math.min(left, PAGE))} more of ${count(left)}`;
      const row = h(
        "div.row",
        h("span.twist"),
        h("span.what", left > PAGE ? text : `Show ${count(left)} more`),
        h("span"),
      );
      const element = h(
        "li.more",
        { role: "treeitem", tabindex: -1, "aria-level": parent.depth + 1, "aria-label": row.textContent },
        row,
      );
      parent.more = { element, parent, isMore: true };
      this.items.set(element, parent.more);
      parent.group.append(element);
    }
    this.number(parent);
  }

  // Loading

  async loadMore(parent) {
    if (parent.loading) return parent.loading;
    const wait = setTimeout(() => parent.row?.classList.add("loading"), 150);
    parent.loading = (async () => {
      const before = parent.shown.size;
      do {
        const page = await this.load(parent.node ?? null, parent.offset, PAGE);
        if (topOf(parent) !== this.root) return; // another answer is shown now
        if (parent === this.root) this.above = page.node?.node;
        parent.offset += page.children.length;
        parent.total = page.total;
        for (const child of page.children) this.add(parent, child);
        if (!page.children.length) break;
      } while (parent.shown.size === before && parent.offset < parent.total);
      if (parent.element) {
        parent.children = parent.total;
        if (!parent.total && !parent.shown.size) parent.element.removeAttribute("aria-expanded");
      }
      this.updateMore(parent);
    })();
    try {
      await parent.loading;
    } catch (error) {
      this.failed(error);
      if (parent.element && !parent.shown.size) this.close(parent);
    } finally {
      parent.loading = null;
      clearTimeout(wait);
      parent.row?.classList.remove("loading");
    }
  }

  opened(item) {
    if (!item.element) return;
    if (!item.group) {
      item.group = h("ul", { role: "group" });
      item.element.append(item.group);
    }
    item.group.hidden = false;
    item.element.setAttribute("aria-expanded", "true");
  }

  async open(item) {
    if (item.element && !item.element.hasAttribute("aria-expanded")) return;
    this.opened(item);
    if (!item.shown.size) await this.loadMore(item);
  }

  close(item) {
    if (item.element?.getAttribute("aria-expanded") !== "true") return;
    item.element.setAttribute("aria-expanded", "false");
    item.group.hidden = true;
    if (item.group.contains(document.activeElement)) this.focus(item);
  }

  isOpen = (item) => item.element.getAttribute("aria-expanded") === "true";

  async showTop() {
    if (!this.root.shown.size) await this.loadMore(this.root);
  }

  // Show an answer: along the steps of the best trace the most probable siblings, without a request.
  showTraces(traces) {
    this.clear();
    this.noteProbabilities(traces);
    const [trace] = traces;
    let parent = this.root;
    for (const [index, step] of trace.steps.entries()) {
      const last = index === trace.steps.length - 1;
      this.opened(parent);
      const options = [
        { ...step, children: last ? trace.below?.total && nodesOf(trace.below) : undefined, onTrace: true },
        ...(step.siblings?.nodes ?? []),
      ];
      options.sort((one, other) => other.probability - one.probability);
      let next = null;
      for (const option of options) {
        const item = this.add(parent, option);
        if (option.onTrace) next = item;
      }
      if (step.siblings) parent.total = nodesOf(step.siblings) + 1;
      if (parent.element) parent.children = parent.total;
      this.updateMore(parent);
      next.element.classList.add("on-trace");
      parent = next;
    }
    if (trace.below) {
      parent.children = nodesOf(trace.below);
      this.expandable(parent);
      if (trace.below.nodes.length) {
        this.opened(parent);
        for (const option of trace.below.nodes) this.add(parent, option);
        parent.total = parent.children;
        this.updateMore(parent);
        if (trace.below.nodes[0].probability < 0.05) this.close(parent);
      }
    }
    if (parent.element) this.mark(parent, parent.probability);
    this.select(parent, false);
    return parent;
  }

  // Show an answer without siblings: the paths to its labels, with siblings that are loaded; `known` have probabilities.
  async showLabels(traces, known) {
    this.clear();
    this.noteProbabilities(known);
    const { root } = this;
    for (const { steps } of traces.toReversed()) if (root === this.root) await this.reveal(steps);
    if (root === this.root) this.markTraces(traces);
  }

  noteProbabilities(traces) {
    for (const { steps } of traces)
      steps.forEach(({ probability }, at) => this.probabilities.set(keyOf(steps.slice(0, at + 1)), probability));
  }

  // Open the path to a node: the nodes from the top, with the number of children where known.
  async reveal(path) {
    let parent = this.root;
    for (const step of path.filter(({ node }) => node !== this.above)) {
      await this.open(parent);
      if (topOf(parent) !== this.root) return; // another answer is shown now
      this.opened(parent);
      parent = this.add(parent, step, parent.group.firstElementChild);
      this.updateMore(parent.parent);
    }
    this.select(parent);
    return parent;
  }

  markTraces(traces) {
    for (const element of this.element.querySelectorAll(".on-trace")) element.classList.remove("on-trace");
    for (const { steps } of traces) {
      let item = this.root;
      for (const { node } of steps) {
        item = item?.shown.get(node);
        item?.element.classList.add("on-trace");
      }
    }
  }

  // Selection and focus

  select(item, focus = false) {
    if (!item?.element) return;
    this.selected?.element.setAttribute("aria-selected", "false");
    this.selected = item;
    item.element.setAttribute("aria-selected", "true");
    this.tabStop(item);
    if (focus) item.element.focus();
    this.scrollTo(item);
  }

  scrollTo(item) {
    const box = this.element.closest(".tree-scroll");
    if (!box || box.scrollHeight <= box.clientHeight) return;
    const [inner, outer] = [item.row.getBoundingClientRect(), box.getBoundingClientRect()];
    if (inner.top < outer.top || inner.bottom > outer.bottom)
      box.scrollTop += inner.top - outer.top - box.clientHeight / 3;
  }

  tabStop(item) {
    for (const element of this.element.querySelectorAll("[tabindex='0']")) element.tabIndex = -1;
    item.element.tabIndex = 0;
  }

  focus(item) {
    if (!item) return;
    this.tabStop(item);
    item.element.focus();
  }

  pick(item) {
    const target = item.stops ? item.parent : item;
    if (!target.element) return;
    this.select(target);
    this.picked(target);
  }

  async act(item) {
    if (!item.isMore) return this.pick(item);
    const { parent } = item;
    const shown = parent.shown.size;
    const hadFocus = item.element === document.activeElement;
    await this.loadMore(parent);
    const next = [...parent.shown.values()][shown] ?? parent.more;
    if (hadFocus) this.focus(next);
    else if (next) this.tabStop(next);
  }

  async onClick(event) {
    const item = this.items.get(event.target.closest("[role=treeitem]"));
    if (!item) return;
    if (item.isMore) return this.act(item);
    this.focus(item);
    const onTwist = event.target.closest(".twist");
    const wasOpen = item.element.hasAttribute("aria-expanded") && this.isOpen(item);
    if (!onTwist) this.pick(item);
    if (wasOpen) this.close(item);
    else await this.open(item);
  }

  visible() {
    return [...this.element.querySelectorAll("[role=treeitem]")].filter(
      (element) => !element.parentElement.closest("[hidden]"),
    );
  }

  async onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const item = this.items.get(event.target);
    if (!item) return;
    const move = (step) => {
      const all = this.visible();
      const at = all.indexOf(item.element) + step;
      this.focus(this.items.get(all[Math.max(0, Math.min(all.length - 1, at))]));
    };
    const expandable = item.element.hasAttribute("aria-expanded");
    const keys = {
      ArrowDown: () => move(1),
      ArrowUp: () => move(-1),
      Home: () => move(-Infinity),
      End: () => move(Infinity),
      Enter: () => this.act(item),
      " ": () => this.act(item),
      ArrowRight: () =>
        expandable && (this.isOpen(item) ? this.focus(this.items.get(item.group.firstElementChild)) : this.open(item)),
      ArrowLeft: () =>
        expandable && this.isOpen(item) ? this.close(item) : item.parent.element && this.focus(item.parent),
    };
    if (keys[event.key]) {
      event.preventDefault();
      this.typed = "";
      return keys[event.key]();
    }
    if (event.key.length === 1 && /[\p{L}\p{N}]/u.test(event.key) && this.typeAhead(event.key, item))
      event.preventDefault();
  }

  typeAhead(letter, item) {
    const now = performance.now();
    this.typed = now - this.typedAt < TYPING ? this.typed + letter.toLowerCase() : letter.toLowerCase();
    this.typedAt = now;
    const all = this.visible();
    const start = all.indexOf(item.element) + (this.typed.length === 1 ? 1 : 0);
    const found = [...all.slice(start), ...all.slice(0, start)].find((element) =>
      this.items.get(element).title?.toLowerCase().startsWith(this.typed),
    );
    if (found) this.focus(this.items.get(found));
    return true;
  }
}

const keyOf = (path) => JSON.stringify(path.map(({ node }) => node));
const topOf = (item) => (item.parent ? topOf(item.parent) : item);
const nodesOf = (siblings) => siblings.total - siblings.nodes.filter(({ stops }) => stops).length;
