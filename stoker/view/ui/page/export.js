// A chart as a file: its picture as PNG, its points as CSV.

/** Saves a chart with its title and its legend, [{ colour, dash, label }], as a PNG in the page's colors. */
export function savePicture(title, chart, legend, { paper, ink, font }) {
  const from = chart.ctx.canvas;
  const scale = from.width / chart.width; // device pixels to a CSS pixel
  const [margin, head, line] = [16, 36, 20].map((size) => size * scale);
  const rows = legendRows(legend, from.width / scale);
  const canvas = document.createElement("canvas");
  canvas.width = from.width + 2 * margin;
  canvas.height = head + from.height + rows.length * line + margin;
  const pen = canvas.getContext("2d");
  pen.fillStyle = paper;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(from, margin, head);
  pen.textBaseline = "middle";
  write(title, margin, head / 2, `600 ${14 * scale}px ${font}`);
  rows.forEach((row, at) => row.forEach(({ colour, dash, label, x }) => {
    const [left, middle] = [margin + x * scale, head + from.height + (at + 0.5) * line];
    pen.strokeStyle = colour;
    pen.lineWidth = 2.5 * scale;
    pen.setLineDash(dash.map((each) => each * scale));
    pen.beginPath();
    pen.moveTo(left, middle);
    pen.lineTo(left + 16 * scale, middle);
    pen.stroke();
    write(label, left + 22 * scale, middle, `${12 * scale}px ${font}`);
  }));
  canvas.toBlob((blob) => save(blob, `${title}.png`));

  function write(text, x, y, style) {
    pen.fillStyle = ink;
    pen.font = style;
    pen.fillText(text, x, y);
  }
}

/** Entries of a legend in rows that fit the width, each with its x; a letter takes about 7 pixels. */
function legendRows(legend, width) {
  const rows = [];
  let x = Infinity;
  for (const entry of legend) {
    const needed = 40 + 7 * entry.label.length;
    if (x + needed > width) {
      rows.push([]);
      x = 0;
    }
    rows.at(-1).push({ ...entry, x });
    x += needed;
  }
  return rows;
}

/** Saves lines, [{ label, x, y, low, high }], as CSV: a row for each x, a column for each line. */
export function saveNumbers(title, by, lines) {
  const columns = lines.flatMap(({ label, x, ...values }) => ["y", "low", "high"].filter((kind) => values[kind])
    .map((kind) => [kind === "y" ? label : `${label} ${kind}`, new Map(x.map((each, place) => [each, values[kind][place]]))]));
  const places = [...new Set(lines.flatMap(({ x }) => x))].sort((a, b) => a - b);
  const rows = [[by, ...columns.map(([name]) => name)], ...places.map((x) => [x, ...columns.map(([, found]) => found.get(x) ?? "")])];
  save(new Blob([rows.map((row) => `${row.map(quote).join(",")}\n`).join("")], { type: "text/csv" }), `${title}.csv`);
}

/** A cell of CSV. A text that a spreadsheet would compute as a formula begins with an apostrophe. */
function quote(cell) {
  if (typeof cell === "number") return String(cell);
  const text = /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : cell;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function save(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = name.replace(/[^\w.=-]+/g, "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
