// One text in one setting: its scores and flags, its composition, its tokens. Arrow keys walk from token to token.
const FLAG_NAMES = {
  is_truncated: "truncated",
  is_empty: "empty",
  is_extraction_failed: "no answer found",
  is_prompt_cut: "prompt cut",
};
const FINISHES = { eos: "ended by itself", stop: "ended at a stop string", length: "ended at the length limit" };

// A score, or a difference of two, as the table writes it: times its scale; raw numbers, which may lie between 0 and 1, finer.
function scored(name, value, group) {
  const digits = group.raw.includes(name) && Math.abs(value) < 10 ? 3 : 1;
  return (value * (group.scales[name] ?? 1)).toFixed(digits).replace("-", "−").replace(/^−(0\.0+)$/, "$1");
}

function signed(name, value, group) {
  const text = scored(name, value, group);
  return value > 0 && Number(text) ? "+" + text : text;
}

function textOf(text) {
  return text.pieces ? text.pieces.join("") : text.text;
}

// How many characters two texts share from their start.
function shared(one, other) {
  let at = 0;
  while (at < one.length && at < other.length && one[at] === other[at]) at += 1;
  return at;
}

function scoreLine(text, group, base) {
  const line = element("p", "scores");
  const headline = text.scores[group.metric];
  if (headline !== undefined) {
    const strong = element("strong", "", group.metric + " " + scored(group.metric, headline, group));
    line.append(strong);
    const before = base && base !== text ? base.scores[group.metric] : undefined;
    if (before !== undefined) {
      const gap = headline - before;
      const kind = group.sign * gap < 0 ? "loss" : gap ? "gain" : "same";
      line.append(" ", element("span", "gap " + kind, gap === 0 ? "as lossless" : signed(group.metric, gap, group) + " against lossless"));
    }
  } else line.append(element("strong", "", "no score"));
  const others = Object.keys(text.scores).filter((name) => name !== group.metric);
  if (others.length) {
    line.append(element("span", "others", others.map((name) => name + " " + scored(name, text.scores[name], group)).join(" · ")));
  }
  return line;
}

function composition(text, isAlone) {
  const part = element("div", "made");
  const line = element("span", "mix");
  if (text.origins && !isAlone) {
    for (const letter of "asrb") {
      const share = [...text.origins].filter((origin) => origin === letter).length / Math.max(1, text.origins.length);
      const piece = element("span", letter);
      piece.style.width = 100 * share + "%";
      line.append(piece);
    }
    part.append(line);
  }
  const words = [text.tokens + " tokens"];
  if (!isAlone && text.examined !== null) words.push(text.accepted + " of " + text.examined + " examined drafts kept", text.rounds + " rounds");
  words.push(FINISHES[text.finish] || text.finish);
  part.append(element("span", "words", words.join(" · ")));
  return part;
}

function flags(text) {
  const list = element("p", "flags");
  for (const name of text.flags) list.append(element("span", "flag", FLAG_NAMES[name] || name));
  return list;
}

// The tokens as a list with one stop for the tabulator; arrows, Home and End move within it.
function body(text, label, isAlone, fork) {
  const box = element("div", "text" + (isAlone ? " alone" : ""));
  box.dir = "auto";
  if (!text.pieces) {
    box.append(element("span", "whole", text.text));
    return box;
  }
  box.setAttribute("role", "listbox");
  box.setAttribute("aria-orientation", "horizontal");
  box.setAttribute("aria-label", "Tokens of " + label + "; arrow keys move from token to token");
  const tokens = tokensOf(text, isAlone);
  let length = 0, isForked = fork === null;
  const spans = tokens.map((token, place) => {
    // The space before a word stays outside, so that no colour hangs at the end of a line.
    const lead = /^ +(?=\S)/.exec(token.piece);
    const span = element("span", "token " + token.origin, token.mark || token.piece.slice(lead ? lead[0].length : 0));
    if (lead) box.append(lead[0]);
    box.append(span);
    if (token.mark) span.classList.add("mark");
    if (!token.mark && !token.piece) span.classList.add("part");
    if (/^\s*\n\s*$/.test(token.piece)) span.classList.add("line");
    length += token.piece.length;
    if (!isForked && (length > fork || place === tokens.length - 1)) {
      isForked = true;
      if (length > fork) span.classList.add("fork");
    }
    span.setAttribute("role", "option");
    span.setAttribute("aria-selected", "false");
    span.setAttribute("aria-label", spoken(token));
    span.tabIndex = place === 0 ? 0 : -1;
    span.dataset.place = place;
    return span;
  });
  listen(box, spans, tokens);
  return box;
}

function listen(box, spans, tokens) {
  const spanOf = (event) => event.target.closest && event.target.closest(".token");
  box.addEventListener("pointerover", (event) => {
    const span = spanOf(event);
    if (span) showTip(span, tokens[span.dataset.place]);
  });
  box.addEventListener("pointerleave", hideTip);
  box.addEventListener("focusin", (event) => {
    const span = spanOf(event);
    if (!span) return;
    for (const other of box.querySelectorAll('[tabindex="0"]')) {
      other.tabIndex = -1;
      other.setAttribute("aria-selected", "false");
    }
    span.tabIndex = 0;
    span.setAttribute("aria-selected", "true");
    showTip(span, tokens[span.dataset.place]);
  });
  box.addEventListener("focusout", hideTip);
  box.addEventListener("keydown", (event) => {
    const span = spanOf(event);
    if (!span || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = Number(span.dataset.place);
    const isRightToLeft = getComputedStyle(box).direction === "rtl";
    const forward = isRightToLeft ? "ArrowLeft" : "ArrowRight";
    const back = isRightToLeft ? "ArrowRight" : "ArrowLeft";
    const next = { [forward]: at + 1, [back]: at - 1, Home: 0, End: spans.length - 1 }[event.key] ?? vertical(spans, at, event.key);
    if (next === undefined) return;
    event.preventDefault();
    const target = spans[Math.max(0, Math.min(spans.length - 1, next))];
    target.focus({ preventScroll: true });
    target.scrollIntoView({ block: "nearest" });
    showTip(target, tokens[target.dataset.place]);
  });
}

// The nearest token of the line above or below.
function vertical(spans, at, key) {
  if (key !== "ArrowDown" && key !== "ArrowUp") return undefined;
  const sign = key === "ArrowDown" ? 1 : -1;
  const here = spans[at].getBoundingClientRect();
  let best = at, least = Infinity;
  for (let place = at + sign; place >= 0 && place < spans.length; place += sign) {
    const there = spans[place].getBoundingClientRect();
    const down = sign * (there.top - here.top);
    if (down < here.height / 2) continue;
    if (down > 3 * here.height && least < Infinity) break;
    const distance = Math.abs(there.left - here.left) + 2 * down;
    if (distance < least) { least = distance; best = place; }
  }
  return best;
}

function column(text, group, base, isSampled) {
  const cell = group.cells[text.cell];
  const label = cell.label + (isSampled ? ", sample " + (text.sample + 1) : "");
  const part = element("section", "column");
  const fork = base && base !== text ? shared(textOf(base), textOf(text)) : null;
  part.append(element("h4", "", label), scoreLine(text, group, base), composition(text, cell.is_alone));
  if (text.flags.length) part.append(flags(text));
  const isSame = fork !== null && textOf(base) === textOf(text);
  if (isSame) part.append(element("p", "as-base", "The same text as lossless."));
  part.append(body(text, label, cell.is_alone, isSame ? null : fork));
  return part;
}
