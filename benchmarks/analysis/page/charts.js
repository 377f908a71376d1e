// Figures: what lies in the page is a still picture. Where scripts run, the same specification answers.

// Only errors are worth a word: a panel from which the legend has taken all marks is none.
const OPTIONS = { mode: "vega", ast: true, actions: false, renderer: "svg", hover: false, logLevel: 1 };
const NARROW = 700; // pixels: one panel beside no other, and as narrow as the window while marks can be told apart
const LEAST = 110; // pixels of a panel

async function bring(figure) {
  const specification = JSON.parse(figure.querySelector("script").textContent);
  if (innerWidth < NARROW) {
    specification.layout.columns = 1;
    for (const legend of specification.legends || []) legend.columns = 1;
  }
  const drawing = figure.querySelector(".drawing");
  await vegaEmbed(drawing, specification, OPTIONS);
  const over = drawing.querySelector("svg").getBoundingClientRect().width - figure.clientWidth;
  const panel = specification.signals.find(({ name }) => name === "child_width");
  if (innerWidth < NARROW && over > 0 && panel) {
    panel.value = Math.max(LEAST, panel.value - over);
    await vegaEmbed(drawing, specification, OPTIONS);
  }
  figure.dataset.ready = "";
}

const near = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    bring(target);
  }
}, { rootMargin: "50%" });

// --- exact values by keys, and where it is tapped ---

function point(mark) {
  const { left, width, top, height } = mark.getBoundingClientRect();
  mark.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: left + width / 2, clientY: top + height / 2 }));
}

function step(event, figure) {
  const marks = all(".role-mark [aria-label]", figure);
  const place = marks.indexOf(document.activeElement);
  if (event.key === "Escape") document.getElementById("vg-tooltip-element")?.classList.remove("visible");
  const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
  const next = by && marks[place + by];
  if (!next) return;
  next.tabIndex = -1;
  next.focus();
  point(next);
  event.preventDefault();
}

for (const figure of all(".chart")) {
  near.observe(figure);
  figure.addEventListener("keydown", (event) => step(event, figure));
  figure.addEventListener("click", ({ target }) => { if (target.matches(".role-mark [aria-label]")) point(target); });
}
