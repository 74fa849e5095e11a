"use strict";
// One slide at a time; the address remembers which (#7). Without this script all slides stand below each other.
const slides = [...document.querySelectorAll(".slide")];
const place = document.getElementById("place");

function show(number, focus = true) {
  const now = Math.min(Math.max(number, 1), slides.length);
  slides.forEach((slide, i) => { slide.hidden = i !== now - 1; });
  place.textContent = `${now} / ${slides.length}`;
  document.getElementById("back").disabled = now === 1;
  document.getElementById("on").disabled = now === slides.length;
  history.replaceState(null, "", `#${now}`);
  scrollTo(0, 0);
  if (focus) slides[now - 1].focus({ preventScroll: true });
}

const now = () => slides.findIndex((slide) => !slide.hidden) + 1;
const asked = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  return target ? slides.indexOf(target.closest(".slide")) + 1 : Number(location.hash.slice(1)) || 1;
};
const KEYS = {
  ArrowRight: () => now() + 1, PageDown: () => now() + 1, " ": () => now() + 1, n: () => now() + 1,
  ArrowLeft: () => now() - 1, PageUp: () => now() - 1, p: () => now() - 1,
  Home: () => 1, End: () => slides.length,
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || !KEYS[event.key]) return;
  if (event.key === " " && event.target.closest("summary, button, a")) return; // there, Space presses
  const wide = event.target.closest("pre, .scroll");
  if (event.key.startsWith("Arrow") && wide && wide.scrollWidth > wide.clientWidth) return; // there, arrows scroll
  event.preventDefault();
  show(KEYS[event.key]());
});
addEventListener("hashchange", () => show(asked()));
document.getElementById("back").onclick = () => show(now() - 1, false);
document.getElementById("on").onclick = () => show(now() + 1, false);
document.documentElement.classList.add("one");
show(asked());
