"use strict";
// Texts of policies and of web pages are shown by textContent alone: nothing in them is ever markup.
const ROW = 44, FATES = ["kept", "pruned", "duplicate", "played out", "lost"];
const by = id => document.getElementById(id);
const state = { index: null, found: [], at: -1, turn: -1, beside: null, company: null, tree: true, blocks: new Map(), job: 0, search: 0 };

function el(tag, className, ...parts) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...parts.filter(part => part !== null && part !== undefined));
  return made;
}
const number = (value, digits = 3) => Number(value.toPrecision(digits)).toString();
const many = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;

async function unpack(id) {
  const packed = Uint8Array.from(atob(by(id).textContent.trim()), sign => sign.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}
function lines(block) {  // of a block: one episode each, decoded when one of them is asked for
  if (!state.blocks.has(block)) {
    if (state.blocks.size > 24) state.blocks.delete(state.blocks.keys().next().value);
    state.blocks.set(block, unpack("block-" + block).then(text => text.split("\n")));
  }
  return state.blocks.get(block);
}
async function episode(i) {
  const [block, line] = place(i);
  return JSON.parse((await lines(block))[line]);
}
function place(i) {
  const starts = state.index.starts;
  let low = 0, high = starts.length - 1;
  while (low < high) { const middle = (low + high + 1) >> 1; if (starts[middle] <= i) low = middle; else high = middle - 1; }
  return [low, i - starts[low]];
}

// -- what an environment said -------------------------------------------------------------------------------------
const BOARDS = {
  sokoban: { "#": "wall", "_": "", "O": "target", "√": "done", "X": "box", "P": "player", "S": "player" },
  lake: { "P": "player", "_": "ice", "O": "hole", "G": "goal", "X": "dead", "√": "done" },
};
function board(rows, kinds) {
  const made = el("div", "board");
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", rows.join("\n"));
  made.style.gridTemplateColumns = `repeat(${[...rows[0]].length}, auto)`;
  for (const row of rows) for (const sign of row) made.append(el("i", kinds[sign], "#_".includes(sign) ? "" : sign));
  return made;
}
function withBoards(text, kinds) {
  const made = el("div"), plain = [], rows = [];
  const isRow = line => line.length > 1 && [...line].every(sign => sign in kinds);
  const flush = () => {
    if (rows.length > 1) made.append(board(rows.splice(0), kinds));
    else plain.push(...rows.splice(0));
    if (plain.length) made.append(el("pre", "", plain.splice(0).join("\n")));
  };
  for (const line of text.split("\n")) {
    if (isRow(line) && (!rows.length || [...rows[0]].length === [...line].length)) {
      if (!rows.length) { const kept = plain.splice(0); if (kept.length) made.append(el("pre", "", kept.join("\n"))); }
      rows.push(line);
    } else { if (rows.length) flush(); plain.push(line); }
  }
  flush();
  return made;
}
const BUTTON = /^(back to search|search|< prev|next >|description|features|reviews|attributes|buy now)$/i;
function shop(text) {
  const made = el("div", "page"), buttons = el("div", "buttons"), parts = text.includes(" [SEP] ") ? text.split(" [SEP] ") : text.split("\n");
  let wished = false;
  for (let i = 0; i < parts.length; i++) {
    const part = parts[i].trim(), product = part.match(/^(.+) (\$[\d.]+(?: to \$[\d.]+)?) \[(.+)\]$/);
    const words = part.split(", "), option = part.match(/^([\w ]+): (.+, .+)$/);
    if (!part || /^(WebShop|Instruction:)$/.test(part)) continue;
    if (part.startsWith("No valid action")) made.append(el("div", "warn", part));
    else if (product) made.append(el("div", "product", el("code", "", product[3]), product[1], el("b", "", product[2])));
    else if (/^\$[\d.]+( to \$[\d.]+)?$/.test(part)) made.append(el("div", "product", el("b", "", part)));
    else if (words.every(word => BUTTON.test(word))) buttons.append(...words.map(word => el("span", "", word)));
    else if (!wished && /^(find me|i need|i want|i'm looking|i am looking)/i.test(part)) { made.append(el("div", "wish", part)); wished = true; }
    else if (option && wished) made.append(el("div", "option", option[1], ...option[2].split(", ").map(value => el("span", "", value))));
    else made.append(el("div", "", part));
  }
  if (buttons.childNodes.length) made.append(buttons);
  return made;
}
function content(text, look) {
  if (look in BOARDS) return withBoards(text, BOARDS[look]);
  return look === "shop" ? shop(text) : el("pre", "", text);
}
const said = (messages, look) => el("div", "said", ...messages.map(([role, text]) =>
  role === "user" ? content(text, look) : el("div", "", el("span", "role", role), el("pre", "", text))));

// -- an episode -----------------------------------------------------------------------------------------------------
const fate = node => FATES[node.fate], cls = node => fate(node).split(" ")[0];
const path = shown => shown.nodes.map((node, i) => ({ ...node, i })).filter(node => node.fate === 0);
function figures(node, withFate) {
  const parts = [["tokens", node.tokens], ["reward", number(node.reward)]];
  if (node.logprob !== null) parts.unshift(["probability", number(Math.exp(node.logprob))]);
  for (const name of ["score", "env_score", "value", "advantage", "weight"])
    if (node[name] !== null) parts.push([name.replace("env_", "environment's "), number(node[name])]);
  const made = el("div", "figures", ...parts.map(([name, value]) => el("span", "", `${name} ${value}`)));
  if (!node.valid) made.append(el("span", "bad", "invalid"));
  else if (!node.effective) made.append(el("span", "warn", "without effect"));
  if (!node.finished) made.append(el("span", "warn", "cut off"));
  if (withFate) made.append(el("span", "fate " + cls(node), fate(node)), el("span", "", node.why));
  return made;
}
function candidate(node, i, look) {
  const made = el("div", "candidate", el("div", "", el("small", "", `node ${i}`)), figures(node, true), el("pre", "response", node.text));
  if (node.obs.length) made.append(el("details", "", el("summary", "", "what came of it"), said(node.obs, look)));
  return made;
}
function tint(card, node, most) {
  if (node.advantage === null || !most) return;
  const share = Math.min(1, Math.abs(node.advantage) / most), sign = node.advantage >= 0 ? "20, 128, 74" : "180, 35, 24";
  card.style.borderLeftColor = `rgba(${sign}, ${0.25 + 0.75 * share})`;
  card.style.background = `rgba(${sign}, ${0.12 * share})`;
}
function turnCard(shown, node, k, look, most) {
  const others = shown.nodes.map((other, i) => ({ ...other, i })).filter(other => other.parent === node.parent && other.i !== node.i);
  const before = node.parent === null ? shown.obs : shown.nodes[node.parent].obs;
  const card = el("article", "turn", el("div", "head", el("b", "", `turn ${k + 1}`), node.why || null),
    said(before, look), el("pre", "response", node.text), figures(node, false));
  tint(card, node, most);
  if (others.length) {
    const more = el("details", "others", el("summary", "", `${many(others.length, "other candidate")} in this state`));
    more.addEventListener("toggle", () => {
      if (more.open && more.childNodes.length === 1) more.append(...others.map(other => candidate(other, other.i, look)));
    });
    card.append(more);
  }
  return card;
}
function lanesOf(nodes) {  // each node is in one lane; a lane begins where its first node leaves another
  const below = nodes.map(() => []), lanes = [];
  nodes.forEach((node, i) => { if (node.parent !== null) below[node.parent].push(i); });
  const best = (one, other) => (nodes[one].fate - nodes[other].fate) || ((nodes[other].score ?? -Infinity) - (nodes[one].score ?? -Infinity)) || one - other;
  const run = start => {
    const lane = [start];
    while (below[lane.at(-1)].length) lane.push([...below[lane.at(-1)]].sort(best)[0]);
    lanes.push(lane);
    for (const i of lane) for (const other of [...below[i]].sort(best)) if (!lane.includes(other)) run(other);
  };
  nodes.map((_, i) => i).filter(i => nodes[i].parent === null).sort(best).forEach(run);
  return lanes;
}
const brief = text => text.replace(/<[^>]*>/g, " ").trim() || "(empty)";
const legend = () => el("div", "figures", ...FATES.map(name => el("span", "fate " + name.split(" ")[0], name)));
function tree(shown, look) {
  const nodes = shown.nodes, lanes = lanesOf(nodes), depth = Math.max(...nodes.map(node => node.turn));
  const table = el("table"), chosen = el("div", "chosen"), head = el("tr");
  for (let k = 1; k <= depth; k++) head.append(el("th", "", `turn ${k}`));
  table.append(head);
  for (const lane of lanes) {
    const row = el("tr"), first = nodes[lane[0]].turn;
    for (let k = 1; k < first; k++) row.append(el("td", "", el("div", "shared" + (k === first - 1 ? " last" : ""))));
    for (const i of lane) {
      const node = nodes[i], figure = node.score ?? node.reward;
      const chip = el("button", "chip " + cls(node), el("span", "", brief(node.text)), el("span", "", number(figure)));
      chip.type = "button";
      chip.title = `${fate(node)}${node.why && ": "}${node.why}`;
      chip.dataset.node = i;
      chip.setAttribute("aria-label", `node ${i}, turn ${node.turn}, ${fate(node)}: ${node.text}`);
      chip.addEventListener("click", () => {
        table.querySelectorAll(".chosen").forEach(other => other.classList.remove("chosen"));
        chip.classList.add("chosen");
        chosen.replaceChildren(candidate(node, i, look));
        chosen.querySelectorAll("details").forEach(more => { more.open = true; });
      });
      row.append(el("td", "", chip));
    }
    table.append(row);
  }
  return el("section", "tree", el("h3", "", `search tree: ${nodes.length} responses, ${lanes.length} branches`), legend(), chosen, el("div", "lanes", table));
}
function column(i, shown) {
  const row = rowOf(i), look = state.index.looks[row.task], kept = path(shown);
  const most = Math.max(0, ...shown.nodes.map(node => Math.abs(node.advantage ?? 0)));
  const outcome = el("b", row.success ? "good" : "bad", shown.ended ?? "not ended");
  const facts = el("p", "facts", outcome, `, return ${number(row.return)}, ${many(kept.length, "turn")}, ${shown.strategy}, ${shown.origin}; instance ${row.instance}, member ${row.member}; ${state.index.files[row.file]}`);
  const cards = el("div", "turns", ...kept.map((node, k) => turnCard(shown, node, k, look, most)));
  if (kept.length && kept.at(-1).obs.length) cards.append(el("article", "turn", el("div", "head", el("b", "", "end")), said(kept.at(-1).obs, look)));
  const panes = el("div", "panes", cards, shown.nodes.length > kept.length ? tree(shown, look) : null);
  return el("article", "episode", el("h2", "", state.index.tasks[row.task]), facts, panes);
}
function rowOf(i) {
  const columns = state.index.columns, row = {};
  for (const name in columns) row[name] = columns[name][i];
  return row;
}
async function show() {
  const i = state.found[state.at], job = ++state.job;
  if (i === undefined) return by("shown").replaceChildren(el("p", "", "No episode fits."));
  const shown = await episode(i), other = state.beside === null ? null : await episode(state.beside);
  if (job !== state.job) return;
  const columns = el("div", (other ? "two " : "") + (state.tree ? "" : "no-tree"), column(i, shown), other && column(state.beside, other));
  columns.id = "columns";
  by("shown").replaceChildren(...[besideChoice(i), columns].filter(Boolean));
  by("shown").scrollTop = 0;
  state.turn = -1;
}
function twins(i) {  // other files first, and of these the same member; environments of one label may differ in their tasks
  const { instance, task, initial, file, member } = state.index.columns, found = [];
  const same = j => instance[j] === instance[i] && task[j] === task[i] && initial[j] === initial[i];
  for (let j = 0; j < instance.length; j++) if (j !== i && same(j)) found.push(j);
  const far = j => 2 * (file[j] === file[i]) + (member[j] !== member[i]);
  return found.sort((one, other) => far(one) - far(other) || one - other);
}
function putBeside(j) {  // and the file of the next episodes' company
  state.beside = j;
  state.company = j === null ? null : state.index.columns.file[j];
  return show();
}
function companion() {
  const i = state.found[state.at], { file } = state.index.columns;
  return i === undefined || state.company === null ? null : twins(i).find(j => file[j] === state.company) ?? null;
}
function besideChoice(i) {
  const same = twins(i);
  if (!same.length) return null;
  const choice = el("select", "", new Option("beside it: nothing", ""));
  choice.id = "beside";
  choice.setAttribute("aria-label", "another episode of the same instance beside it");
  for (const j of same) {
    const row = rowOf(j);
    choice.append(new Option(`beside it: ${state.index.files[row.file]}, member ${row.member}, ${row.success ? "success" : "failure"}, return ${number(row.return)}`, j));
  }
  choice.value = state.beside ?? "";
  choice.addEventListener("change", () => putBeside(choice.value === "" ? null : Number(choice.value)));
  return choice;
}

// -- the list ---------------------------------------------------------------------------------------------------------
function draw() {
  const list = by("list"), first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
  const last = Math.min(state.found.length, first + Math.ceil(list.clientHeight / ROW) + 8);
  by("rows").style.height = state.found.length * ROW + "px";
  const made = [];
  for (let k = first; k < last; k++) {
    const row = rowOf(state.found[k]);
    const item = el("div", "row", el("span", row.success ? "good" : "bad", row.success ? "✓ " : "✗ "), `return ${number(row.return)} · ${many(row.turns, "turn")} · ${row.strategy}`,
      el("small", "", `instance ${row.instance}, member ${row.member} · ${state.index.files[row.file]}`));
    item.style.top = k * ROW + "px";
    item.setAttribute("role", "option");
    item.setAttribute("aria-selected", String(k === state.at));
    item.addEventListener("click", () => select(k));
    made.push(item);
  }
  by("rows").replaceChildren(...made);
}
function select(k) {
  if (k < 0 || k >= state.found.length) return;
  const list = by("list");
  state.at = k;
  state.beside = companion();
  if (k * ROW < list.scrollTop) list.scrollTop = k * ROW;
  if ((k + 1) * ROW > list.scrollTop + list.clientHeight) list.scrollTop = (k + 1) * ROW - list.clientHeight;
  document.body.classList.add("reading");
  draw();
  return show();
}
function texts(shown) {
  const said = [...shown.obs, ...shown.nodes.flatMap(node => node.obs)].map(([, content]) => content);
  return said.concat(shown.nodes.map(node => node.text));
}
function bound(id, fallback) { const text = by(id).value; return text === "" ? fallback : Number(text); }
async function filter() {
  const columns = state.index.columns, search = ++state.search, words = by("search").value.trim().toLowerCase();
  const asked = { success: by("outcome").value, task: by("task").value, file: by("file").value };
  const least = bound("least", -Infinity), most = bound("most", Infinity), shortest = bound("shortest", 0), longest = bound("longest", Infinity);
  let found = [];
  for (let i = 0; i < columns.return.length; i++) {
    if (columns.return[i] < least || columns.return[i] > most || columns.turns[i] < shortest || columns.turns[i] > longest) continue;
    if (Object.entries(asked).every(([name, value]) => value === "" || columns[name][i] === Number(value))) found.push(i);
  }
  if (words) {
    const needle = JSON.stringify(words).slice(1, -1), all = found;
    found = [];
    for (const i of all) {
      const [block, line] = place(i);
      const raw = (await lines(block))[line];
      if (raw.toLowerCase().includes(needle) && texts(JSON.parse(raw)).some(text => text.toLowerCase().includes(words))) found.push(i);
      if (search !== state.search) return;
    }
  }
  state.found = found;
  by("counts").textContent = `${found.length.toLocaleString("en")} of ${columns.return.length.toLocaleString("en")} episodes`;
  by("list").scrollTop = 0;
  state.at = found.length ? 0 : -1;
  state.beside = companion();
  draw();
  return show();
}
function turn(step) {
  const cards = [...document.querySelectorAll("#columns .episode:first-child .turn")];
  if (!cards.length) return;
  state.turn = Math.max(0, Math.min(cards.length - 1, state.turn + step));
  cards.forEach((card, k) => card.classList.toggle("current", k === state.turn));
  const more = cards[state.turn].querySelector("details.others");
  if (more) more.open = true;
  cards[state.turn].scrollIntoView({ block: "nearest" });
}
const KEYS = {
  j: () => select(state.at + 1), k: () => select(state.at - 1), n: () => turn(1), p: () => turn(-1),
  ArrowDown: () => select(state.at + 1), ArrowUp: () => select(state.at - 1),
  t: () => { state.tree = !state.tree; by("columns")?.classList.toggle("no-tree", !state.tree); },
  c: () => { const same = twins(state.found[state.at]); putBeside(same[same.indexOf(state.beside) + 1] ?? null); },
  "/": () => { document.body.classList.remove("reading"); by("search").focus(); },
};
document.addEventListener("keydown", event => {
  if (event.key === "Escape") return event.target.blur();
  if (/INPUT|SELECT/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  event.preventDefault();
  KEYS[event.key]();
});
let waiting = 0;
by("filters").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filter, 150); });
by("filters").addEventListener("submit", event => event.preventDefault());
by("list").addEventListener("scroll", draw);
window.addEventListener("resize", () => state.index && draw());
by("show-list").addEventListener("click", () => { document.body.classList.toggle("reading"); draw(); });
by("show-help").addEventListener("click", event => { by("help").hidden = !by("help").hidden; event.target.setAttribute("aria-expanded", String(!by("help").hidden)); });
unpack("index").then(async text => {
  state.index = JSON.parse(text);
  await filter();
  document.body.dataset.ready = String(Math.round(performance.now()));
});
