// The viewer's page. Whatever an archive holds reaches the document by textContent alone.

const SVG = "http://www.w3.org/2000/svg";
const TALLEST = 8e6; // of an element in px: browsers stop at 17 to 33 million
const BLOCK = 60; // samples that are asked for at once
const MOST_BLOCKS = 60;
const MOST_COLUMNS = 40;
const CAPTION = 20, PADDING = 5, MARGIN = 8;
const TILE = 124; // the side of a tile, which the size scales
const SHAPES = { picture: { width: TILE, square: true }, wide: { width: 236, thumb: 104 } };
const SIDES = [128, 256, 512]; // of the small pictures that the server makes
// What nobody sees, or what turns text around.
const HIDDEN = /[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

const $ = (id) => document.getElementById(id);
const shown = (text) => String(text).replace(HIDDEN, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);
const number = new Intl.NumberFormat("en").format;
const plural = (n, noun) => `${number(n)} ${noun}${n === 1 ? "" : "s"}`;

// bars: column -> where-strings of the bars that are chosen. where: of the samples in the grid, with theirs. opened: the
// position of the sample beside the grid, and row its number. off: the paths of masks and boxes that are switched off.
const state = {
  set: 0, info: null, where: "", bars: new Map(), count: 0, current: 0, turn: 0, opened: null, row: null,
  order: "", caption: 0, tile: TILE, off: new Set(), sounds: [], isTyping: false,
};
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
async function apply({ isBack = false, isTyped = false } = {}) {
  clearTimeout(waiting);
  const turn = ++state.turn;
  press();
  $("clear").disabled = !isSet(filter());
  try {
    const { count, where } = await get(`${state.set}/count`, filter());
    if (turn !== state.turn) return;
    complain("");
    if (where === state.where && count === state.count && !isBack) return;
    Object.assign(state, { where, count, current: 0 });
    restart();
    // What is typed letter by letter is one entry of the history.
    if (!isBack) remember(isTyped && state.isTyping);
    state.isTyping = isTyped;
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

// ---------------------------------------------------------------------------------------------- URL

// Write what is seen into the URL. A new entry of the history, so that Back returns; the old one for a small change.
function remember(isSmall = false) {
  const parts = new URLSearchParams();
  if (state.set) parts.set("set", state.set);
  if (state.where) parts.set("where", state.where);
  if (state.order) parts.set("order", state.order);
  if (state.caption) parts.set("caption", state.info.columns[state.caption]?.name ?? "");
  if (state.tile !== TILE) parts.set("size", state.tile);
  if (state.row !== null) parts.set("sample", state.row);
  const hash = parts.size ? `#${parts}` : "";
  const kept = { text: $("where").value.trim(), bars: [...state.bars] };
  state.isTyping = false;
  if (hash === location.hash || isSmall) history.replaceState(kept, "", hash || location.pathname);
  else history.pushState(kept, "", hash || location.pathname);
}

// Show what the URL says. kept: the text of the filter and the bars apart, which the URL has as one.
async function restore(kept, isFirst = false) {
  const hash = new URLSearchParams(location.hash.slice(1));
  const where = hash.get("where") ?? "", order = hash.get("order") ?? "";
  $("where").value = kept?.text ?? where;
  complain("");
  state.bars = new Map(kept?.bars ?? []);
  if (isFirst) state.tile = clamp(Number(hash.get("size")) || TILE, Number($("size").min), Number($("size").max));
  const set = clamp(Number(hash.get("set")) || 0, 0, $("sets").options.length - 1);
  $("sets").value = set;
  if (isFirst || set !== state.set) await choose(set, order, hash.get("caption"));
  else if (where !== state.where || order !== state.order) {
    options(order, state.info.columns[state.caption]?.name);
    await apply({ isBack: true });
  } else press();
  const sample = /^\d{1,15}$/.test(hash.get("sample") ?? "") ? Number(hash.get("sample")) : null;
  if (sample === null) close();
  else if (sample !== state.row) await reveal(sample);
  remember(true);
}

// Fill the choices of order and caption, and take these.
function options(order, caption) {
  const { columns } = state.info, isList = ({ type }) => type.includes("<");
  const choices = [["", "as stored"], [order.startsWith("random ") ? order : "random", "random"],
    ...columns.filter((column) => !isList(column)).flatMap(({ name }) => [[`up ${name}`, `${name} \u2191`], [`down ${name}`, `${name} \u2193`]])];
  const chosen = Math.max(0, choices.findIndex(([value]) => value === order));
  state.order = choices[chosen][0];
  state.caption = Math.max(0, columns.findIndex((column) => column.name === caption));
  $("order").replaceChildren(...choices.map(([, text], i) => el("option", { value: i, text })));
  $("order").selectedIndex = chosen;
  $("order").orders = choices.map(([value]) => value);
  $("again").hidden = !state.order.startsWith("random ");
  $("caption").replaceChildren(...columns.map(({ name }, i) => el("option", { value: i, text: name })));
  $("caption").selectedIndex = state.caption;
  $("caption-label").hidden = columns.length < 2;
  $("size").value = state.tile;
}

function reorder(order) {
  options(order === "random" ? `random ${Math.floor(Math.random() * 1e9)}` : order, state.info.columns[state.caption]?.name);
  state.current = 0;
  restart();
  remember();
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
      if (i === 0) $("where").placeholder = shown(histogram.bars.find((bar) => bar.where)?.where ?? "");
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

// Drop what was read for the grid.
function drop() {
  for (const control of grid.asked.values()) control.abort();
  grid.asked.clear();
  for (const block of grid.blocks.values()) forget(block);
  grid.blocks.clear();
  for (const cell of grid.cells.values()) retire(cell);
  grid.cells.clear();
}

// The line of Python that makes the same view; it has no word for the random order of this page.
function code() {
  const [word, name] = [state.order.split(" ")[0], state.order.slice(state.order.indexOf(" ") + 1)];
  const filtered = state.where ? `.filter(${JSON.stringify(state.where)})` : "";
  const sorted = { up: `.sort_by(${JSON.stringify(name)})`, down: `.sort_by(${JSON.stringify(name)}, descending=True)` }[word] ?? "";
  return filtered || sorted ? `ds${filtered}${sorted}` : state.info.code;
}

// Begin again with another set of samples.
function restart() {
  drop();
  close();
  const all = state.info.samples;
  $("count").textContent = state.where ? `${number(state.count)} of ${plural(all, "sample")}` : plural(all, "sample");
  $("code").textContent = shown(code());
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
  const width = box.clientWidth - 2 * MARGIN, scale = state.tile / TILE;
  grid.view = box.clientHeight;
  grid.columns = Math.max(1, Math.floor(width / (shape.width * scale)));
  grid.width = Math.floor(width / grid.columns);
  grid.thumb = shape.square ? grid.width - 2 * PADDING : Math.round(shape.thumb * scale);
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
  caption.lastChild.textContent = data ? shown(data.caption) : "";
  cell.title = data ? shown([`sample ${data.row}`, ...state.info.columns.map((c, i) => i < data.labels.length ? `${c.name}: ${data.labels[i]}` : "").filter(Boolean), data.why ?? ""].filter(Boolean).join("\n")) : "";
  cell.setAttribute("aria-label", data ? shown(`sample ${data.row}${data.caption ? `, ${data.caption}` : ""}`) : "");
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
  const svg = svgNode("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const line of lines) {
    const points = line.map((value, i) => (value === null ? null : `${(100 * i) / Math.max(line.length - 1, 1)},${100 - (100 * (value - low)) / span}`));
    svg.append(svgNode("polyline", { points: points.filter((point) => point !== null).join(" ") }));
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

function resize() {
  const before = side();
  state.tile = Number($("size").value);
  if (side() !== before) drop();
  layout(Math.floor(grid.top / grid.height) * grid.columns);
}

async function fetchBlock(block) {
  const control = new AbortController();
  grid.asked.set(block, control);
  try {
    const { where, order, caption } = state;
    const query = { where, order, caption, side: side(), start: block * BLOCK, count: BLOCK };
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

// The small pictures that the tiles need.
const side = () => SIDES.find((one) => one >= state.tile) ?? SIDES.at(-1);

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
  bring(event.currentTarget.position);
  open();
}

function select(position) {
  bring(position);
  if (state.opened !== null && state.count) load();
}

// Make a sample the current one, and move it into sight.
function bring(position) {
  if (!state.count) return;
  state.current = clamp(position, 0, state.count - 1);
  const y = Math.floor(state.current / grid.columns) * grid.height;
  if (y < grid.top) move(y);
  else if (y + grid.height + 2 * MARGIN > grid.top + grid.view) move(y + grid.height + 2 * MARGIN - grid.view);
  else draw();
}

// ------------------------------------------------------------------------------------------- sample

// isBack: the URL names the sample already.
function open(isBack = false) {
  if (state.opened === null) {
    state.opened = state.current;
    $("sample").hidden = false;
    layout(Math.floor(grid.top / grid.height) * grid.columns);
    bring(state.current);
  }
  return load(isBack);
}

async function load(isBack = false) {
  const position = state.current, { turn, where, order } = state;
  state.opened = position;
  try {
    const row = at(position)?.row ?? (await get(`${state.set}/cells`, { where, order, start: position, count: 1 })).cells[0].row;
    if (state.opened !== position || turn !== state.turn) return;
    const isNew = state.row === null;
    state.row = row;
    if (!isBack) remember(!isNew);
    const name = `Sample ${number(row)}`;
    if (isNew) $("sample-name").textContent = name;
    const sample = await get(`${state.set}/sample/${row}`);
    if (state.opened !== position || turn !== state.turn) return;
    mute();
    $("sample-name").textContent = name;
    $("sample-body").replaceChildren(...parts(sample));
  } catch (error) {
    if (state.opened === position) $("sample-body").replaceChildren(el("p", { class: "wrong", text: error.message }));
  }
}

function close() {
  state.row = null;
  if (state.opened === null) return;
  state.opened = null;
  $("sample").hidden = true;
  mute();
  $("sample-body").replaceChildren();
  layout(Math.floor(grid.top / grid.height) * grid.columns);
}

function leave() {
  if (state.opened === null) return;
  close();
  remember();
}

// Forget the sounds of the sample that was opened.
function mute() {
  for (const url of state.sounds.splice(0)) URL.revokeObjectURL(url);
}

// Open a sample by its number, as the URL has it.
async function reveal(row) {
  try {
    const { position, exact } = await get(`${state.set}/position/${row}`, { where: state.where, order: state.order });
    if (!exact) throw new Error(`sample ${number(row)} does not fulfil the filter`);
    state.current = position;
    await open(true);
  } catch (error) {
    complain(error.message, false);
  }
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
  const about = [leaf.shape?.join(" \u00d7 "), leaf.dtype].filter(Boolean).join("  ");
  return el("figure", {}, el("figcaption", {}, el("span", { class: "key", text: leaf.path || "sample", dir: "auto" }), el("span", { class: "weak", text: about })), ...body(row, leaf));
}

// What shows a leaf, by its kind.
function body(row, { number: leaf, path, media }) {
  const src = (axis, at, of = leaf, over = 0) => `api/${state.set}/picture/${row}/${of}?${new URLSearchParams({ axis, at, over })}`;
  const rest = (text) => el("pre", { text, dir: "auto", tabindex: "0", "aria-label": path });
  if (media.kind === "image") return [el("div", { class: "picture" }, image(src(0, 0), path, media.sizes), ...layers(media, (mask) => src(0, 0, mask, 1))), switches(media)];
  if (media.kind === "film") return [el("div", { class: "film" }, slice(src, media, 0, "frame")), switches(media)];
  if (media.kind === "volume") return [el("div", { class: "slices" }, ...media.sizes.map((_, axis) => slice(src, media, axis, `axis ${axis}:`))), switches(media)];
  if (media.kind === "signal") return [drawing(media.lines)];
  if (media.kind === "sound") return [drawing(media.lines), player(`api/${state.set}/sound/${row}/${leaf}`)];
  if (media.kind === "text") return [rest(media.text)];
  if (media.kind === "tokens" && media.text === null) return [rest(media.numbers)];
  if (media.kind === "tokens") return [rest(media.text), el("details", {}, el("summary", { text: "Numbers" }), rest(media.numbers))];
  return [el("p", { class: "weak", text: media.text ?? "" })];
}

function image(src, name, [height, width] = []) {
  return el("img", { src, alt: name || "sample", width, height, on: { load: sharpened, error: (event) => {
    event.target.replaceWith(el("p", { class: "weak", text: "This picture cannot be shown." }));
  } } });
}

// The masks and boxes that lie over a picture, each of which a switch hides.
function layers(media, src) {
  const masks = media.masks.map(({ number, path }) => Object.assign(el("img", { class: "layer", src: src(number), alt: "" }), { path, mask: number }));
  const boxes = media.boxes.map(({ path, corners, names }) => Object.assign(outlines(corners, names, media.sizes), { path }));
  for (const layer of [...masks, ...boxes]) layer.toggleAttribute("hidden", state.off.has(layer.path));
  return [...masks, ...boxes];
}

function switches({ masks, boxes }) {
  if (!masks.length && !boxes.length) return null;
  const one = (path, text) => el("label", {}, el("input", { type: "checkbox", checked: !state.off.has(path), on: { change: ({ target }) => {
    if (target.checked) state.off.delete(path);
    else state.off.add(path);
    for (const layer of target.closest("figure").querySelectorAll(".layer")) if (layer.path === path) layer.toggleAttribute("hidden", !target.checked);
  } } }), text);
  return el("div", { class: "layers" }, ...masks.map(({ path }) => one(path, shown(path))), ...boxes.map(({ path, form }) => one(path, shown(`${path} (${form})`))));
}

// A box has the color of its name, and its name in its upper left corner.
function outlines(corners, names, [height, width]) {
  const svg = svgNode("svg", { class: "layer", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const kinds = [...new Set(names)], size = Math.max(width, height) / 26;
  for (const [i, [left, top, right, bottom]] of corners.entries()) {
    const color = `hsl(${(137.5 * (kinds.indexOf(names[i]) + 2)) % 360} 95% 60%)`;
    svg.append(svgNode("rect", { x: left, y: top, width: right - left, height: bottom - top, stroke: color }));
    const isRight = left > width * 0.6; // where the name goes to the left
    const place = { x: isRight ? right - size / 5 : left + size / 5, y: top + size, "font-size": size, "text-anchor": isRight ? "end" : "start" };
    if (names.length) svg.append(Object.assign(svgNode("text", place), { textContent: shown(names[i]) }));
  }
  return svg;
}

function svgNode(tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function slice(src, media, axis, name) {
  const n = media.sizes[axis], note = el("small"), box = el("div", { class: "picture" });
  const slider = el("input", { type: "range", min: 0, max: n - 1, value: Math.floor(n / 2), "aria-label": name });
  const img = image(src(axis, slider.value), name, media.sizes.slice(0, 3).filter((_, i) => i !== axis));
  const over = layers(media, (mask) => src(axis, slider.value, mask, 1));
  const tell = () => { note.textContent = `${name} ${slider.value} of ${n}`; };
  slider.addEventListener("input", () => {
    img.src = src(axis, slider.value);
    for (const layer of over) layer.src = src(axis, slider.value, layer.mask, 1);
    tell();
  });
  tell();
  box.append(img, ...over);
  return el("div", {}, box, slider, note);
}

// The sound is fetched as a whole: in a part of it no browser could jump.
function player(src) {
  const audio = el("audio", { controls: true });
  fetch(src).then((response) => (response.ok ? response.blob() : Promise.reject(response))).then((blob) => {
    if (!audio.isConnected) return;
    state.sounds.push(URL.createObjectURL(blob));
    audio.src = state.sounds.at(-1);
  }).catch(() => audio.replaceWith(el("p", { class: "weak", text: "This sound cannot be played." })));
  return audio;
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
    const { position, exact } = await get(`${state.set}/position/${wanted}`, { where: state.where, order: state.order });
    if (!exact) complain(`sample ${number(wanted)} does not fulfil the filter; here is the ${state.order ? "first" : "next"} that does`, false);
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
    else leave();
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

async function choose(set, order = "", caption = null) {
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
    options(order, caption);
    restart();
    columns();
    if (isSet(filter())) await apply({ isBack: true });
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
  $("where").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => apply({ isTyped: true }), 300); });
  $("where").addEventListener("keydown", (event) => event.key === "Enter" && apply());
  $("order").addEventListener("change", () => reorder($("order").orders[$("order").selectedIndex]));
  $("again").addEventListener("click", () => reorder("random"));
  $("caption").addEventListener("change", () => { state.caption = $("caption").selectedIndex; drop(); draw(); remember(true); });
  $("size").addEventListener("input", resize);
  $("size").addEventListener("change", () => remember(true));
  $("options").open = innerWidth > 700;
  addEventListener("popstate", (event) => restore(event.state));
  $("jump").addEventListener("keydown", (event) => event.key === "Enter" && jump());
  $("clear").addEventListener("click", clear);
  $("copy").addEventListener("click", async () => {
    await navigator.clipboard.writeText($("code").textContent);
    $("copy").textContent = "Copied";
    setTimeout(() => { $("copy").textContent = "Copy"; }, 1200);
  });
  $("grid").addEventListener("scroll", scrolled, { passive: true });
  for (const event of ["focus", "blur"]) $("grid").addEventListener(event, draw);
  $("close").addEventListener("click", () => { leave(); $("grid").focus(); });
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
    $("sets").addEventListener("change", async () => {
      $("where").value = "";
      state.bars.clear();
      await choose(Number($("sets").value));
      remember();
    });
    await restore(history.state, true);
  } catch (error) {
    say("The viewer cannot be reached", error.message);
  }
}

begin();
