// Rows are heard of as they arrive (server-sent events). A page that shows their calls asks for itself again and takes
// over its parts marked data-swap; it is rendered in one place only, on the server.

const AT_MOST_EVERY_MS = 1500;
const light = document.getElementById("live");

let wanted = false;
let busy = false;

export function follow() {
  const after = document.body.dataset.live;
  const source = new EventSource(after ? `/v1/events?after=${after}` : "/v1/events");
  light.hidden = false;
  source.onopen = () => light.classList.add("on");
  source.onerror = () => light.classList.remove("on");
  source.addEventListener("row", (event) => {
    light.classList.remove("news");
    requestAnimationFrame(() => light.classList.add("news"));
    if (concerns(JSON.parse(event.data))) refresh();
  });
  addEventListener("pagehide", () => source.close());
}

// A page about some calls is asked for again only when one of them has changed, or a call made for one of them.
function concerns(row) {
  if (!("liveCalls" in document.body.dataset)) return true;
  const ids = [row.client_correlation_id, row.parent_reference_id];
  return ids.some((id) => document.querySelector(`[data-call="${CSS.escape(id)}"]`));
}

// At most so often, less often where a page takes long to make, and never for a hidden window.
async function refresh() {
  wanted = true;
  if (busy) return;
  busy = true;
  while (wanted) {
    if (document.hidden) await new Promise((seen) => document.addEventListener("visibilitychange", seen, { once: true }));
    wanted = false;
    const began = performance.now();
    await swap(location.href);
    const pause = Math.max(AT_MOST_EVERY_MS, 10 * (performance.now() - began));
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
  busy = false;
}

// A reader in the middle of something is not disturbed: open details stay open, focus and scrolling stay where they are.
export async function swap(address) {
  const answer = await fetch(address, { headers: { Accept: "text/html" } }).catch(() => null);
  if (!answer || !answer.ok || answer.redirected) return false;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of document.querySelectorAll("[data-swap]")) {
    const next = fresh.getElementById(part.id);
    if (!next) continue;
    const kept = remember(part);
    part.replaceChildren(...next.childNodes);
    recall(part, kept);
    part.dispatchEvent(new CustomEvent("swapped", { bubbles: true }));
  }
  return true;
}

function remember(part) {
  const opened = [...part.querySelectorAll("details")].map((one) => one.open);
  const stage = part.querySelector("[data-stage]");
  const links = [...part.querySelectorAll("a, button, summary, [tabindex]")];
  return {
    opened,
    focused: links.indexOf(document.activeElement),
    scroll: stage && [stage.scrollLeft, stage.scrollTop],
  };
}

function recall(part, kept) {
  part.querySelectorAll("details").forEach((one, place) => { one.open = kept.opened[place] ?? one.open; });
  if (kept.focused >= 0) {
    part.querySelectorAll("a, button, summary, [tabindex]")[kept.focused]?.focus({ preventScroll: true });
  }
  const stage = part.querySelector("[data-stage]");
  if (stage && kept.scroll) requestAnimationFrame(() => stage.scrollTo(...kept.scroll));
}
