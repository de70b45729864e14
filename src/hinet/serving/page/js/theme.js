// Light or dark: as the system, until the button is pressed.

import { byId } from "./dom.js";
import { keep, stored } from "./storage.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
const chosenTheme = () => document.documentElement.dataset.theme;

function paint(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  byId("theme").setAttribute("aria-pressed", (chosenTheme() ?? (dark.matches ? "dark" : "light")) === "dark");
}

byId("theme").addEventListener("click", () => {
  const theme = byId("theme").getAttribute("aria-pressed") === "true" ? "light" : "dark";
  paint(theme);
  keep("hinet-theme", theme);
});
dark.addEventListener("change", () => paint());
paint(stored("hinet-theme"));
