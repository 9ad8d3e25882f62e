// The example browser: a list to choose from, and the chosen example in several settings side by side.
const browserData = JSON.parse(document.getElementById("examples-data").textContent);
const browserPart = document.getElementById("browser");
const parts = {};
for (const part of browserPart.querySelectorAll("[data-part]")) parts[part.dataset.part] = part;

const state = { group: 0, shown: [], at: 0, compared: new Set(), isChosen: false, example: null, opened: 0, words: null };

async function unpacked(chunk) {
  const bytes = Uint8Array.from(atob(chunk), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

const FILTERS = {
  all: () => true,
  losses: (example) => example.change < 0,
  gains: (example) => example.change > 0,
  same: (example) => example.change === 0,
  flagged: (example) => example.flags.length > 0,
};

// The example's score in every setting as small columns, in the order of the settings.
function strip(example, group) {
  const most = Math.max(...group.examples.flatMap((each) => each.scores.filter((score) => score !== null)), 1e-9);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "0 0 " + 5 * example.scores.length + " 16");
  svg.setAttribute("class", "strip");
  svg.setAttribute("aria-hidden", "true");
  svg.style.width = 5 * example.scores.length + "px";
  path.setAttribute("d", example.scores.map((score, place) => {
    if (score === null) return "";
    const height = Math.max(1, 15 * Math.max(0, score) / most).toFixed(1);
    return "M" + 5 * place + " 16v-" + height + "h4v" + height + "z";
  }).join(""));
  svg.append(path);
  return svg;
}

function listed(example, place, group) {
  const item = element("li", "item");
  item.setAttribute("role", "option");
  item.id = "item-" + place;
  item.dataset.place = place;
  const kind = example.change === null ? "none" : example.change < 0 ? "loss" : example.change > 0 ? "gain" : "same";
  const change = signed(group.metric, group.sign * (example.change || 0), group);
  const words = { none: "", same: "0", loss: change, gain: change };
  item.append(element("bdi", "name", example.id), strip(example, group), element("span", "gap " + kind, words[kind]));
  if (example.flags.length) {
    const dot = element("span", "dot", "⚑");
    dot.title = example.flags.map((name) => FLAG_NAMES[name] || name).join(", ");
    dot.setAttribute("aria-label", dot.title);
    item.append(dot);
  }
  return item;
}

function fillList() {
  const group = browserData.groups[state.group];
  const keep = FILTERS[parts.filter.value];
  const asked = parts.search.value.trim().toLowerCase();
  state.shown = group.examples.filter((example) => keep(example) && (!asked || holds(example, asked)));
  parts.list.replaceChildren(...state.shown.map((example, place) => listed(example, place, group)));
  parts.count.textContent = state.shown.length + " of " + group.examples.length + " shown here, " + group.num_all + " in the records";
  parts.none.hidden = state.shown.length > 0;
}

// All words of every example, unpacked once, at the first search.
function holds(example, asked) {
  return example.id.toLowerCase().includes(asked) || Boolean(state.words && state.words[example.chunk].includes(asked));
}

async function search() {
  if (!state.words && parts.search.value.trim()) {
    const chunks = await Promise.all(browserData.chunks.map(unpacked));
    state.words = chunks.map((chunk) => [chunk.prompt, chunk.reference, ...chunk.texts.map(textOf)].join("\n").toLowerCase());
  }
  fillList();
  return open(0);
}

function mark(place) {
  for (const item of parts.list.querySelectorAll('[aria-selected="true"]')) item.setAttribute("aria-selected", "false");
  const item = parts.list.children[place];
  if (!item) return;
  item.setAttribute("aria-selected", "true");
  parts.list.setAttribute("aria-activedescendant", item.id);
  const list = parts.list; // not scrollIntoView: the page itself stays where it is
  const above = item.offsetTop - list.offsetTop - list.scrollTop;
  if (above < 0) list.scrollTop += above;
  else if (above + item.offsetHeight > list.clientHeight) list.scrollTop += above + item.offsetHeight - list.clientHeight;
}

async function open(place) {
  if (!state.shown.length) return;
  state.at = Math.max(0, Math.min(state.shown.length - 1, place));
  mark(state.at);
  const opened = ++state.opened;
  const listing = state.shown[state.at];
  const example = await unpacked(browserData.chunks[listing.chunk]);
  if (opened !== state.opened) return; // the reader has gone on meanwhile
  state.example = example;
  parts.previous.disabled = state.at === 0;
  parts.next.disabled = state.at === state.shown.length - 1;
  parts.title.replaceChildren("Example ", element("bdi", "", listing.id));
  parts.link.href = linkOf(listing);
  if (!state.isChosen) compareWithChange(listing);
  parts.why.textContent = why(listing, browserData.groups[state.group]);
  for (const name of ["prompt", "reference"]) {
    parts[name].textContent = example[name] ?? "Not in these records.";
    parts[name].classList.toggle("absent", example[name] === null);
  }
  parts.prompt.scrollTop = parts.prompt.scrollHeight; // the question is at its end, after the shots
  compare();
}

function why(listing, group) {
  const parts = [listing.is_change ? "one of the largest changes from lossless" : "drawn at random"];
  if (listing.change) parts.push(signed(group.metric, group.sign * listing.change, group) + group.unit + " of " + group.metric + " at " + farthest(listing, group));
  return parts.join(", ");
}

function linkOf(listing) {
  return "#example-" + state.group + "-" + encodeURIComponent(listing.id);
}

// A link to an example opens it: its group, then its place among all.
function linked() {
  const [, group, id] = /^#example-(\d+)-(.+)$/.exec(location.hash) || [];
  if (group === undefined || !browserData.groups[group]) return null;
  const place = browserData.groups[group].examples.findIndex((each) => each.id === decodeURIComponent(id));
  return place < 0 ? null : { group: Number(group), place };
}

// The worst examples of a recommendation are links to this browser if it holds them.
for (const link of document.querySelectorAll("a[data-example]")) {
  const group = browserData.groups[link.dataset.group];
  if (group && group.examples.some((each) => each.id === link.dataset.example)) {
    link.href = "#example-" + link.dataset.group + "-" + encodeURIComponent(link.dataset.example);
  }
}

function openLinked() {
  const link = linked();
  if (!link) return false;
  parts.filter.value = "all";
  parts.search.value = "";
  parts.group.value = link.group;
  chooseGroup(link.group, link.place);
  browserPart.scrollIntoView();
  return true;
}

// Until the reader chooses settings: lossless, what is recommended, and where this example changes most.
function compareWithChange(listing) {
  const group = browserData.groups[state.group];
  state.compared = new Set(group.compared);
  if (listing.change) state.compared = new Set([...group.compared.slice(0, 1), farthestPlace(listing, group)]);
  fillSettings();
}

// The setting in which the example is farthest from lossless.
function farthest(listing, group) {
  return group.cells[farthestPlace(listing, group)].label;
}

function farthestPlace(listing, group) {
  const gaps = group.cells.map((cell, place) => {
    const base = cell.base === null || cell.is_baseline ? null : listing.scores[cell.base];
    return base === null || listing.scores[place] === null ? -1 : Math.abs(listing.scores[place] - base);
  });
  return gaps.indexOf(Math.max(...gaps));
}

function compare() {
  const group = browserData.groups[state.group];
  hideTip();
  const texts = state.example.texts.filter((text) => state.compared.has(text.cell));
  const isSampled = state.example.texts.some((text) => text.sample > 0);
  const baseOf = (text) => state.example.texts.find((other) => other.cell === group.cells[text.cell].base && other.sample === text.sample);
  parts.texts.replaceChildren(...texts.map((text) => column(text, group, baseOf(text), isSampled)));
  if (!texts.length) parts.texts.append(element("p", "hint", "Choose one or more settings above."));
}

function fillSettings() {
  const group = browserData.groups[state.group];
  const boxes = group.cells.map((cell, place) => {
    const label = element("label", "chip" + (cell.is_baseline ? " baseline" : ""));
    const box = element("input");
    box.type = "checkbox";
    box.checked = state.compared.has(place);
    box.addEventListener("change", () => {
      state.isChosen = true;
      if (box.checked) state.compared.add(place);
      else state.compared.delete(place);
      if (state.example) compare();
    });
    label.append(box, element("span", "", cell.label));
    return label;
  });
  parts.settings.replaceChildren(...boxes);
}

function chooseGroup(place, at = 0) {
  state.group = place;
  state.isChosen = false;
  state.compared = new Set(browserData.groups[place].compared);
  state.example = null;
  parts.texts.replaceChildren();
  fillSettings();
  fillList();
  return open(at);
}

function walk(event) {
  const moves = { ArrowDown: state.at + 1, ArrowUp: state.at - 1, Home: 0, End: state.shown.length - 1, PageDown: state.at + 10, PageUp: state.at - 10 };
  if (!(event.key in moves)) return;
  event.preventDefault();
  open(moves[event.key]);
}

function start() {
  parts.group.replaceChildren(...browserData.groups.map((group, place) => {
    const option = element("option", "", group.title);
    option.value = place;
    return option;
  }));
  parts.group.closest("label").hidden = browserData.groups.length < 2;
  parts.group.addEventListener("change", () => chooseGroup(Number(parts.group.value)));
  parts.filter.addEventListener("change", () => { fillList(); open(0); });
  parts.search.addEventListener("input", search);
  addEventListener("hashchange", openLinked);
  parts.list.addEventListener("keydown", walk);
  parts.list.addEventListener("click", (event) => {
    const item = event.target.closest("li");
    if (item) open(Number(item.dataset.place));
  });
  parts.previous.addEventListener("click", () => open(state.at - 1));
  parts.next.addEventListener("click", () => open(state.at + 1));
  browserPart.hidden = false;
  return openLinked() || chooseGroup(0);
}

if (typeof DecompressionStream === "undefined") {
  document.getElementById("no-browser").textContent =
    "This browser cannot unpack the examples (it has no DecompressionStream). All texts are in the records.";
} else if (browserData.groups.some((group) => group.examples.length)) {
  document.getElementById("no-browser").remove();
  start();
} else document.getElementById("no-browser").textContent = "There are no generations in these records.";
