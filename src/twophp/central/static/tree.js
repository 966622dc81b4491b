// The picture of a tree: zoom by scaling it, pan by scrolling, fold without loading the page, arrow keys from card to
// card. Without this script the picture scrolls and every link works.
import { swap } from "./live.js";

const STEP = 1.25;
let scale = 0; // Nothing chosen yet: fit.

const stage = () => document.querySelector("[data-stage]");
const picture = () => stage().querySelector("svg.tree");
const size = () => picture().viewBox.baseVal;

function show(next, x = stage().clientWidth / 2, y = stage().clientHeight / 2) {
  const box = stage();
  const before = picture().clientWidth / size().width || 1;
  scale = Math.min(Math.max(next, 0.05), 3);
  picture().setAttribute("width", size().width * scale);
  picture().setAttribute("height", size().height * scale);
  const ratio = scale / before;
  box.scrollTo((box.scrollLeft + x) * ratio - x, (box.scrollTop + y) * ratio - y);
}

// All of it where that can still be read, and never larger than it is.
function fitting() {
  return Math.min(1, Math.max(stage().clientWidth / size().width, 0.6));
}

function prepare() {
  document.querySelector(".tools").hidden = false;
  stage().classList.add("ready");
  const isFirst = !scale;
  show(scale || fitting());
  if (isFirst) stage().querySelector(".member")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

document.addEventListener("click", async (event) => {
  const zoom = event.target.closest("[data-zoom]")?.dataset.zoom;
  if (zoom === "in") show(scale * STEP);
  if (zoom === "out") show(scale / STEP);
  if (zoom === "one") show(1);
  if (zoom === "fit") show(Math.min(stage().clientWidth / size().width, stage().clientHeight / size().height, 1));
  const fold = event.target.closest("svg.tree a.fold");
  if (!fold || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const address = fold.getAttribute("href");
  if (new URLSearchParams(address.split("?")[1]).get("at")) return; // A picture of its own.
  event.preventDefault();
  if (await swap(address)) history.pushState(null, "", address);
});
addEventListener("popstate", () => swap(location.href));

document.addEventListener("wheel", (event) => {
  if (!event.target.closest("[data-stage]") || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  const box = stage().getBoundingClientRect();
  show(scale * (event.deltaY < 0 ? STEP : 1 / STEP), event.clientX - box.left, event.clientY - box.top);
}, { passive: false });

let held = null;
document.addEventListener("pointerdown", (event) => {
  if (event.button !== 0 || event.pointerType === "touch" || !event.target.closest("[data-stage]")) return;
  if (event.target.closest("a")) return;
  held = { x: event.clientX, y: event.clientY, left: stage().scrollLeft, top: stage().scrollTop };
  stage().classList.add("held");
});
document.addEventListener("pointermove", (event) => {
  if (held) stage().scrollTo(held.left - event.clientX + held.x, held.top - event.clientY + held.y);
});
for (const name of ["pointerup", "pointercancel"]) {
  document.addEventListener(name, () => { held = null; stage()?.classList.remove("held"); });
}

// Left and right go between levels, up and down between cards of one level: to the nearest.
document.addEventListener("keydown", (event) => {
  if (!event.target.closest?.("[data-stage]")) return;
  if (event.key === "+" || event.key === "=") return show(scale * STEP);
  if (event.key === "-") return show(scale / STEP);
  if (event.key === "0") return show(1);
  const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!move) return;
  event.preventDefault();
  const cards = [...stage().querySelectorAll(".card[data-column]")];
  const here = event.target.closest(".card[data-column]");
  const next = here ? nearest(here, cards, move) : cards[0];
  next?.querySelector("a.call").focus({ preventScroll: true });
  next?.scrollIntoView({ block: "nearest", inline: "nearest" });
});

function nearest(here, cards, [across, down]) {
  const column = Number(here.dataset.column) + across;
  const from = middle(here);
  const there = cards.filter((card) => card !== here && Number(card.dataset.column) === column
    && (!down || Math.sign(middle(card) - from) === down));
  return there.sort((one, other) => Math.abs(middle(one) - from) - Math.abs(middle(other) - from))[0];
}

function middle(card) {
  const box = card.querySelector(".face").getBBox();
  return box.y + box.height / 2;
}

document.addEventListener("swapped", prepare);
prepare();
