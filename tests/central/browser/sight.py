"""What a reader with other eyes would trip over, as scripts that return what is wrong with a page."""

from __future__ import annotations

NAMELESS = """() => [...document.querySelectorAll("a, button, summary, input:not([type=hidden]), select, [role=img]")]
  .filter((one) => !(one.textContent.trim() || one.getAttribute("aria-label") || one.labels?.length))
  .map((one) => one.outerHTML.slice(0, 200))"""

# The contrast of every text with what is behind it (WCAG 2.2, 1.4.3): 4.5, or 3 where it is large.
CONTRASTS = """() => {
  const parse = (value) => {
    const numbers = value.match(/-?[\\d.]+(e-?\\d+)?/g)?.map(Number) ?? [0, 0, 0, 0];
    const [r, g, b, a = 1] = numbers;
    return value.startsWith("color(") ? [r * 255, g * 255, b * 255, a] : [r, g, b, a];
  };
  const over = ([r, g, b, a], [x, y, z]) => [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a), 1];
  const light = (value) => { const c = value / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const luminance = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
  };
  const wrong = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.data.trim();
    if (!text || !element.checkVisibility() || element.closest("svg, .unseen, option")) continue;
    const style = getComputedStyle(element);
    const ground = behind(element);
    const [r, g, b, a] = parse(style.color);
    const ink = over([r, g, b, a * parseFloat(style.opacity)], ground);
    const [high, low] = [luminance(ink), luminance(ground)].sort((one, other) => other - one);
    const contrast = (high + 0.05) / (low + 0.05);
    const least = parseFloat(style.fontSize) >= 24 ? 3 : 4.5;
    if (contrast < least) wrong.push(`${contrast.toFixed(2)} ${element.className} ${text}`);
  }
  return [...new Set(wrong)].slice(0, 10);
}"""
