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
  cue();
}

// A slide that is taller than the window: how much is below and above, a cue, and a step that leads on.
const frame = document.documentElement;
const below = () => frame.scrollHeight - frame.clientHeight - Math.ceil(scrollY);
const cue = () => { document.getElementById("more").hidden = below() < 2; };
function step(forward) {
  if (forward ? below() < 2 : scrollY < 1) return show(now() + (forward ? 1 : -1));
  scrollBy({ top: (forward ? 0.8 : -0.8) * (frame.clientHeight - 56), behavior: "instant" });
  cue();
}

const now = () => slides.findIndex((slide) => !slide.hidden) + 1;
const asked = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  return target ? slides.indexOf(target.closest(".slide")) + 1 : Number(location.hash.slice(1)) || 1;
};
const KEYS = {
  ArrowRight: () => show(now() + 1), PageDown: () => step(true), " ": (shift) => step(!shift), n: () => show(now() + 1),
  ArrowLeft: () => show(now() - 1), PageUp: () => step(false), p: () => show(now() - 1),
  Home: () => show(1), End: () => show(slides.length),
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || !KEYS[event.key]) return;
  if (event.key === " " && event.target.closest("summary, button, a")) return; // there, Space presses
  const wide = event.target.closest("pre, .scroll");
  if (event.key.startsWith("Arrow") && wide && wide.scrollWidth > wide.clientWidth) return; // there, arrows scroll
  event.preventDefault();
  KEYS[event.key](event.shiftKey);
});
addEventListener("hashchange", () => show(asked()));
document.getElementById("back").onclick = () => show(now() - 1, false);
document.getElementById("on").onclick = () => show(now() + 1, false);
for (const what of ["scroll", "resize"]) addEventListener(what, cue);
addEventListener("toggle", cue, true); // something was unfolded
frame.classList.add("one");
show(asked());
