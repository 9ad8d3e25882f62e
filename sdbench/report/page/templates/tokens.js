// One token and what is known about it. Texts are a model's words: they go into the page by textContent alone.
const ORIGINS = {
  a: { name: "accepted draft", text: "The draft proposed it and the rule kept it." },
  s: { name: "sure draft", text: "The drafter was sure of it, and the rule kept it without the target's judgement." },
  r: { name: "replacement", text: "The draft's token was rejected; this one was drawn instead." },
  b: { name: "bonus", text: "The target's own token after a fully kept draft." },
  o: { name: "own token", text: "This model decodes alone: nothing was drafted." },
};

function element(name, className, text) {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function probability(thousandths) {
  if (thousandths === undefined || thousandths === null) return null;
  return thousandths < 0 ? "< 0.001" : (thousandths / 1000).toFixed(3);
}

// The text with its white space made visible.
function visible(text) {
  if (!text) return "(no text)";
  return text.replace(/\r?\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ +| +$/g, (run) => "␣".repeat(run.length));
}

// The tokens of a text as the tooltip needs them: {piece, origin, round, slot, p, q, tv, refused, mark}.
function tokensOf(text, isAlone) {
  let judged = 0, replaced = 0, round = 1, slot = 0;
  return text.pieces.map((piece, place) => {
    const origin = text.origins[place];
    const token = { piece, origin: isAlone ? "o" : origin, round, slot: slot + 1, mark: text.marks && text.marks[place] };
    if (origin !== "b") {
      for (const name of ["p", "q", "tv"]) token[name] = text[name] ? text[name][judged] : null;
      judged += 1;
    }
    if (origin === "r") token.refused = text.refused?.[replaced++];
    slot += 1;
    if (origin === "r" || origin === "b") { round += 1; slot = 0; }
    return token;
  });
}

function spoken(token) {
  const parts = [visible(token.mark || token.piece), ORIGINS[token.origin].name];
  if (token.refused !== undefined) parts.push("refused " + visible(token.refused));
  for (const name of ["p", "q", "tv"]) {
    const value = probability(token[name]);
    if (value) parts.push((name === "tv" ? "TV" : name) + " " + value);
  }
  return parts.join(", ");
}

// The tooltip: one for the page. It follows the pointer's token or the focused one; Escape hides it.
const tip = element("div", "tip");
tip.setAttribute("role", "status");
tip.hidden = true;
let pointed = tip; // the token that it describes
document.body.append(tip);

function meter(name, thousandths, title) {
  const row = element("div", "meter");
  const share = Math.max(0, Math.min(1000, thousandths)) / 10;
  const line = element("span", "line");
  const fill = element("span", "fill " + name);
  fill.style.width = share + "%";
  line.append(fill);
  row.append(element("span", "name", name === "tv" ? "TV" : name), line, element("span", "number", probability(thousandths)));
  row.title = title;
  return row;
}

function showTip(span, token) {
  tip.replaceChildren();
  const head = element("p", "tip-head");
  const name = element("span", "origin " + token.origin, ORIGINS[token.origin].name);
  head.append(element("bdi", "piece", visible(token.mark || token.piece)), name);
  tip.append(head);
  if (token.refused !== undefined) {
    const line = element("p", "tip-text", "The draft's ");
    line.append(element("bdi", "piece", visible(token.refused)), " was refused:");
    tip.append(line);
  }
  const has = (key) => token[key] !== null && token[key] !== undefined;
  if (has("p")) tip.append(meter("p", token.p, "the target's probability of the drafted token"));
  if (has("q")) tip.append(meter("q", token.q, "the draft's probability of the drafted token"));
  if (has("tv")) tip.append(meter("tv", token.tv, "total variation between the two distributions here"));
  if (!has("p")) tip.append(element("p", "tip-text", ["a", "r"].includes(token.origin) ? "p and q were not recorded." : ORIGINS[token.origin].text));
  if (token.origin !== "o") tip.append(element("p", "tip-foot", "round " + token.round + ", slot " + token.slot));
  tip.hidden = false;
  pointed = span;
  place(span);
}

function place(span) {
  tip.style.removeProperty("left");
  tip.style.removeProperty("top");
  if (matchMedia("(max-width: 40rem)").matches) return; // there it is a bar at the foot of the screen
  const at = span.getClientRects()[0] || span.getBoundingClientRect();
  const box = tip.getBoundingClientRect();
  const left = Math.max(8, Math.min(at.left, document.documentElement.clientWidth - box.width - 8));
  const below = at.bottom + 6 + box.height < innerHeight || at.top < box.height + 12;
  tip.style.left = left + "px";
  tip.style.top = (below ? at.bottom + 6 : at.top - box.height - 6) + "px";
}

function hideTip() {
  tip.hidden = true;
}
addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
addEventListener("scroll", () => {
  if (tip.hidden) return;
  if (pointed.matches(":hover, :focus")) place(pointed);
  else hideTip();
}, { passive: true, capture: true });
