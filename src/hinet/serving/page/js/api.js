// The service as functions. Failures are Problems with a title and a message to show.

const TOKEN = "hinet-token";
const listeners = { offline: () => {}, online: () => {}, token: () => Promise.resolve(null) };

export class Problem extends Error {
  constructor(title, detail, status = 0, fields = []) {
    super(detail);
    Object.assign(this, { title, status, fields });
  }
}

export const whenever = (event, listener) => (listeners[event] = listener);

async function problemOf(response) {
  const wait = response.headers.get("Retry-After");
  const later = wait ? ` Try again in ${wait} s.` : "";
  try {
    const { title, detail, errors } = await response.json();
    return new Problem(title, (detail ?? "") + later, response.status, errors);
  } catch {
    return new Problem(`The service answered with status ${response.status}`, later.trim(), response.status);
  }
}

async function fetched(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    listeners.offline();
    throw new Problem("The service does not answer", "It may have stopped, or the connection is lost.");
  }
  listeners.online();
  return response;
}

export async function call(path, { method = "GET", query = {}, headers = {}, body, signal } = {}) {
  const url = new URL(path, document.baseURI);
  for (const [key, value] of Object.entries(query))
    for (const each of [value].flat()) if (each != null && each !== "") url.searchParams.append(key, each);
  const request = () => {
    const token = sessionStorage.getItem(TOKEN);
    return fetched(url, {
      method,
      body,
      signal,
      headers: token ? { ...headers, Authorization: `Bearer ${token}` } : headers,
    });
  };
  let response = await request();
  for (let tries = 0; response.status === 401 && tries < 3; tries++) {
    const token = await listeners.token();
    if (!token) break;
    sessionStorage.setItem(TOKEN, token);
    response = await request();
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

const get = async (path, query, signal) => (await call(path, { query, signal })).json();
const post = async (path, value, signal) =>
  (
    await call(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(value),
      signal,
    })
  ).json();

export const models = () => get("v1/models");
export const model = (name) => get(`v1/models/${encodeURIComponent(name)}`);
export const classify = (request, signal) => post("v1/classify", request, signal);
export const explain = (request, signal) => post("v1/explain", request, signal);
export const children = (model, node, offset = 0, limit = 50) => get("v1/taxonomy", { model, node, offset, limit });
export const search = (model, q, offset, signal) => get("v1/taxonomy/search", { model, q, offset, limit: 20 }, signal);
export const feedback = (request) => post("v1/feedback", request);
export const review = (model, order, offset) => get("v1/review", { model, order, offset, limit: 20 });
export const classifyFile = (file, query, type, signal) =>
  call("v1/classify/file", { method: "POST", query, body: file, headers: { "Content-Type": type }, signal });

// The labelling project

export const project = () => get("v1/project");
export const progress = () => get("v1/project/progress");
export const nextRows = (annotator, count) => post("v1/project/next", { annotator, count });
export const rowsById = (annotator, ids) => post("v1/project/next", { annotator, ids });
export const addRows = (texts) => post("v1/project/rows", { texts });
export const giveLabel = (label) => post("v1/project/labels", label);
export const givenLabels = (annotator, limit) => get("v1/project/labels", { annotator, limit });
export const undoLabel = (id) => call(`v1/project/labels/${id}`, { method: "DELETE" });
export const disagreements = (offset, limit) => get("v1/project/disagreements", { offset, limit });
export const projectTable = async (name) =>
  (await call(`v1/project/${name}`, { query: { escape_formulas: true } })).blob();

export async function isReady() {
  try {
    return (await fetch(new URL("ready", document.baseURI))).ok;
  } catch {
    return false;
  }
}
