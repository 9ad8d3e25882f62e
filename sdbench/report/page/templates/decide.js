// The margin is moved: what was decided for it stands in the page already; here it is only shown.
function shownDecision(article, decisions, margin) {
  const part = (name) => article.querySelector('[data-part="' + name + '"]');
  const text = margin >= 10 ? margin.toFixed(0) : margin.toFixed(margin >= 1 ? 1 : 2);
  const decision = decisions.filter((one) => one.from < margin).pop() || decisions[0];
  article.className = "verdict " + decision.kind;
  part("margin").textContent = text;
  part("headline").textContent = decision.headline;
  part("sentence").textContent = decision.text.replaceAll("{margin}", text);
  part("facts").replaceChildren(...decision.facts.map(([title, value, limits]) => {
    const fact = element("div"), told = element("dd");
    told.append(element("b", "", value), limits ? " " : "", limits ? element("small", "", limits) : "");
    fact.append(element("dt", "", title), told);
    return fact;
  }));
  showStates(article, decision, margin);
}

// Two decimals where one would read as a tie with the margin.
function signed(points, digits) {
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
    if (Number.isFinite(worst)) limit.textContent = signed(worst, Math.abs(worst + margin) < 0.05 ? 2 : 1);
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

// Names where there is room: first what is recommended and lossless, then what failed, then the others; the rest on hover.
function nameMarks(svg) {
  const marks = [...svg.querySelectorAll(".point")], taken = marks.map((mark) => mark.querySelector(".dot").getBBox());
  const rank = (mark) => ["advised", "best", "rejected"].findIndex((name) => mark.classList.contains(name)) + 4 * !/advised|best|rejected/.test(mark.getAttribute("class"));
  for (const mark of marks) mark.classList.remove("named", "crowded");
  for (const mark of marks.sort((a, b) => rank(a) - rank(b))) {
    mark.classList.add("named");
    const text = mark.querySelector("text"), box = text.getBBox();
    const isFree = box.x > 0 && box.x + box.width < svg.viewBox.baseVal.width && box.y > 0 && taken.every((other) =>
      box.x + box.width < other.x || other.x + other.width < box.x || box.y + box.height < other.y || other.y + other.height < box.y);
    if (isFree || mark.classList.contains("advised")) taken.push(box);
    else {
      mark.classList.remove("named");
      mark.classList.add("crowded");
    }
  }
}

for (const svg of document.querySelectorAll(".plane svg")) nameMarks(svg);

for (const article of document.querySelectorAll(".verdict")) {
  const mover = article.querySelector('[data-part="mover"]');
  if (!mover) continue;
  const decisions = JSON.parse(article.dataset.decisions);
  mover.addEventListener("input", () => shownDecision(article, decisions, Number(mover.value)));
}
