"use strict";
// Values of a plot on hover and touch, and by the arrow keys once the plot has the focus.
const tip = document.getElementById("tip");

function show(mark) {
  hide();
  mark.classList.add("here");
  tip.textContent = mark.dataset.label;
  tip.hidden = false;
  const box = mark.getBoundingClientRect();
  const left = box.left + box.width / 2 - tip.offsetWidth / 2;
  const above = box.top - tip.offsetHeight - 8;
  tip.style.left = Math.max(8, Math.min(left, document.documentElement.clientWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = (above > 4 ? above : box.bottom + 8) + "px";
}

function hide() {
  document.querySelectorAll(".value.here").forEach((mark) => mark.classList.remove("here"));
  tip.hidden = true;
}

for (const plot of document.querySelectorAll("figure svg")) {
  const marks = [...plot.querySelectorAll(".value")];
  for (const mark of marks) {
    const title = mark.querySelector("title");
    mark.dataset.label = title.textContent;
    title.remove(); // or the browser would show it as well
    mark.addEventListener("pointerenter", () => show(mark));
    mark.addEventListener("pointerleave", hide);
  }
  plot.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    if (event.key === "Escape") hide();
    if (!(event.key in steps) || !marks.length) return;
    event.preventDefault();
    const at = marks.findIndex((mark) => mark.classList.contains("here"));
    const next = at < 0 ? (steps[event.key] > 0 ? 0 : marks.length - 1) : at + steps[event.key];
    show(marks[Math.max(0, Math.min(marks.length - 1, next))]);
  });
  plot.addEventListener("blur", hide);
}
addEventListener("scroll", hide, { passive: true });
