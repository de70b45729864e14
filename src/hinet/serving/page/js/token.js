// The dialog that asks for a token if the service needs one.

import * as api from "./api.js";
import { h } from "./dom.js";

const value = h("input", {
  type: "password",
  id: "token-value",
  autocomplete: "off",
  required: true,
  "aria-describedby": "token-why",
});
const dialog = h(
  "dialog",
  { id: "token", "aria-labelledby": "token-title" },
  h(
    "form",
    { method: "dialog" },
    h("h2", { id: "token-title" }, "A token is required"),
    h("p", { id: "token-why" }, "This service answers only with a token. It is kept until you close this tab."),
    h("label.field", "Token", value),
    h("p.end", h("button.primary", { value: "use" }, "Use it")),
  ),
);
let asking = null;

document.body.append(dialog);
api.whenever("token", () => {
  asking ??= new Promise((resolve) => {
    value.value = "";
    dialog.returnValue = "";
    dialog.showModal();
    dialog.addEventListener(
      "close",
      () => {
        asking = null;
        resolve(dialog.returnValue === "use" ? value.value : null);
      },
      { once: true },
    );
  });
  return asking;
});
