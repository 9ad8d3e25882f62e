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

const STATES = { y: ["passed", "✓ yes"], n: ["failed", "✗ no"], "-": ["untested", "not reached"] };

function showStates(article, decision, margin) {
  const rows = [...article.querySelectorAll(".ladder tbody tr")];
  rows.forEach((row, place) => {
    const [name, text] = STATES[decision.states[place]];
    row.className = name;
    row.lastElementChild.textContent = text;
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
}

for (const article of document.querySelectorAll(".verdict")) {
  const mover = article.querySelector('[data-part="mover"]');
  if (!mover) continue;
  const decisions = JSON.parse(article.dataset.decisions);
  mover.addEventListener("input", () => shownDecision(article, decisions, Number(mover.value)));
}
