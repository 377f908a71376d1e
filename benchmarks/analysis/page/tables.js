"use strict";
// Sorting, searching and folding of tables, copying of commands. Without it the page shows all, in its own order.
document.documentElement.classList.add("js");
const MOST = 60; // rows of a table before "Show all"; of the ledger all are shown
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const collator = new Intl.Collator(undefined, { numeric: true });

// --- what is shown: by search, status and fold ---

class Rows {
  constructor(box, items) {
    this.box = box;
    this.items = items;
    this.open = false;
    this.fold = box.closest("section > details"); // opened where a search finds a row in it
    this.text = new Map();
    this.common = box.tHead ? box.tHead.textContent : "";
    this.more = document.createElement("button");
    this.more.type = "button";
    this.more.className = "all-rows off";
    this.more.addEventListener("click", () => { this.open = !this.open; filter(); });
    (box.closest(".scroll") || box).after(this.more);
  }

  // A table's headings count for each of its rows, and so does the name of the row's group.
  textOf(item) {
    if (!this.text.has(item)) {
      const group = item.parentNode.querySelector(":scope > tr.group");
      this.text.set(item, `${this.common} ${group ? group.textContent : ""} ${item.textContent}`.toLowerCase());
    }
    return this.text.get(item);
  }

  show(words, statuses) {
    const status = (item) => !statuses.size || !item.dataset.status || statuses.has(item.dataset.status);
    const found = this.items().filter((item) => status(item) && words.every((word) => this.textOf(item).includes(word)));
    const searched = words.length || statuses.size;
    const first = found.filter((item) => searched || !item.parentNode.matches("[data-empty]"));
    const short = this.box.matches(".ledger") ? first : first.slice(0, MOST);
    const folds = short.length < found.length;
    const shown = new Set(this.open ? found : short);
    this.items().forEach((item) => item.classList.toggle("off", !shown.has(item)));
    all("tr.group", this.box).forEach((row) => {
      const named = !searched && row.parentNode.matches("[data-empty]");
      row.classList.toggle("off", !named && ![...row.parentNode.rows].some((one) => shown.has(one)));
    });
    this.more.classList.toggle("off", !folds);
    this.more.textContent = this.open ? "Show fewer rows" : `Show all ${found.length} rows`;
    return found.length;
  }
}

const tableRows = (table) => () => all("tbody > tr:not(.group)", table);
const listItems = (list) => { const items = all(".item", list); return () => items; };
const boxes = [
  ...all("table.sortable").map((table) => new Rows(table, tableRows(table))),
  ...all(".list").map((list) => new Rows(list, listItems(list))),
];
const search = document.getElementById("search");
const chips = all(".chip");

// What a search finds is seen; what it opened closes after it.
function unfold(fold, finds) {
  if (finds && !fold.open) fold.open = fold.dataset.searched = true;
  if (!finds && fold.dataset.searched) { fold.open = false; delete fold.dataset.searched; }
}

function filter() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const statuses = new Set(chips.filter((chip) => chip.ariaPressed === "true").map((chip) => chip.dataset.status));
  const counts = boxes.map((box) => box.show(words, statuses));
  for (const fold of new Set(boxes.map((box) => box.fold).filter(Boolean))) {
    unfold(fold, words.length && boxes.some((box, place) => box.fold === fold && counts[place]));
  }
  const found = counts.reduce((sum, one) => sum + one, 0);
  const rows = boxes.reduce((sum, box) => sum + box.items().length, 0);
  document.getElementById("found").textContent = words.length || statuses.size ? `${found} of ${rows} rows` : "";
}

let waiting;
search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filter, 60); });
chips.forEach((chip) => chip.addEventListener("click", () => {
  chip.ariaPressed = String(chip.ariaPressed !== "true");
  filter();
}));

// --- sorting, within each group of rows ---

function valueOf(row, column, isText) {
  const cell = row.cells[column];
  const raw = cell.dataset.value ?? cell.textContent.trim();
  const number = Number(raw);
  if (!isText || cell.dataset.value) return raw === "" || Number.isNaN(number) ? raw : number;
  return raw;
}

// Numbers before texts, and what is empty last whichever way.
function compare(a, b, sign) {
  if ((typeof a === "number") !== (typeof b === "number")) return typeof a === "number" ? -1 : 1;
  if (typeof a === "number") return sign * (a - b);
  if ((a === "") !== (b === "")) return a === "" ? 1 : -1;
  return sign * collator.compare(a, b);
}

function sort(table, heading) {
  const headings = [...table.tHead.rows[0].cells];
  const up = heading.ariaSort !== "ascending";
  headings.forEach((one) => { one.ariaSort = "none"; });
  heading.ariaSort = up ? "ascending" : "descending";
  const column = headings.indexOf(heading);
  for (const body of table.tBodies) {
    const rows = [...body.rows].filter((row) => !row.classList.contains("group"));
    const keyed = rows.map((row) => [valueOf(row, column, heading.classList.contains("text")), row]);
    keyed.sort((a, b) => compare(a[0], b[0], up ? 1 : -1));
    body.append(...keyed.map(([, row]) => row));
  }
  filter();
}

for (const table of all("table.sortable")) {
  for (const heading of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    heading.ariaSort = "none";
    button.addEventListener("click", () => sort(table, heading));
  }
}

// --- copying ---

async function copy(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // Without the right to the clipboard, as in a page opened from a file by some browsers.
    const area = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(area);
    area.select();
    button.textContent = document.execCommand("copy") ? "Copied" : "Not allowed here";
    area.remove();
    button.focus();
  }
  setTimeout(() => { button.textContent = before; }, 1500);
}

document.addEventListener("click", ({ target }) => {
  if (target.matches(".copy")) copy(target.previousElementSibling.textContent, target);
  if (target.matches(".copy-all")) {
    const shown = all(".item:not(.off) pre", document.getElementById(target.dataset.of));
    copy(shown.map((one) => one.textContent).join("\n"), target);
  }
});

// A link into what is folded opens it.
document.addEventListener("click", ({ target }) => {
  const link = target.closest("a[href^='#']");
  for (let one = link && document.getElementById(link.hash.slice(1)); one; one = one.parentElement) {
    if (one.matches("details")) one.open = true;
  }
});

filter();
