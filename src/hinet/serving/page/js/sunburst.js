// Errors by branch: a ring per level, an arc proportional to the errors of its branch, darker for a larger share of errors.

import { count, fill, h, name, percent, svg, share } from "./dom.js";

const SIZE = 400;
const HOLE = 62;
const LEVELS = 4; // rings at a time
const LISTED = 8; // branches listed next to the rings
const THINNEST = 0.006; // radians; shorter arcs cannot be seen

export function sunburst(branches, rows) {
  const below = new Map();
  for (const branch of branches) {
    const list = below.get(branch.parent) ?? [];
    list.push(branch);
    below.set(branch.parent, list);
  }
  const byNode = new Map(branches.map((branch) => [branch.node, branch]));
  const all = {
    node: null,
    title: "All branches",
    errors: sum(below.get(null) ?? [], "errors"),
    rows, // includes branches without errors, which are not listed
    depth: 0,
  };
  const worst = Math.max(...branches.map(({ errors, rows }) => errors / rows));
  const text = h("div.branch", { "aria-live": "polite" });
  const drawing = svg("svg.plot", { viewBox: `0 0 ${SIZE} ${SIZE}`, role: "group", "aria-label": "Errors by branch" });
  let root = all;

  const up = () => enter(root.parent == null ? all : byNode.get(root.parent));

  function describe(branch) {
    const worstFirst = [...(below.get(root.node) ?? [])]
      .sort((one, other) => other.errors - one.errors)
      .slice(0, LISTED);
    fill(
      text,
      h(
        "h3",
        name(branch.title || branch.node),
        " ",
        branch.node !== null && branch.title !== branch.node && h("code", name(branch.node)),
      ),
      h("p", `${count(branch.errors)} of ${count(branch.rows)} rows wrong (${percent(branch.errors / branch.rows)})`),
      branch !== all && h("p.muted", `${percent(branch.errors / Math.max(all.errors, 1))} of all errors`),
      h(
        "ul.branches",
        worstFirst.map((each) =>
          h(
            "li",
            h(
              "button.other",
              { type: "button", onclick: () => enter(each) },
              h("span", name(each.title || each.node)),
              share(each.errors / Math.max(root.errors, 1), count(each.errors)),
            ),
          ),
        ),
      ),
      root !== all && h("p", h("button.link", { type: "button", onclick: up }, "One level up")),
    );
  }

  function enter(branch) {
    root = branch;
    draw();
    describe(branch);
  }

  function draw() {
    const depth = Math.min(LEVELS, deepest(root) - root.depth);
    const thickness = (SIZE / 2 - HOLE - 2) / Math.max(depth, 1);
    const arcs = [];
    (function place(parent, from, to) {
      let start = from;
      for (const branch of below.get(parent.node) ?? []) {
        const end = start + ((to - from) * branch.errors) / Math.max(parent.errors, 1);
        const ring = branch.depth - root.depth;
        if (ring <= depth && end - start > THINNEST) {
          arcs.push(arcOf(branch, start, end, HOLE + (ring - 1) * thickness, HOLE + ring * thickness));
          place(branch, start, end);
        }
        start = end;
      }
    })(root, 0, 2 * Math.PI);
    arcs.forEach((arc, index) => arc.setAttribute("tabindex", index ? -1 : 0));
    fill(
      drawing,
      ...arcs,
      svg("text.centre", { x: SIZE / 2, y: SIZE / 2 + 3 }, count(root.errors)),
      svg("text.centre-note", { x: SIZE / 2, y: SIZE / 2 + 21 }, "errors"),
    );
  }

  function deepest(branch) {
    return Math.max(branch.depth, ...(below.get(branch.node) ?? []).map(deepest));
  }

  function arcOf(branch, start, end, inner, outer) {
    const share = branch.errors / branch.rows / worst;
    const hasBelow = below.has(branch.node);
    const label = `${branch.title || branch.node}: ${count(branch.errors)} of ${count(branch.rows)} wrong`;
    const path = svg("path", {
      d: arcPath(start, Math.min(end, start + 2 * Math.PI - 0.0001), inner, outer),
      role: "button",
      "aria-label": label,
      vars: { share },
      class: "arc",
      onfocus: () => describe(branch),
      onmouseenter: () => describe(branch),
      onclick: () => hasBelow && enter(branch),
    });
    path.addEventListener("keydown", (event) => {
      const arcs = [...drawing.querySelectorAll("path")];
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (step) {
        event.preventDefault();
        const next = arcs[(arcs.indexOf(path) + step + arcs.length) % arcs.length];
        path.setAttribute("tabindex", -1);
        next.setAttribute("tabindex", 0);
        next.focus();
      } else if ((event.key === "Enter" || event.key === " ") && hasBelow) {
        event.preventDefault();
        enter(branch);
        drawing.querySelector("path")?.focus();
      } else if (event.key === "Escape" && root !== all) up();
    });
    return path;
  }

  draw();
  describe(all);
  return h("div.sunburst", drawing, text);
}

const sum = (list, field) => list.reduce((total, item) => total + item[field], 0);

function arcPath(start, end, inner, outer) {
  const point = (angle, radius) =>
    `${(SIZE / 2 + radius * Math.sin(angle)).toFixed(2)} ${(SIZE / 2 - radius * Math.cos(angle)).toFixed(2)}`;
  const large = end - start > Math.PI ? 1 : 0;
  return `M${point(start, inner)}L${point(start, outer)}A${outer} ${outer} 0 ${large} 1 ${point(end, outer)}L${point(end, inner)}A${inner} ${inner} 0 ${large} 0 ${point(start, inner)}Z`;
}
