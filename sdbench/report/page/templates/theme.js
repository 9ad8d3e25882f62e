// Theme: system, light, dark; kept for the next visit. Copying a command. All closed parts are opened for printing.
const root = document.documentElement;
const themeButton = document.getElementById("theme");
const THEMES = ["system", "light", "dark"];

function showTheme() {
  const name = root.dataset.theme || "system";
  themeButton.querySelector("span").textContent = name;
  themeButton.setAttribute("aria-label", "Theme: " + name);
}

themeButton.addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(root.dataset.theme || "system") + 1) % THEMES.length];
  if (next === "system") delete root.dataset.theme;
  else root.dataset.theme = next;
  if (root.dataset.storage !== "none") {
    if (next === "system") localStorage.removeItem("sdbench-theme");
    else localStorage.setItem("sdbench-theme", next);
  }
  showTheme();
});
showTheme();

for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch (error) {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const part of closed) part.open = true;
});
addEventListener("afterprint", () => {
  for (const part of closed) part.open = false;
});

// A link to a closed part opens it.
function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const part = target && target.closest("details");
  if (part) part.open = true;
}
addEventListener("hashchange", openTarget);
openTarget();
