// Elements from values. Children that are strings become text, never HTML.

const SVG = "http://www.w3.org/2000/svg";

// build(make, "span.name", {title: "x"}, child, …): the attributes may be left out, `vars` are CSS variables, `on…` listeners.
function build(make, selector, content) {
  const [tag, ...classes] = selector.split(".");
  const element = make(tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  const hasAttributes = content[0]?.constructor === Object;
  for (const [name, value] of Object.entries(hasAttributes ? content[0] : {})) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const key of Object.keys(value)) element.style.setProperty(`--${key}`, value[key]);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...shown(hasAttributes ? content.slice(1) : content));
  return element;
}

const shown = (children) => children.flat(Infinity).filter((child) => child != null && child !== false);

export const fill = (element, ...children) => element.replaceChildren(...shown(children));
export const h = (selector, ...content) => build((tag) => document.createElement(tag), selector, content);
export const svg = (selector, ...content) => build((tag) => document.createElementNS(SVG, tag), selector, content);
export const byId = (id) => document.getElementById(id);

// Text of the service or a user, with its own direction, isolated from the surrounding text.
export const name = (text) => h("bdi.name", text);

export function say(message) {
  byId("status").textContent = "";
  requestAnimationFrame(() => (byId("status").textContent = message));
}

const whole = new Intl.NumberFormat("en");
export const count = (number) => whole.format(number);
export const counted = (number, one, several = `${one}s`) => `${count(number)} ${number === 1 ? one : several}`;

export function percent(share) {
  if (share > 0 && share < 0.001) return "<0.1%";
  if (share < 1 && share > 0.999) return ">99.9%";
  return `${(100 * share).toFixed(share < 0.1 || share > 0.99 ? 1 : 0).replace(/\.0$/, "")}%`;
}

export const exactPercent = (share) => `${(100 * share).toFixed(1)}%`;
export const signed = (number) => (number < 0 ? "−" : "+") + Math.abs(number).toFixed(2);

export const meter = (share) => h("span.meter", { vars: { p: share } });
export const share = (probability, text = percent(probability)) =>
  h("span.share", meter(probability), h("span.percent", text));

// A message instead of content that is empty, failed, or turned off.
export const note = (title, detail, action) => h("div.note", h("h3", title), detail && h("p", detail), action);

// Client errors fail again when retried.
export const mayPass = ({ status = 0 }) => status < 400 || status >= 500 || [408, 429].includes(status);

export const failure = (error, retry, label = mayPass(error) && "Try again") =>
  h(
    "div.note.failed",
    { role: "alert" },
    h("h3", error.title ?? "Something went wrong"),
    error.message && h("p", error.message),
    error.fields?.length > 1 &&
      h(
        "ul",
        error.fields.map(({ field, message }) => h("li", h("code", field), ` ${message}`)),
      ),
    retry && label && h("button", { type: "button", onclick: retry }, label),
  );
