// SPDX-License-Identifier: Apache-2.0
// The fixed text of the timeline page: style and script. The script moves the view box of the
// drawing and redraws the ticks; it draws no interval itself, so picture and script cannot differ.
#pragma once

namespace crossover::command {

inline constexpr const char* kPageStyle = R"(
:root { color-scheme: light dark; --ground: #ffffff; --text: #1d2329; --soft: #5d6874; --line: #d5dae0;
        --row: #f4f6f8; --wait: #8d97a3; --lost: #c9ced5; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #14181d; --text: #e4e8ec; --soft: #98a3af; --line: #343c45; --row: #1c2229;
          --wait: #77818d; --lost: #414a55; } }
body { margin: 0; background: var(--ground); color: var(--text);
       font: 14px/1.45 system-ui, "DejaVu Sans", sans-serif; }
main { width: 1240px; margin: 0 auto; padding: 18px 0 28px; }
h1 { font-size: 20px; margin: 0 0 2px; }
p { margin: 0 0 10px; color: var(--soft); max-width: 1100px; }
svg text { fill: var(--text); font-size: 13px; }
svg .soft { fill: var(--soft); font-size: 12px; }
svg .job { font-weight: 600; font-size: 13px; }
svg .row { fill: var(--row); }
svg .tick { stroke: var(--line); stroke-width: 1; }
svg .wait { fill: var(--wait); }
svg .lost { fill: var(--lost); }
svg .hidden { opacity: 0.35; }
svg .cut { opacity: 0.55; }
#plots svg { cursor: grab; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 26px; margin: 4px 0 8px; }
.legend span { display: inline-flex; align-items: center; gap: 8px; }
.legend svg { flex: none; }
.controls button { font: inherit; padding: 1px 10px; margin-right: 4px; }
.controls output { color: var(--soft); margin-left: 12px; }
table { border-collapse: collapse; margin-top: 14px; }
th, td { text-align: right; padding: 3px 14px 3px 0; border-bottom: 1px solid var(--line); font-weight: 400; }
th { color: var(--soft); } th:first-child, td:first-child { text-align: left; }
)";

inline constexpr const char* kPageScript = R"(
(function () {
  const plots = [...document.querySelectorAll('svg.plot')];
  const drawing = document.getElementById('drawing');
  const told = document.querySelector('.controls output');
  if (!plots.length) return;
  const left = plots[0].x.baseVal.value, width = plots[0].width.baseVal.value;
  const whole = JSON.parse(drawing.dataset.whole), first = JSON.parse(drawing.dataset.view);
  let view = first.slice();
  const step = span => {
    let unit = Math.pow(10, Math.floor(Math.log10(span / 12)));
    for (const factor of [1, 2, 5, 10]) if (span / (unit * factor) <= 12) return unit * factor;
    return unit * 10;
  };
  function draw() {
    const span = view[1] - view[0];
    for (const plot of plots) {
      const box = plot.viewBox.baseVal;
      plot.setAttribute('viewBox', view[0] + ' 0 ' + span + ' ' + box.height);
    }
    const ticks = document.getElementById('ticks');
    ticks.textContent = '';
    const every = step(span), digits = Math.max(0, -Math.floor(Math.log10(every) + 1e-9));
    for (let n = Math.ceil(view[0] / every); n * every <= view[1]; ++n) {
      const x = left + (n * every - view[0]) / span * width;
      const line = document.createElementNS('http://www.w3.org/2000/svg', 'line');
      const text = document.createElementNS('http://www.w3.org/2000/svg', 'text');
      line.setAttribute('class', 'tick');
      line.setAttribute('x1', x); line.setAttribute('x2', x);
      line.setAttribute('y1', 20); line.setAttribute('y2', drawing.height.baseVal.value);
      text.setAttribute('class', 'soft'); text.setAttribute('x', x); text.setAttribute('y', 14);
      text.setAttribute('text-anchor', 'middle');
      text.textContent = (n * every).toFixed(digits) + ' ms';
      ticks.append(line, text);
    }
  }
  function set(begin, span) {
    const all = whole[1] - whole[0];
    span = Math.min(Math.max(span, 0.01), all);
    begin = Math.min(Math.max(begin, whole[0]), whole[1] - span);
    view = [begin, begin + span];
    draw();
  }
  const zoom = (factor, at) => {
    const span = view[1] - view[0], here = view[0] + span * at;
    set(here - span * factor * at, span * factor);
  };
  const place = event => {
    const box = drawing.getBoundingClientRect();
    return ((event.clientX - box.left) * drawing.width.baseVal.value / box.width - left) / width;
  };
  drawing.addEventListener('wheel', event => {
    event.preventDefault();
    if (event.shiftKey) set(view[0] + (view[1] - view[0]) * Math.sign(event.deltaY + event.deltaX) / 10,
                            view[1] - view[0]);
    else zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.min(1, Math.max(0, place(event))));
  }, { passive: false });
  let grabbed = null;
  drawing.addEventListener('pointerdown', event => {
    grabbed = [place(event), view[0]];
    drawing.setPointerCapture(event.pointerId);
  });
  drawing.addEventListener('pointerup', () => { grabbed = null; });
  drawing.addEventListener('pointermove', event => {
    if (grabbed) {
      set(grabbed[1] - (place(event) - grabbed[0]) * (view[1] - view[0]), view[1] - view[0]);
      return;
    }
    const bar = event.target.closest ? event.target.closest('[data-what] rect') : null;
    if (!bar) { told.textContent = ''; return; }
    const x = bar.x.baseVal.value, w = bar.width.baseVal.value;
    told.textContent = bar.parentNode.dataset.what + ' for ' + w.toFixed(3) + ' ms, from ' +
        x.toFixed(3) + ' to ' + (x + w).toFixed(3) + ' ms';
  });
  const actions = { '-': () => zoom(1.6, 0.5), '+': () => zoom(0.625, 0.5), all: () => set(whole[0], whole[1] - whole[0]),
    first: () => set(first[0], first[1] - first[0]),
    left: () => set(view[0] - (view[1] - view[0]) / 3, view[1] - view[0]),
    right: () => set(view[0] + (view[1] - view[0]) / 3, view[1] - view[0]) };
  for (const button of document.querySelectorAll('.controls button'))
    button.addEventListener('click', actions[button.dataset.do]);
  document.querySelector('.controls').hidden = false;
}());
)";

}  // namespace crossover::command
