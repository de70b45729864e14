// Tables as text: enough of CSV, TSV and JSON lines to show columns and first rows, and to count streamed rows.

export const FORMATS = {
  csv: { type: "text/csv", separator: "," },
  tsv: { type: "text/tab-separated-values", separator: "\t" },
  jsonl: { type: "application/x-ndjson" },
  parquet: { type: "application/vnd.apache.parquet", binary: true },
  xlsx: { type: "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", binary: true },
};

const ENDINGS = {
  csv: "csv",
  tsv: "tsv",
  tab: "tsv",
  jsonl: "jsonl",
  ndjson: "jsonl",
  parquet: "parquet",
  xlsx: "xlsx",
};

export const formatOf = (fileName) => ENDINGS[fileName.toLowerCase().split(".").pop()] ?? null;

function delimited(text, separator) {
  const rows = [[]];
  let cell = "";
  let quoted = false;
  for (let at = 0; at < text.length; at++) {
    const letter = text[at];
    if (quoted) {
      if (letter !== '"') cell += letter;
      else if (text[at + 1] === '"') cell += text[++at];
      else quoted = false;
    } else if (letter === '"' && !cell) quoted = true;
    else if (letter === separator || letter === "\n") {
      rows.at(-1).push(cell.replace(/\r$/, ""));
      cell = "";
      if (letter === "\n") rows.push([]);
    } else cell += letter;
  }
  if (cell) rows.at(-1).push(cell);
  return rows.filter((row) => row.length > 1 || row[0]);
}

function objectOf(line, number) {
  let value = null;
  try {
    value = JSON.parse(line);
  } catch {} // reported below
  if (value === null || typeof value !== "object" || Array.isArray(value))
    throw new Error(`line ${number} is not a JSON object such as {"text": "…"}.`);
  return value;
}

// The columns and rows at the start of a table, without an incomplete last line.
export function start(text, format, isWhole) {
  const whole = isWhole ? text : text.slice(0, text.lastIndexOf("\n") + 1);
  if (format === "jsonl") {
    const rows = whole.split("\n").flatMap((line, number) => (line.trim() ? [objectOf(line, number + 1)] : []));
    const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))];
    return { columns, rows: rows.map((row) => columns.map((column) => row[column] ?? "")) };
  }
  const [columns = [], ...rows] = delimited(whole.replace(/^\uFEFF/, ""), FORMATS[format].separator);
  return { columns, rows };
}

// Counts the lines of a streamed table; line ends within quotes do not end a row.
export function rowCounter(format) {
  let [lines, quoted] = [0, false];
  const quotes = format !== "jsonl";
  return (bytes) => {
    for (const byte of bytes) {
      if (byte === 34 && quotes) quoted = !quoted;
      else if (byte === 10 && !quoted) lines++;
    }
    return Math.max(0, lines - (quotes ? 1 : 0));
  };
}
