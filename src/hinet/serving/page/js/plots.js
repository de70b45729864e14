// Small plots in SVG, with the same values as a table below.

import { count, exactPercent, h, meter, percent, svg } from "./dom.js";

const [WIDTH, HEIGHT] = [360, 250];
const AREA = { left: 52, right: 12, top: 10, bottom: 40 };
const across = WIDTH - AREA.left - AREA.right;
const down = HEIGHT - AREA.top - AREA.bottom;
const QUARTERS = [0, 0.25, 0.5, 0.75, 1];

function axes({ xTitle, yTitle, label, yMax = 1, xTicks = QUARTERS, xText = percent }, ...content) {
  const x = (value) => AREA.left + value * across;
  const y = (value) => AREA.top + (1 - value / yMax) * down;
  const drawn = svg(
    "svg.plot",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
    QUARTERS.map((tick) => svg("line.grid", { x1: x(0), x2: x(1), y1: y(tick * yMax), y2: y(tick * yMax) })),
    QUARTERS.map((tick) =>
      svg("text", { x: AREA.left - 7, y: y(tick * yMax) + 4, "text-anchor": "end" }, percent(tick * yMax)),
    ),
    xTicks.map((tick) =>
      svg("text", { x: x(tick), y: HEIGHT - AREA.bottom + 17, "text-anchor": "middle" }, xText(tick)),
    ),
    svg("text", { x: x(0.5), y: HEIGHT - 4, "text-anchor": "middle" }, xTitle),
    svg("text", { x: -(AREA.top + down / 2), y: 10, transform: "rotate(-90)", "text-anchor": "middle" }, yTitle),
  );
  drawn.append(...content.map((draw) => draw(x, y)).flat());
  return drawn;
}

const line = (points, x, y) =>
  svg("polyline.curve", { points: points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ") });

export function table(caption, columns, rows) {
  return h(
    "details",
    h("summary", "As a table"),
    h(
      "div.table-box",
      { tabindex: 0, role: "region", "aria-label": caption },
      h(
        "table",
        h(
          "thead",
          h(
            "tr",
            columns.map((column) => h("th", { scope: "col", class: "number" }, column)),
          ),
        ),
        h(
          "tbody",
          rows.map((row) =>
            h(
              "tr",
              row.map((cell) => h("td.number", cell)),
            ),
          ),
        ),
      ),
    ),
  );
}

// Accuracy against confidence; bars are the shares of rows.
export function calibration(bins) {
  const most = Math.max(...bins.map(({ share }) => share), 1e-9);
  const width = Math.max(4, across / 24);
  return [
    axes(
      { xTitle: "confidence", yTitle: "right answers", label: "Calibration: share of right answers by confidence" },
      (x, y) =>
        bins.map(({ confidence, share }) =>
          svg("rect.rows", {
            x: x(confidence) - width / 2,
            width,
            y: y((share / most) * 0.5),
            height: y(0) - y((share / most) * 0.5),
          }),
        ),
      (x, y) => svg("line.ideal", { x1: x(0), y1: y(0), x2: x(1), y2: y(1) }),
      (x, y) =>
        line(
          bins.map(({ confidence, accuracy }) => [confidence, accuracy]),
          x,
          y,
        ),
      (x, y) =>
        bins.map(({ confidence, accuracy, share }) =>
          svg(
            "circle.dot",
            { cx: x(confidence), cy: y(accuracy), r: 4 },
            svg("title", `confidence ${percent(confidence)}: ${percent(accuracy)} right, ${percent(share)} of rows`),
          ),
        ),
    ),
    table(
      "Calibration",
      ["confidence", "right", "rows"],
      bins.map(({ confidence, accuracy, share }) => [confidence, accuracy, share].map(percent)),
    ),
  ];
}

// Share of wrong answers by coverage, with a line at the calibrated threshold.
export function coverage(points, risk) {
  const highest = Math.max(...points.map((point) => point.risk), 0.01);
  const yMax = [0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1].find((value) => value >= highest) ?? 1;
  const at = risk && points.findLast(({ threshold }) => threshold >= risk.threshold);
  const every = Math.ceil(points.length / 12);
  return [
    axes(
      {
        xTitle: "rows answered, surest first",
        yTitle: "wrong answers",
        label: "Coverage: share of wrong answers by share of rows answered",
        yMax,
      },
      (x, y) =>
        line(
          points.map(({ coverage: share, risk: wrong }) => [share, wrong]),
          x,
          y,
        ),
      (x, y) =>
        at
          ? [
              svg("line.threshold", { x1: x(at.coverage), x2: x(at.coverage), y1: y(0), y2: y(yMax) }),
              svg(
                "text.threshold-text",
                { x: x(at.coverage) - 6, y: y(yMax) + 14, "text-anchor": "end" },
                `calibrated: ${percent(at.coverage)} answered`,
              ),
            ]
          : [],
    ),
    table(
      "Coverage",
      ["confidence", "answered", "wrong"],
      points
        .filter((_, index) => index % every === 0 || index === points.length - 1)
        .map(({ threshold, coverage: share, risk: wrong }) => [threshold, share, wrong].map(percent)),
    ),
  ];
}

// Accuracy by the number of labels, with its interval as a band.
export function learning(points) {
  const most = points.at(-1).labels;
  const step =
    [1, 2, 5]
      .flatMap((digit) => [1, 10, 100, 1e3, 1e4, 1e5].map((unit) => digit * unit))
      .sort((a, b) => a - b)
      .find((value) => most / value <= 4.5) ?? most;
  const xTicks = Array.from({ length: Math.floor(most / step) + 1 }, (_, index) => (index * step) / most);
  const at = ({ labels }) => labels / most;
  return [
    axes(
      {
        xTitle: "labels",
        yTitle: "right answers",
        label: `Accuracy by the number of labels, ${percent(points.at(-1).accuracy)} at last`,
        xTicks,
        xText: (tick) => count(Math.round(tick * most)),
      },
      (x, y) =>
        svg("polygon.band", {
          points: [
            ...points.map((point) => [at(point), point.high]),
            ...points.toReversed().map((point) => [at(point), point.low]),
          ]
            .map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`)
            .join(" "),
        }),
      (x, y) =>
        points.length === 1
          ? svg("line.spread", { x1: x(1), x2: x(1), y1: y(points[0].low), y2: y(points[0].high) })
          : line(
              points.map((point) => [at(point), point.accuracy]),
              x,
              y,
            ),
      (x, y) => [points.at(-1)].map((point) => svg("circle.dot", { cx: x(at(point)), cy: y(point.accuracy), r: 4 })),
    ),
    table(
      "Accuracy by the number of labels",
      ["labels", "right", "from", "to"],
      points.map(({ labels, accuracy, low, high }) => [count(labels), ...[accuracy, low, high].map(percent)]),
    ),
  ];
}

export function levels(accuracies) {
  return h(
    "ol.levels",
    accuracies.map((accuracy, index) =>
      h("li", h("span", `Level ${index + 1}`), meter(accuracy), h("span.percent", exactPercent(accuracy))),
    ),
  );
}
