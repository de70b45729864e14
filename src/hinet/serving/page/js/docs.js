// The OpenAPI document as a page: every endpoint with its parameters, bodies and answers, and a form to try it.

import * as api from "./api.js";
import { byId, failure, fill, h, say } from "./dom.js";
import "./theme.js";
import "./token.js";

const MAX_REPLY = 50_000; // characters
const SAMPLES = { "text/csv": "text\nrye bread\n", "text/tab-separated-values": "text\nrye bread\n" };
const LINES = '{"text": "rye bread"}\n';
const TOKENS =
  "If the service was started with tokens, `/v1/…` and `/metrics` need the header `Authorization: Bearer TOKEN`.";
const BINARY = /parquet|spreadsheet/; // types of tables that are not text
let openapi = null; // the document

// Schemas

const nameOf = (schema) => schema.$ref?.split("/").at(-1);
const resolved = (schema) => (schema.$ref ? openapi.components.schemas[nameOf(schema)] : schema);
const variants = (schema) => (schema.anyOf ?? [schema]).filter(({ type }) => type !== "null");

function typeOf(schema) {
  if (schema.$ref) return nameOf(schema);
  if (schema.anyOf) return variants(schema).map(typeOf).join(" or ");
  if (schema.const != null) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.prefixItems) return `[${schema.prefixItems.map(typeOf).join(", ")}]`;
  if (schema.type === "array") return `list of ${typeOf(schema.items)}`;
  return schema.type ?? "any value";
}

// The limits of a value, in words.
function limitsOf(schema) {
  const limits = variants(schema).flatMap((variant) => [
    variant.minimum != null && `at least ${variant.minimum}`,
    variant.exclusiveMinimum != null && `above ${variant.exclusiveMinimum}`,
    variant.maximum != null && `at most ${variant.maximum}`,
    variant.maxLength != null && `at most ${variant.maxLength} characters`,
    variant.maxItems != null && `at most ${variant.maxItems}`,
  ]);
  const usual = schema.default;
  const isTold = usual != null && usual !== "" && !(Array.isArray(usual) && !usual.length);
  return [...limits, isTold && `default ${JSON.stringify(usual)}`].filter(Boolean).join(", ");
}

// The object schema of a value, if any: its own, or that of the items of a list.
function objectIn(schema) {
  for (const variant of variants(schema)) {
    const inner = resolved(variant.type === "array" ? (variant.items ?? {}) : variant);
    if (inner.properties) return inner;
  }
  return null;
}

function fieldRow(name, schema, isRequired, description = schema.description) {
  const inner = objectIn(schema);
  const limits = limitsOf(schema);
  return h(
    "li",
    h("code.field-name", name),
    " ",
    !inner && h("span.type", typeOf(schema)),
    isRequired && h("span.tag.needed", "required"),
    description && h("p", inText(description)),
    limits && h("p.muted", limits),
    inner && lazily(typeOf(schema), () => fields(inner, false)),
  );
}

// Required fields of a body are marked; an answer always has all fields.
const fields = (schema, isBody) =>
  h(
    "ul.schema",
    Object.entries(schema.properties).map(([name, field]) =>
      fieldRow(name, field, isBody && schema.required?.includes(name)),
    ),
  );

// The contents are created when it is opened.
function lazily(title, make) {
  const details = h("details", h("summary", title));
  details.addEventListener("toggle", () => details.childElementCount < 2 && details.append(make()));
  return details;
}

// Words in backticks are code.
const inText = (text) => text.split("`").map((part, index) => (index % 2 ? h("code", part) : part));

// Endpoints

function endpoint(path, method, operation) {
  const id = `${method}${path.replace(/[^a-z0-9]+/gi, "-").replace(/-$/, "")}`;
  const details = h(
    "details.endpoint.card",
    { id },
    h(
      "summary",
      h(`span.method.${method}`, method.toUpperCase()),
      " ",
      h("code.path", path),
      " ",
      h("span.summary", operation.summary),
    ),
  );
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount < 2) details.append(body(path, method, operation));
  });
  return details;
}

function body(path, method, operation) {
  const { parameters = [], requestBody, responses } = operation;
  const content = requestBody?.content ?? {};
  const asked = content["application/json"]?.schema;
  const good = Object.keys(responses).find((status) => status < 300);
  const answered = responses[good]?.content?.["application/json"]?.schema;
  return h(
    "div.endpoint-body",
    h(
      "div",
      parameters.length > 0 && [
        h("h3", "Parameters"),
        h(
          "ul.schema",
          parameters.map(({ name, schema, required, description }) => fieldRow(name, schema, required, description)),
        ),
      ],
      requestBody && [
        h("h3", "Body"),
        asked ? described(asked, true) : h("p.muted", `A table: ${Object.keys(content).join(", ")}.`),
      ],
      h("h3", `Answer ${good}`),
      answered ? described(answered, false) : h("p.muted", responses[good].description),
    ),
    tryForm(path, method, parameters, content),
  );
}

function described(schema, isBody) {
  const object = resolved(schema);
  return [object.description && h("p.muted", inText(object.description)), object.properties && fields(object, isBody)];
}

// Trying an endpoint

function tryForm(path, method, parameters, content) {
  const inputs = parameters.map((parameter) => ({
    ...parameter,
    input: h("input", { type: "text", autocomplete: "off", required: parameter.required }),
  }));
  const types = Object.keys(content);
  const choices = types.map((each) => h("option", each));
  const type = types.length > 1 && h("select", choices);
  const text = types.length > 0 && h("textarea.code", { rows: 5, spellcheck: "false" }, sample(content, types[0]));
  const file = type && h("input", { type: "file" });
  const curl = h("pre.curl", { tabindex: 0, "aria-label": "The request as a command" });
  const reply = h("div.reply", { "aria-live": "polite" });
  const button = h("button.primary", { type: "submit" }, "Send");

  function request() {
    let filled = path;
    const query = [];
    for (const { name, input, schema, in: place } of inputs) {
      if (place === "path") filled = filled.replace(`{${name}}`, encodeURIComponent(input.value));
      else if (input.value !== "") {
        const values = schema.type === "array" ? input.value.split(",") : [input.value];
        query.push(...values.map((value) => [name, value.trim()]));
      }
    }
    const url = new URL(filled.slice(1), document.baseURI);
    for (const [name, value] of query) url.searchParams.append(name, value);
    return { url, type: type ? type.value : types[0], body: file?.files?.[0] ?? (text ? text.value : null) };
  }

  function drawCurl() {
    const { url, type, body } = request();
    const parts = [`curl ${quote(url.href)}`];
    if (sessionStorage.getItem("hinet-token")) parts.push('-H "Authorization: Bearer $TOKEN"');
    if (body != null) parts.push(`-H ${quote(`Content-Type: ${type}`)}`, `--data-binary ${quote(body.name ? `@${body.name}` : body)}`);
    curl.textContent = parts.join(" \\\n  ");
  }

  async function send() {
    const { url, type, body } = request();
    button.setAttribute("aria-busy", "true");
    try {
      const headers = body == null ? {} : { "Content-Type": type };
      const response = await api.call(url, { method: method.toUpperCase(), headers, body: body ?? undefined });
      fill(reply, h("p.eyebrow", `Status ${response.status}`), await shown(response));
      say(`Status ${response.status}`);
    } catch (error) {
      fill(reply, error.status > 0 && h("p.eyebrow", `Status ${error.status}`), failure(error));
    } finally {
      button.removeAttribute("aria-busy");
      drawCurl();
    }
  }

  const form = h(
    "form.try",
    {
      oninput: (event) => {
        if (event.target === type) text.value = sample(content, type.value);
        drawCurl();
      },
      onsubmit: (event) => {
        event.preventDefault();
        send();
      },
    },
    h("h3", "Try it"),
    inputs.map(({ name, input }) => h("label.field", name, input)),
    type && h("label.field", "Content-Type", type),
    text && h("label.field", "Body", text),
    file && h("label.field", "Or a file", file),
    curl,
    h("div", button),
    reply,
  );
  drawCurl();
  return form;
}

// An answer as text, or as a link to a file if it is none.
async function shown(response) {
  if (BINARY.test(response.headers.get("Content-Type"))) {
    const blob = await response.blob();
    const size = `${blob.size.toLocaleString("en")} bytes`;
    const name = /filename="([^"]+)"/.exec(response.headers.get("Content-Disposition"))?.[1] ?? "answer";
    return h("p", h("a", { href: URL.createObjectURL(blob), download: name }, `Download the answer (${size})`));
  }
  const answer = await response.text();
  return h("pre", { tabindex: 0, "aria-label": "Answer" }, pretty(answer).slice(0, MAX_REPLY));
}

function sample(content, type) {
  const schema = content[type]?.schema ?? {};
  const example = resolved(schema).examples?.[0];
  return example ? JSON.stringify(example, null, 2) : (SAMPLES[type] ?? LINES);
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

// The page

function problems() {
  const { responses } = Object.values(openapi.paths)[0].post ?? Object.values(openapi.paths)[0].get;
  const bad = Object.entries(responses).filter(([status]) => status >= 400);
  return h(
    "section.card.problems",
    h("h2", "Problems"),
    h("p.muted", "An error is a problem object (RFC 9457) of the type application/problem+json."),
    h(
      "dl.statuses",
      bad.map(([status, { description }]) => h("div", h("dt", h("code", status)), h("dd", description))),
    ),
    lazily("Problem", () => fields(openapi.components.schemas.Problem, false)),
  );
}

function openLinked() {
  const linked = byId(decodeURIComponent(location.hash.slice(1)));
  if (!linked?.matches("details")) return;
  linked.open = true;
  linked.scrollIntoView();
}

async function start() {
  const main = byId("content");
  try {
    openapi = await (await api.call("openapi.json")).json();
  } catch (error) {
    return fill(main, failure(error, start));
  }
  const { info, paths } = openapi;
  const operations = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => endpoint(path, method, operation)),
  );
  fill(
    main,
    h("h1", `${info.title} ${info.version}`),
    h("p.muted", inText(`${info.description} ${TOKENS}`)),
    operations,
    problems(),
  );
  window.addEventListener("hashchange", openLinked);
  openLinked();
}

start();
