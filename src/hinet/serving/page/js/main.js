// The frame: views, the choice of a model, shortcuts, and the state of the connection.

import * as api from "./api.js";
import { byId, failure, fill, h } from "./dom.js";
import { keep, stored } from "./storage.js";
import "./theme.js";
import "./token.js";

let views = ["classify", "file", "review", "model"]; // a project has another one, before them
const app = { service: null, models: [], model: null };
const opened = new Map(); // views by name and model
const lazily = {
  label: () => import("./label.js"),
  classify: () => import("./classify.js"),
  file: () => import("./file.js"),
  review: () => import("./review.js"),
  model: () => import("./model.js"),
};
let current = views[0];

// Views

async function show(view) {
  if (!app.model) return; // not started yet
  current = views.includes(view) ? view : views[0];
  for (const id of views) {
    const chosen = id === current;
    byId(id).hidden = !chosen;
    byId(`tab-${id}`).setAttribute("aria-selected", chosen);
    byId(`tab-${id}`).tabIndex = chosen ? 0 : -1;
  }
  document.title = `${byId(`tab-${current}`).textContent} – ${app.model.name} – hinet`;
  const panel = byId(current);
  const made = opened.get(current);
  if (made?.version === app.model.version && made.name === app.model.name) return made.view?.shown?.();
  const record = { version: app.model.version, name: app.model.name };
  opened.set(current, record);
  fill(panel, h("p.busy", "Loading …"));
  try {
    const { create } = await lazily[current]();
    record.view = create(panel, app);
  } catch (error) {
    opened.delete(view);
    fill(
      panel,
      failure(error, () => show(view)),
    );
  }
}

function goTo(view) {
  if (location.hash === `#${view}`) show(view);
  else location.hash = view;
}

for (const id of Object.keys(lazily)) byId(`tab-${id}`).addEventListener("click", () => goTo(id));
document.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
  const moves = { ArrowRight: 1, ArrowLeft: -1, Home: -views.length, End: views.length };
  if (!(event.key in moves)) return;
  event.preventDefault();
  const at = views.indexOf(current) + moves[event.key];
  const next =
    Math.abs(moves[event.key]) > 1 ? Math.max(0, Math.min(views.length - 1, at)) : (at + views.length) % views.length;
  goTo(views[next]);
  byId(`tab-${views[next]}`).focus();
});

// Start, and the choice of a model

function choose(name) {
  app.model = app.models.find((model) => model.name === name) ?? app.models[0];
  keep("hinet-model", app.model.name);
}

async function start() {
  const place = byId("start");
  try {
    const { models, failed, service } = await api.models();
    Object.assign(app, { models, service });
    const reasons = failed.map(({ name, problem }) => `Model ${name} cannot be loaded: ${problem}`);
    fill(byId("failed"), ...reasons.map((reason) => h("p.banner", reason)));
  } catch (error) {
    if (error.status === 503) {
      fill(place, h("p.busy", "The service is loading its models …"));
      setTimeout(start, 1000);
    } else fill(place, failure(error, start));
    return;
  }
  if (!app.models.length) {
    fill(
      place,
      failure(
        new api.Problem("No model is served", "Start the service with a model folder: hinet serve MODEL."),
        start,
      ),
    );
    return;
  }
  place.hidden = true;
  if (app.service.project) {
    views = ["label", ...views.filter((id) => id !== "review" || app.service.review)];
    for (const id of Object.keys(lazily)) byId(`tab-${id}`).hidden = !views.includes(id);
    document.querySelector(".brand").href = "#label";
  }
  const select = byId("model-name");
  fill(select, ...app.models.map(({ name }) => h("option", { value: name }, name)));
  choose(new URLSearchParams(location.search).get("model") ?? stored("hinet-model"));
  select.value = app.model.name;
  select.disabled = app.models.length < 2;
  select.onchange = () => {
    choose(select.value);
    history.replaceState(null, "", location.pathname + location.hash); // branches of another taxonomy
    show(current);
  };
  window.onhashchange = () => location.hash !== "#content" && show(location.hash.slice(1));
  show(location.hash.slice(1));
}

// Connection

let waiting = 0;

api.whenever("offline", () => {
  byId("banner").textContent = "The service does not answer. This page waits for it.";
  byId("banner").hidden = false;
  clearTimeout(waiting);
  waiting = setTimeout(async function again() {
    if (!(await api.isReady())) waiting = setTimeout(again, 2000);
    else {
      byId("banner").hidden = true;
      if (!app.model) start();
    }
  }, 2000);
});
api.whenever("online", () => {
  clearTimeout(waiting);
  byId("banner").hidden = true;
});

// Shortcuts: single keys, unless they are typed into a field or tree, or turned off

const help = byId("help");
byId("help-open").addEventListener("click", () => help.showModal());
byId("single-keys").checked = stored("hinet-single-keys") !== "off";
byId("single-keys").addEventListener("change", (event) => {
  keep("hinet-single-keys", event.target.checked ? "on" : "off");
});

let going = false;

document.addEventListener("keydown", (event) => {
  if (
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    event.defaultPrevented ||
    document.querySelector("dialog[open]")
  )
    return;
  const typing = event.target.closest("input:not([type=range], [type=checkbox], [type=radio]), textarea, select");
  if (typing || !byId("single-keys").checked || !app.model) return;
  if (going) {
    const view = views.find((id) => id[0] === event.key);
    going = false;
    if (view) {
      event.preventDefault();
      return goTo(view);
    }
  }
  if (event.key === "?") help.showModal();
  else if (event.key === "g") going = true;
  else if (!opened.get(current)?.view?.key?.(event.key, event)) return;
  event.preventDefault();
});

start();
