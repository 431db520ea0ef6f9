// The viewer's page. Whatever an archive holds reaches the document by textContent alone.

const SVG = "http://www.w3.org/2000/svg";
const TALLEST = 8e6; // of an element in px: browsers stop at 17 to 33 million
const BLOCK = 60; // samples that are asked for at once
const MOST_BLOCKS = 60;
const MOST_COLUMNS = 40;
const CAPTION = 20, PADDING = 5, MARGIN = 8;
const SHAPES = { picture: { width: 124, square: true }, wide: { width: 236, thumb: 104 } };
// What nobody sees, or what turns text around.
const HIDDEN = /[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

const $ = (id) => document.getElementById(id);
const shown = (text) => String(text).replace(HIDDEN, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);
const number = new Intl.NumberFormat("en").format;
const plural = (n, noun) => `${number(n)} ${noun}${n === 1 ? "" : "s"}`;

// bars: column -> where-strings of the bars that are chosen. where: of the samples in the grid, with theirs.
const state = { set: 0, info: null, where: "", bars: new Map(), count: 0, current: 0, turn: 0, opened: null };
const grid = {
  top: 0, at: 0, columns: 1, width: 0, height: 0, view: 0, shape: null,
  cells: new Map(), free: [], blocks: new Map(), asked: new Map(), settle: 0, frame: 0,
};

function el(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "text") node.textContent = shown(value);
    else if (name === "on") for (const [event, f] of Object.entries(value)) node.addEventListener(event, f);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : shown(value));
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

async function get(path, query = {}, signal = undefined) {
  let response;
  try {
    response = await fetch(`api/${path}?${new URLSearchParams(query)}`, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The viewer does not answer. Start it again, and open the URL that it prints.");
  }
  const body = await response.json();
  if (!response.ok) throw new Error(body.error);
  return body;
}

// ------------------------------------------------------------------------------------------- filter

// The text of the filter and the bars that are chosen, but for those of one column; the server joins them.
function filter(except = null) {
  const bars = [...state.bars].filter(([i]) => i !== except).map(([, wheres]) => wheres);
  return { where: $("where").value.trim(), bars: JSON.stringify(bars) };
}

const isSet = ({ where, bars }) => where !== "" || bars !== "[]";

function toggle(i, where) {
  const wheres = state.bars.get(i) ?? [];
  const left = wheres.includes(where) ? wheres.filter((other) => other !== where) : [...wheres, where];
  if (left.length) state.bars.set(i, left);
  else state.bars.delete(i);
  apply();
}

function clear() {
  $("where").value = "";
  state.bars.clear();
  apply();
}

let waiting = 0;
async function apply() {
  clearTimeout(waiting);
  const turn = ++state.turn;
  press();
  $("clear").disabled = !isSet(filter());
  try {
    const { count, where } = await get(`${state.set}/count`, filter());
    if (turn !== state.turn) return;
    complain("");
    if (where === state.where && count === state.count) return;
    Object.assign(state, { where, count, current: 0 });
    remember();
    restart();
    for (const i of $("labels").querySelectorAll("section").keys()) compare(i);
  } catch (error) {
    if (turn === state.turn) complain(error.message);
  }
}

function complain(text, isWrong = text !== "") {
  $("message").textContent = shown(text);
  $("message").title = shown(text);
  $("where").setAttribute("aria-invalid", isWrong);
  $("call").hidden = isWrong;
}

function remember() {
  const parts = new URLSearchParams();
  if (state.set) parts.set("set", state.set);
  if (state.where) parts.set("where", state.where);
  history.replaceState(null, "", parts.size ? `#${parts}` : location.pathname);
}

// --------------------------------------------------------------------------------------- histograms

async function columns() {
  const nav = $("labels"), set = state.set;
  nav.replaceChildren(el("h2", { text: "Labels" }));
  if (!state.info.columns.length) nav.append(el("p", { text: "This archive has no label columns." }));
  for (const [i, column] of state.info.columns.slice(0, MOST_COLUMNS).entries()) {
    const section = el("section", { "aria-label": column.name },
      el("h3", {}, el("span", { text: column.name, title: column.name, dir: "auto" }), el("span", { text: column.type, title: column.type })));
    nav.append(section);
    try {
      const histogram = await get(`${set}/histogram/${i}`);
      if (set !== state.set) return;
      section.append(...bars(histogram, i));
      press();
      if (state.where) compare(i);
    } catch (error) {
      section.append(el("p", { text: error.message }));
    }
  }
  const left = state.info.columns.length - MOST_COLUMNS;
  if (left > 0) nav.append(el("p", { text: `${plural(left, "more column")}; the filter takes them too` }));
}

function bars(histogram, i) {
  const most = Math.max(1, ...histogram.bars.map((bar) => bar.count));
  const buttons = histogram.bars.map((bar) => {
    const fill = el("i");
    fill.style.width = `${(100 * bar.count) / most}%`;
    fill.append(el("b"));
    const button = el("button", { class: "value", title: bar.where ?? bar.text, "aria-pressed": "false", disabled: bar.where === null,
      on: { click: () => toggle(i, bar.where) } }, fill, el("span", { class: "key", text: bar.text, dir: "auto" }), el("span", { text: number(bar.count) }));
    return Object.assign(button, { count: bar.count, column: i, where: bar.where });
  });
  if (histogram.rest > 0) buttons.push(el("p", { text: `${plural(histogram.rest, "sample")} of ${plural(histogram.rest_values, "other value")}` }));
  if (!histogram.bars.length) buttons.push(el("p", { text: "No values." }));
  return buttons;
}

// Of each bar the part that the filter keeps, drawn over the whole; but for the choice among these bars.
async function compare(i) {
  const { set, turn } = state, section = $("labels").querySelectorAll("section")[i], others = filter(i);
  const buttons = [...section.querySelectorAll("button.value")];
  try {
    const kept = isSet(others) && buttons.length ? (await get(`${set}/kept/${i}`, others)).kept : [];
    if (turn !== state.turn || set !== state.set) return;
    for (const [k, button] of buttons.entries()) {
      const count = kept[k] ?? null;
      button.classList.toggle("part", count !== null);
      button.firstChild.firstChild.style.width = `${(100 * (count ?? 0)) / Math.max(1, button.count)}%`;
      button.lastChild.textContent = number(count ?? button.count);
      button.lastChild.title = count === null ? "" : `${number(count)} of ${number(button.count)}`;
    }
  } catch (error) {
    section.append(el("p", { text: error.message }));
  }
}

function press() {
  for (const button of $("labels").querySelectorAll("button.value")) {
    button.setAttribute("aria-pressed", state.bars.get(button.column)?.includes(button.where) ?? false);
  }
}

// --------------------------------------------------------------------------------------------- grid

const rows = () => Math.ceil(state.count / grid.columns);
const whole = () => rows() * grid.height + 2 * MARGIN;
const real = () => Math.min(whole(), TALLEST);
const lowest = () => Math.max(0, whole() - grid.view);
const scaled = (top) => (lowest() ? (top / lowest()) * (real() - grid.view) : 0);
const clamp = (value, low, high) => Math.min(Math.max(value, low), Math.max(low, high));

// Begin again with another set of samples.
function restart() {
  for (const control of grid.asked.values()) control.abort();
  grid.asked.clear();
  for (const block of grid.blocks.values()) forget(block);
  grid.blocks.clear();
  for (const cell of grid.cells.values()) retire(cell);
  grid.cells.clear();
  close();
  const all = state.info.samples;
  $("count").textContent = state.where ? `${number(state.count)} of ${plural(all, "sample")}` : plural(all, "sample");
  $("code").textContent = shown(state.where ? `ds.filter(${JSON.stringify(state.where)})` : state.info.code);
  $("code").title = $("code").textContent;
  $("empty").hidden = state.count > 0;
  if (!state.count && all) say("No sample fulfils this filter", "", "Clear the filter", clear);
  else if (!all) say("No samples", "This archive holds none.");
  layout(0);
}

// Say what is waited for; "" for nothing. A moment passes before the page shows it.
function busy(text) {
  $("busy").hidden = text === "";
  $("busy").firstChild.textContent = text;
}

function say(title, text, action, run) {
  busy("");
  $("empty").hidden = false;
  $("empty").replaceChildren(el("strong", { text: title }), el("p", { text }),
    ...(action ? [el("button", { text: action, on: { click: run } })] : []));
}

function layout(position) {
  const box = $("grid"), shape = SHAPES[grid.shape ?? "picture"];
  const width = box.clientWidth - 2 * MARGIN;
  grid.view = box.clientHeight;
  grid.columns = Math.max(1, Math.floor(width / shape.width));
  grid.width = Math.floor(width / grid.columns);
  grid.thumb = shape.square ? grid.width - 2 * PADDING : shape.thumb;
  grid.height = grid.thumb + CAPTION + 2 * PADDING;
  $("spacer").style.height = `${Math.max(real(), grid.view)}px`;
  $("layer").style.height = `${grid.view}px`;
  for (const cell of grid.cells.values()) size(cell);
  move(Math.floor(position / grid.columns) * grid.height);
}

function size(cell) {
  cell.style.width = `${grid.width}px`;
  cell.style.height = `${grid.height}px`;
  cell.firstChild.style.height = `${grid.thumb}px`;
}

function move(top) {
  grid.top = clamp(top, 0, lowest());
  $("grid").scrollTop = Math.round(scaled(grid.top));
  grid.at = $("grid").scrollTop;
  draw();
}

// Small movements are taken as they are, large ones as a share of the whole; so a wheel turns at its own
// speed, and the bar reaches every sample, however many there are.
function scrolled() {
  const at = $("grid").scrollTop, moved = at - grid.at;
  if (!moved) return;
  grid.at = at;
  const end = real() - grid.view;
  if (at <= 0) grid.top = 0;
  else if (at >= end - 1) grid.top = lowest();
  else if (whole() <= TALLEST) grid.top = at;
  else if (Math.abs(moved) < grid.view) grid.top = clamp(grid.top + moved, 0, lowest());
  else grid.top = (at / end) * lowest();
  grid.frame ||= requestAnimationFrame(() => { grid.frame = 0; draw(); });
  clearTimeout(grid.settle);
  grid.settle = setTimeout(() => ($("grid").scrollTop === grid.at ? move(grid.top) : scrolled()), 200);
}

function draw() {
  const first = Math.max(0, Math.floor((grid.top - MARGIN) / grid.height)) * grid.columns;
  const last = Math.min(state.count, (Math.floor((grid.top + grid.view) / grid.height) + 1) * grid.columns);
  for (const [position, cell] of grid.cells) {
    if (position < first || position >= last) {
      grid.cells.delete(position);
      retire(cell);
    }
  }
  for (let position = first; position < last; position++) {
    const cell = grid.cells.get(position) ?? fresh(position);
    const x = MARGIN + (position % grid.columns) * grid.width;
    const y = MARGIN + Math.floor(position / grid.columns) * grid.height - grid.top;
    cell.style.transform = `translate(${x}px, ${y}px)`;
    const data = at(position);
    if (data !== cell.data) fill(cell, data);
    cell.setAttribute("aria-selected", position === state.current && (state.opened !== null || document.activeElement === $("grid")));
  }
  if (grid.cells.has(state.current)) $("grid").setAttribute("aria-activedescendant", `cell-${state.current}`);
  else $("grid").removeAttribute("aria-activedescendant");
  const waits = [...grid.cells.values()].some((cell) => !cell.data);
  busy(!waits ? "" : grid.shape === null ? "Reading the first samples. PyTorch is loaded for them, which takes a while." : "Reading samples");
  if (last > first) ask(Math.floor(first / BLOCK), Math.floor((last - 1) / BLOCK));
}

function fresh(position) {
  const cell = grid.free.pop() ?? el("div", { class: "cell", role: "option", on: { click: clicked } },
    el("div", { class: "thumb" }), el("div", { class: "cap" }, el("span"), el("span", { dir: "auto" })));
  cell.id = `cell-${position}`;
  cell.position = position;
  cell.setAttribute("aria-posinset", position + 1);
  cell.setAttribute("aria-setsize", state.count);
  size(cell);
  grid.cells.set(position, cell);
  fill(cell, at(position));
  $("layer").append(cell);
  return cell;
}

function retire(cell) {
  cell.remove();
  cell.data = undefined;
  if (grid.free.length < 300) grid.free.push(cell);
}

const at = (position) => grid.blocks.get(Math.floor(position / BLOCK))?.[position % BLOCK] ?? null;

function fill(cell, data) {
  const [thumb, caption] = cell.children;
  cell.data = data;
  thumb.replaceChildren(...(data ? [face(data)] : []));
  caption.firstChild.textContent = data ? number(data.row) : "";
  caption.lastChild.textContent = data ? shown(data.labels[0] ?? "") : "";
  cell.title = data ? shown([`sample ${data.row}`, ...state.info.columns.map((c, i) => i < data.labels.length ? `${c.name}: ${data.labels[i]}` : "").filter(Boolean), data.why ?? ""].filter(Boolean).join("\n")) : "";
  cell.setAttribute("aria-label", data ? shown(`sample ${data.row}${data.labels.length ? `, ${data.labels[0]}` : ""}`) : "");
}

function face(data) {
  if (data.url) return el("img", { src: data.url, alt: "", decoding: "async", on: { load: sharpened } });
  if (data.lines) return drawing(data.lines);
  return el("p", { class: data.why ? "why" : "", text: data.why ?? data.text ?? "", dir: "auto" });
}

// A picture of few pixels is shown with these as squares.
function sharpened({ target }) {
  target.classList.toggle("small", Math.max(target.naturalWidth, target.naturalHeight) < 64);
}

function drawing(lines) {
  const values = lines.flat().filter((value) => value !== null);
  const low = Math.min(...values), span = Math.max(...values) - low || 1;
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 100 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  for (const line of lines) {
    const polyline = document.createElementNS(SVG, "polyline");
    const points = line.map((value, i) => (value === null ? null : `${(100 * i) / Math.max(line.length - 1, 1)},${100 - (100 * (value - low)) / span}`));
    polyline.setAttribute("points", points.filter((point) => point !== null).join(" "));
    svg.append(polyline);
  }
  return svg;
}

// Ask for the blocks in sight, then for their neighbours; forget what went out of sight before it came.
function ask(first, last) {
  const end = Math.ceil(state.count / BLOCK) - 1;
  for (const [block, control] of grid.asked) {
    if (block < first - 1 || block > last + 1) {
      control.abort();
      grid.asked.delete(block);
    }
  }
  const wanted = [];
  for (let block = first; block <= last; block++) wanted.push(block);
  if (grid.shape !== null) wanted.push(Math.min(last + 1, end), Math.max(first - 1, 0));
  for (const block of wanted) {
    if (grid.asked.size < 3 && !grid.blocks.has(block) && !grid.asked.has(block)) fetchBlock(block);
  }
}

async function fetchBlock(block) {
  const control = new AbortController();
  grid.asked.set(block, control);
  try {
    const query = { where: state.where, start: block * BLOCK, count: BLOCK };
    const { cells } = await get(`${state.set}/cells`, query, control.signal);
    if (grid.asked.get(block) !== control) return;
    for (const data of cells) {
      if (!data.png) continue;
      data.url = URL.createObjectURL(new Blob([Uint8Array.from(atob(data.png), (c) => c.charCodeAt(0))], { type: "image/png" }));
      delete data.png;
    }
    keep(block, cells);
    grid.asked.delete(block);
    if (grid.shape === null) {
      const seen = cells.find((data) => data.url || data.lines || data.text);
      grid.shape = seen && !seen.url ? "wide" : "picture";
      layout(state.current);
    } else draw();
  } catch (error) {
    if (grid.asked.get(block) !== control) return;
    grid.asked.delete(block);
    if (error.name !== "AbortError") say("The samples cannot be read", error.message, "Try again", () => { $("empty").hidden = true; draw(); });
  }
}

function keep(block, cells) {
  grid.blocks.set(block, cells);
  for (const [old, data] of grid.blocks) {
    if (grid.blocks.size <= MOST_BLOCKS) break;
    if (Math.abs(old - block) < MOST_BLOCKS / 4) continue;
    forget(data);
    grid.blocks.delete(old);
  }
}

function forget(block) {
  for (const data of block) if (data.url) URL.revokeObjectURL(data.url);
}

function clicked(event) {
  select(event.currentTarget.position);
  open();
}

function select(position) {
  if (!state.count) return;
  state.current = clamp(position, 0, state.count - 1);
  const y = Math.floor(state.current / grid.columns) * grid.height;
  if (y < grid.top) move(y);
  else if (y + grid.height + 2 * MARGIN > grid.top + grid.view) move(y + grid.height + 2 * MARGIN - grid.view);
  else draw();
  if (state.opened !== null) open();
}

// ------------------------------------------------------------------------------------------- sample

async function open() {
  const position = state.current, turn = state.turn;
  const was = state.opened;
  state.opened = position;
  $("sample").hidden = false;
  if (was === null) {
    layout(Math.floor(grid.top / grid.height) * grid.columns);
    select(position);
    return;
  }
  try {
    const row = at(position)?.row ?? (await get(`${state.set}/cells`, { where: state.where, start: position, count: 1 })).cells[0].row;
    $("sample-name").textContent = `Sample ${number(row)}`;
    const sample = await get(`${state.set}/sample/${row}`);
    if (state.opened === position && turn === state.turn) $("sample-body").replaceChildren(...parts(sample));
  } catch (error) {
    if (state.opened === position) $("sample-body").replaceChildren(el("p", { class: "wrong", text: error.message }));
  }
}

function close() {
  if (state.opened === null) return;
  state.opened = null;
  $("sample").hidden = true;
  $("sample-body").replaceChildren();
  layout(Math.floor(grid.top / grid.height) * grid.columns);
}

function parts(sample) {
  const blocks = [];
  if (sample.error) blocks.push(el("p", { class: "wrong", text: sample.error }));
  for (const leaf of sample.leaves) if (leaf.media && !isShort(leaf.media)) blocks.push(figure(sample.row, leaf));
  if (sample.labels.length) blocks.push(table(["Label", "Value"], sample.labels, "facts"));
  if (sample.leaves.length) {
    blocks.push(table(["Field", "Shape", "Values"],
      sample.leaves.map((leaf) => [[leaf.path || "sample", [leaf.type, leaf.dtype].filter(Boolean).join(" ")], leaf.shape?.join(" \u00d7 "), values(leaf)]), "fields"));
  }
  return blocks;
}

// A text that the table of fields has room for.
const isShort = (media) => media.kind === "text" && media.text.length < 80 && !media.text.includes("\n");

// What the numbers of a leaf are like, or the leaf itself.
function values(leaf) {
  if ("value" in leaf) return text(leaf.value);
  const parts = ["min", "mean", "max"].filter((name) => name in leaf).map((name) => `${name} ${short(leaf[name])}`);
  if ("nonfinite" in leaf) parts.push(`${number(leaf.nonfinite)} not finite`);
  if ("items" in leaf) parts.push(plural(leaf.items, "item"));
  return parts.join("\n");
}

const short = (value) => (typeof value === "number" ? String(Number(value.toPrecision(5))) : value);

function table(names, lines, kind = "") {
  const cell = (value) => (Array.isArray(value)
    ? el("td", {}, el("span", { text: value[0] }), value[1] ? el("small", { text: value[1] }) : null)
    : el("td", { text: value ?? "", dir: "auto" }));
  return el("table", { class: kind }, el("thead", {}, el("tr", {}, ...names.map((text) => el("th", { scope: "col", text })))),
    el("tbody", {}, ...lines.map((line) => el("tr", {}, ...line.map(cell)))));
}

function figure(row, leaf) {
  const { media } = leaf;
  const picture = (axis, at) => `api/${state.set}/picture/${row}/${leaf.number}?axis=${axis}&at=${at}`;
  let body;
  if (media.kind === "image") body = el("div", { class: "picture" }, image(picture(0, 0), leaf.path));
  else if (media.kind === "volume") body = el("div", { class: "slices" }, ...media.sizes.map((n, axis) => slice(picture, axis, n)));
  else if (media.kind === "signal") body = drawing(media.lines);
  else if (media.kind === "text") body = el("pre", { text: media.text, dir: "auto", tabindex: "0", "aria-label": leaf.path });
  else body = el("p", { class: "weak", text: media.text ?? "" });
  const about = [leaf.shape?.join(" \u00d7 "), leaf.dtype].filter(Boolean).join("  ");
  return el("figure", {}, el("figcaption", {}, el("span", { class: "key", text: leaf.path || "sample", dir: "auto" }), el("span", { class: "weak", text: about })), body);
}

function image(src, name) {
  return el("img", { src, alt: name || "sample", on: { load: sharpened, error: (event) => {
    event.target.replaceWith(el("p", { class: "weak", text: "This picture cannot be shown." }));
  } } });
}

function slice(picture, axis, n) {
  const middle = Math.floor(n / 2);
  const note = el("small", { text: `axis ${axis}: ${middle} of ${n}` });
  const img = image(picture(axis, middle), `slice along axis ${axis}`);
  const slider = el("input", { type: "range", min: 0, max: n - 1, value: middle, "aria-label": `slice along axis ${axis}` });
  slider.addEventListener("input", () => {
    img.src = picture(axis, slider.value);
    note.textContent = `axis ${axis}: ${slider.value} of ${n}`;
  });
  return el("div", {}, el("div", { class: "picture" }, img), slider, note);
}

// --------------------------------------------------------------------------------- the other panels

function text(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "number") return String(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "object" ? JSON.stringify(value) : value;
}

async function missing() {
  const node = $("missing"), set = state.set;
  node.replaceChildren(el("p", { class: "weak", text: "Reading." }));
  try {
    const report = await get(`${set}/missing`);
    if (set === state.set) node.replaceChildren(...gaps(report));
  } catch (error) {
    node.replaceChildren(el("p", { class: "wrong", text: error.message }));
  }
}

function gaps(report) {
  if (!report.count) return [el("h2", { text: "Nothing is missing" }), el("p", { text: "Every sample has a record." })];
  const blocks = [el("h2", { text: `${plural(report.count, "sample")} without a record` })];
  if (report.failed.length) {
    blocks.push(el("h3", { text: "Failed when they were made" }), table(["Sample", "Error", "Next fill"], report.failed.map((one) =>
      [number(one.row), [one.error, one.message], one.final ? "leaves it out" : "tries it again"]), "failed"));
    if (report.more_failed) blocks.push(el("p", { text: `and ${number(report.more_failed)} more` }));
  }
  if (report.others.length) {
    const more = report.more_others ? ` and ${number(report.more_others)} more` : "";
    blocks.push(el("h3", { text: "Not made yet" }), el("p", { text: report.others.map(number).join("  ") + more }));
  }
  return blocks;
}

function show(tab) {
  for (const one of document.querySelectorAll("[role=tab]")) {
    const chosen = one === tab;
    one.setAttribute("aria-selected", chosen);
    one.tabIndex = chosen ? 0 : -1;
    $(one.getAttribute("aria-controls")).hidden = !chosen;
  }
  if (tab.id === "tab-missing") missing();
  if (tab.id === "tab-samples" && state.info) layout(Math.floor(grid.top / grid.height) * grid.columns);
}

// --------------------------------------------------------------------------------- keys and the rest

async function jump() {
  const typed = $("jump").value.replaceAll(",", "").trim();
  const all = state.info.samples;
  const row = /^-?\d{1,15}$/.test(typed) ? Number(typed) : NaN;
  if (!(row >= -all && row < all)) {
    complain(`no sample "${typed}"; there are ${number(all)}, from 0 on or from -1 back`, false);
    return;
  }
  complain("");
  const wanted = row < 0 ? row + all : row;
  try {
    const { position, exact } = await get(`${state.set}/position/${wanted}`, { where: state.where });
    if (!exact) complain(`sample ${number(wanted)} does not fulfil the filter; here is the next that does`, false);
    $("grid").focus();
    select(position);
  } catch (error) {
    complain(error.message, false);
  }
}

function steered(event) {
  const page = Math.max(1, Math.floor(grid.view / grid.height)) * grid.columns;
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -grid.columns, ArrowDown: grid.columns, PageUp: -page, PageDown: page };
  if (event.key in steps) select(state.current + steps[event.key]);
  else if (event.key === "Home") select(0);
  else if (event.key === "End") select(state.count - 1);
  else if (event.key === "Enter" || event.key === " ") {
    open();
    $("sample-name").focus();
  } else return;
  event.preventDefault();
}

function pressed(event) {
  const into = event.target, typing = into.matches("input, select");
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (event.key === "Escape") {
    if (typing) into.blur();
    else close();
    $("grid").focus();
    return;
  }
  if (typing) return;
  const keys = { "/": () => $("where").focus(), j: () => $("jump").focus(), "?": () => $("help").showModal() };
  if (event.key in keys) {
    if (event.key !== "?") show($("tab-samples"));
    keys[event.key]();
    if (event.key === "j") $("jump").select();
    event.preventDefault();
  } else if (!$("samples").hidden && (into === document.body || into === $("grid") || into === $("sample-name"))) steered(event);
}

async function choose(set) {
  state.set = set;
  state.info = null;
  grid.shape = null;
  $("empty").hidden = true;
  busy("Opening the archive");
  try {
    state.info = await get(`${set}`);
    document.title = `${shown(state.info.name)} - edcache`;
    $("name").textContent = shown(state.info.name.split("/").pop());
    $("name").title = shown(state.info.name);
    Object.assign(state, { where: "", count: state.info.samples, current: 0 });
    restart();
    columns();
    if (isSet(filter())) await apply();
    if (!$("missing").hidden) missing();
  } catch (error) {
    state.info = { samples: 0, columns: [], code: "" };
    state.count = 0;
    restart();
    $("labels").replaceChildren();
    say("This archive cannot be opened", error.message);
  }
}

async function begin() {
  const hash = new URLSearchParams(location.hash.slice(1));
  $("where").value = hash.get("where") ?? "";
  $("where").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(apply, 300); });
  $("where").addEventListener("keydown", (event) => event.key === "Enter" && apply());
  $("jump").addEventListener("keydown", (event) => event.key === "Enter" && jump());
  $("clear").addEventListener("click", clear);
  $("copy").addEventListener("click", async () => {
    await navigator.clipboard.writeText($("code").textContent);
    $("copy").textContent = "Copied";
    setTimeout(() => { $("copy").textContent = "Copy"; }, 1200);
  });
  $("grid").addEventListener("scroll", scrolled, { passive: true });
  for (const event of ["focus", "blur"]) $("grid").addEventListener(event, draw);
  $("close").addEventListener("click", () => { close(); $("grid").focus(); });
  $("previous").addEventListener("click", () => select(state.current - 1));
  $("next").addEventListener("click", () => select(state.current + 1));
  $("help-button").addEventListener("click", () => $("help").showModal());
  $("help-close").addEventListener("click", () => $("help").close());
  const tabs = [...document.querySelectorAll("[role=tab]")];
  for (const [i, tab] of tabs.entries()) {
    tab.addEventListener("click", () => show(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) { const other = tabs.at((i + step) % tabs.length); show(other); other.focus(); }
    });
  }
  document.addEventListener("keydown", pressed);
  let width = 0;
  new ResizeObserver(() => {
    const box = $("grid");
    if (!state.info || !box.clientWidth || (box.clientWidth === width && box.clientHeight === grid.view)) return;
    width = box.clientWidth;
    layout(grid.height ? Math.floor(grid.top / grid.height) * grid.columns : 0);
  }).observe($("grid"));
  try {
    const { sets } = await get("sets");
    $("sets-label").hidden = sets.length < 2;
    $("name").hidden = sets.length > 1;
    // Without the folder that all are in.
    let folder = sets[0].name;
    do folder = folder.slice(0, folder.lastIndexOf("/", folder.length - 2) + 1); while (!sets.every((one) => one.name.startsWith(folder)));
    $("sets").replaceChildren(...sets.map((one, i) => el("option", { value: i, text: one.name.slice(folder.length), title: one.name })));
    $("sets").addEventListener("change", () => { $("where").value = ""; state.bars.clear(); remember(); choose(Number($("sets").value)); });
    const set = clamp(Number(hash.get("set") ?? 0) || 0, 0, sets.length - 1);
    $("sets").value = set;
    await choose(set);
  } catch (error) {
    say("The viewer cannot be reached", error.message);
  }
}

begin();
