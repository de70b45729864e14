// The rows of a project: add texts by hand, and download tables.

import * as api from "./api.js";
import { counted, failure, fill, h, say } from "./dom.js";

const SHOWN_NEXT = 20; // added texts that come next

// open(ids) shows rows next; changed() is called when there are new rows.
export function rowsCard(open, changed) {
  const field = h("textarea", { rows: 2, dir: "auto", placeholder: "One text per line" });
  const message = h("div.problem", { role: "status" });

  async function add() {
    const texts = field.value
      .split("\n")
      .map((text) => text.trim())
      .filter(Boolean);
    if (!texts.length) return field.focus();
    try {
      const { ids, added: count } = await api.addRows(texts);
      field.value = "";
      const known = texts.length - count;
      const parts = [`${counted(count, "row")} added`, known > 0 && `${counted(known, "was", "were")} there already`];
      fill(message, h("p.muted", `${parts.filter(Boolean).join("; ")}.`));
      changed();
      await open(ids.slice(0, SHOWN_NEXT));
    } catch (error) {
      fill(message, failure(error, add));
    }
  }

  async function download(file) {
    try {
      const link = h("a", { href: URL.createObjectURL(await api.projectTable(file)), download: file });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
      say(`${file} downloaded`);
    } catch (error) {
      fill(
        message,
        failure(error, () => download(file)),
      );
    }
  }

  return h(
    "section.card.project-rows",
    h("h2", "Rows and labels"),
    h(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          add();
        },
      },
      h("label.field", "Add texts by hand", field),
      h("button", { type: "submit" }, "Add and label them next"),
    ),
    h(
      "div.downloads",
      h("h3", "Download"),
      h(
        "div.actions",
        h("button", { type: "button", onclick: () => download("labels.csv") }, "labels.csv"),
        h("button", { type: "button", onclick: () => download("history.csv") }, "history.csv"),
      ),
      h("p.muted", "The labelled rows, and who did what when. Both are safe to open in a spreadsheet."),
    ),
    message,
  );
}
