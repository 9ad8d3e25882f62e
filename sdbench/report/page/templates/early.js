// Before the first paint: the theme that the reader chose last time. A page opened from disk may be refused its storage.
try {
  const theme = localStorage.getItem("sdbench-theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch (error) {
  document.documentElement.dataset.storage = "none";
}
document.documentElement.classList.add("scripted");
