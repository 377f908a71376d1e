// What a figure shows, and the values where it is pointed at. Without it all panels are shown, as they are when printed.

// --- model, view, legend ---

function showPanels(chart) {
  const model = chart.querySelector("select").value;
  const pressed = chart.querySelector(".views [aria-pressed=true]");
  for (const panel of all(".panel", chart)) {
    const fits = (!model || panel.dataset.model === model) && (!pressed || panel.dataset.view === pressed.dataset.view);
    panel.classList.toggle("off", !fits);
  }
}

// The parts of a bar that are left close up.
function stack(row, hidden) {
  let left = 0;
  for (const part of all("[data-part]", row)) {
    part.style.display = hidden.has(part.dataset.part) ? "none" : "";
    if (part.localName !== "svg" || hidden.has(part.dataset.part)) continue;
    part.setAttribute("x", `${left}%`);
    left += parseFloat(part.getAttribute("width"));
  }
}

function showSeries(chart) {
  const hidden = new Set(all(".legend [aria-pressed=false]", chart).map((button) => button.dataset.series));
  for (const mark of all(".mark", chart)) {
    if (mark.querySelector("[data-part]")) stack(mark, hidden);
    else mark.style.display = hidden.has(mark.dataset.series) ? "none" : "";
  }
}

for (const chart of all(".chart")) {
  chart.querySelector("select").addEventListener("change", () => showPanels(chart));
  const views = all(".views button", chart);
  views.forEach((button) => button.addEventListener("click", () => {
    views.forEach((one) => { one.ariaPressed = String(one === button); });
    showPanels(chart);
  }));
  all(".legend button", chart).forEach((button) => button.addEventListener("click", () => {
    button.ariaPressed = String(button.ariaPressed !== "true");
    showSeries(chart);
  }));
  const select = chart.querySelector("select");
  if (all(".panel .mark", chart).length > 400) select.selectedIndex = 1; // one model at a time where there is much
  showPanels(chart);
}

// --- the values of a mark: pointed at, tapped, or reached by keys ---

const tip = document.getElementById("tip");

// The browser's own hints would come on top of ours.
for (const mark of all(".mark")) {
  const title = mark.querySelector(":scope > title");
  mark.ariaLabel = title ? title.textContent : mark.title;
  if (title) title.remove();
  mark.removeAttribute("title");
  mark.setAttribute("role", "img");
  mark.tabIndex = -1;
}
// One stop of the Tab key a panel; arrow keys go on from there.
all(".marks").forEach((marks) => { const first = marks.querySelector(".mark"); if (first) first.tabIndex = 0; });

function showTip(mark, x, y) {
  tip.hidden = false;
  tip.textContent = mark.ariaLabel;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 4))}px`;
  tip.style.top = `${y + 18 + height > innerHeight ? Math.max(4, y - height - 12) : y + 18}px`;
}

function hideTip() { tip.hidden = true; }

const markOf = (event) => (event.target.closest ? event.target.closest(".mark") : null);
document.addEventListener("pointermove", (event) => {
  const mark = markOf(event);
  if (mark) showTip(mark, event.clientX, event.clientY);
  else if (!document.activeElement.matches(".mark")) hideTip();
});
document.addEventListener("pointerdown", (event) => {
  const mark = markOf(event);
  if (mark) showTip(mark, event.clientX, event.clientY);
  else hideTip();
});
document.addEventListener("focusin", (event) => {
  const mark = markOf(event);
  if (!mark || !mark.matches(":focus-visible")) return;
  const { left, width, bottom } = mark.getBoundingClientRect();
  showTip(mark, left + width / 3, bottom - 14);
});
document.addEventListener("focusout", hideTip);
document.addEventListener("scroll", hideTip, { passive: true });
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
  const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
  const mark = markOf(event);
  if (!step || !mark) return;
  const marks = all(".mark", mark.closest(".marks")).filter((one) => one.style.display !== "none");
  const next = marks[marks.indexOf(mark) + step];
  if (!next) return;
  mark.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
  event.preventDefault();
});
