// What every page has: the search key, light and dark without a round trip, and news as they arrive.
import { follow } from "./live.js";

const find = document.getElementById("find");

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea");
  if (event.key === "/" && find && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    find.focus();
  }
});

const theme = document.getElementById("theme");
theme?.addEventListener("submit", (event) => {
  event.preventDefault();
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  const secure = location.protocol === "https:" ? "; Secure" : "";
  document.cookie = `twophp_theme=${root.dataset.theme}; Path=/; Max-Age=31536000; SameSite=Strict${secure}`;
});

if ("live" in document.body.dataset) follow();
