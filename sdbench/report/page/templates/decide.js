// The page already holds the decision for every margin: moving the slider only shows the one for the margin, rounded as it is written.
function shownDecision(article, decisions, moved) {
  const part = (name) => article.querySelector('[data-part="' + name + '"]');
  const text = moved.toFixed(moved >= 10 ? 0 : moved >= 1 ? 1 : 2), margin = Number(text);
  const decision = decisions.filter((each) => each.from < margin || (each.has_from && each.from === margin)).pop() || decisions[0];
  article.className = "verdict " + decision.kind;
  part("margin").textContent = text;
  part("headline").textContent = decision.headline;
  part("sentence").textContent = decision.text.replaceAll("{margin}", text);
  part("facts").replaceChildren(...decision.facts.map(([title, value, limits]) => {
    const fact = element("div"), number = element("dd");
    number.append(element("b", "", value), limits ? " " : "", limits ? element("small", "", limits) : "");
    fact.append(element("dt", "", title), number);
    return fact;
  }));
  showStates(article, decision, margin);
}

// Two decimals where one would read as a tie with the margin.
function limitText(points, digits) {
  const text = Math.abs(points).toFixed(digits);
  return (Number(text) ? (points < 0 ? "−" : "+") : "") + text;
}

const STATES = { y: ["passed", "✓ yes"], n: ["failed", "✗ no"], "-": ["untested", "not reached"] };

function showStates(article, decision, margin) {
  const rows = [...article.querySelectorAll(".ladder tbody tr")];
  rows.forEach((row, place) => {
    const [name, text] = STATES[decision.states[place]];
    row.className = name;
    row.querySelector(".mark").textContent = text;
    const limit = row.querySelector(".limit"), worst = Number(limit.dataset.worst);
    if (Number.isFinite(worst)) limit.textContent = limitText(worst, Math.abs(worst + margin) < 0.05 ? 2 : 1);
  });
  const ladder = article.querySelector(".ladder");
  if (ladder) ladder.style.setProperty("--margin", Number(ladder.dataset.zero) - Number(ladder.dataset.point) * margin + "%");
  const svg = article.querySelector(".plane svg");
  if (!svg) return;
  const { zero, point, bottom } = svg.dataset;
  svg.querySelector('[data-part="band"]').setAttribute("height", Math.min(point * margin, bottom - zero));
  for (const mark of svg.querySelectorAll(".point")) {
    mark.classList.toggle("advised", mark.dataset.cell === decision.setting);
    mark.classList.toggle("rejected", rows.some((row) => row.dataset.cell === mark.dataset.cell && row.className === "failed"));
  }
  nameMarks(svg);
}

// Show names where there is room: first of the recommended setting and of lossless, then of failed ones, then others; the rest on hover.
// Names of the classes in NEEDED are shown wherever they cover no other name; their marks are drawn above the others.
const NEEDED = ["advised", "best", "rejected"];
const SPOTS = [[1, -9], [-1, -9], [1, 18], [-1, 18], [1, -27], [-1, -27], [1, 36], [-1, 36]]; // side, and how far down

function nameMarks(svg) {
  const marks = [...svg.querySelectorAll(".point")].sort((a, b) => rankOf(a) - rankOf(b));
  for (const mark of marks) mark.classList.replace("crowded", "named") || mark.classList.add("named");
  const measured = marks.map((mark) => [mark.querySelector("text").getBBox(), mark.querySelector(".dot").getBBox()]);
  const dots = measured.map(([, dot]) => dot), names = [];
  const [left, right, top, bottom] = ["left", "right", "top", "bottom"].map((side) => Number(svg.dataset[side]));
  marks.forEach((mark, place) => {
    const text = mark.querySelector("text"), [size, dot] = measured[place];
    const ascent = Number(text.getAttribute("y")) - size.y;
    const [x, y] = [dot.x + dot.width / 2, dot.y + dot.height / 2];
    const isNeeded = rankOf(mark) < NEEDED.length;
    const spots = SPOTS.slice(0, isNeeded ? SPOTS.length : 2).map(([side, down]) => ({ side, down, width: size.width, height: size.height,
      x: side > 0 ? x + 10 : x - 10 - size.width, y: y + down - ascent }));
    const cost = (box) => 100 * names.filter((other) => overlap(box, other)).length + dots.filter((other) => overlap(box, other)).length;
    const inside = spots.filter((box) => box.x > left && box.x + box.width < right + 10 && box.y > top - 18 && box.y + box.height < bottom);
    const best = inside.map((box) => ({ ...box, cost: cost(box) })).sort((a, b) => a.cost - b.cost)[0];
    if (!best || best.cost >= (isNeeded ? 100 : 1)) return mark.classList.replace("named", "crowded");
    names.push(best);
    text.setAttribute("x", best.side > 0 ? x + 10 : x - 10);
    text.setAttribute("y", y + best.down);
    text.setAttribute("text-anchor", best.side > 0 ? "start" : "end");
  });
  for (const mark of marks.reverse()) mark.parentNode.append(mark);
}

function rankOf(mark) {
  const rank = NEEDED.findIndex((name) => mark.classList.contains(name));
  return rank < 0 ? NEEDED.length : rank;
}

function overlap(a, b) {
  return a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
}

for (const svg of document.querySelectorAll(".plane svg")) nameMarks(svg);

for (const article of document.querySelectorAll(".verdict")) {
  const mover = article.querySelector('[data-part="mover"]');
  if (!mover) continue;
  const decisions = JSON.parse(article.dataset.decisions);
  mover.addEventListener("input", () => shownDecision(article, decisions, Number(mover.value)));
}
