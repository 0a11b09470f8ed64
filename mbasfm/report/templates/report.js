"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");
const byId = id => document.getElementById(id);
const color = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const hues = [215, 28, 150, 330, 265, 55, 190, 0];
const dark = matchMedia("(prefers-color-scheme: dark)");
const hue = component => component < 0 ? color("bad") : `hsl(${hues[component % hues.length]} 75% ${dark.matches ? 66 : 45}%)`;
let component = 0;

function show(event, text) {
  tip.hidden = !text;
  tip.textContent = text || "";
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 6) + "px";
  tip.style.top = event.clientY + 16 + "px";
}
function prepare(canvas) {
  const ratio = devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  canvas.width = box.width * ratio; canvas.height = box.height * ratio;
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return [pen, box.width, box.height];
}
function onHover(canvas, find) {
  canvas.addEventListener("pointermove", event => {
    const box = canvas.getBoundingClientRect();
    show(event, find(event.clientX - box.left, event.clientY - box.top));
  });
  canvas.addEventListener("pointerleave", event => show(event, ""));
}

// Cameras and points: yaw about the vertical, then pitch about the horizontal.
const scene = data.scene.map(part => {
  const count = part.points.length / 3, colors = [];
  for (let k = 0; k < count; k++) colors.push("#" + part.colors.slice(6 * k, 6 * k + 6));
  return {...part, count, colors};
});
const fixed = {top: [0, Math.PI / 2], front: [0, 0], side: [Math.PI / 2, 0]};
const free = {yaw: 0.5, pitch: 0.35, zoom: 0.85};
const LINES = [[0, 1], [0, 2], [0, 3], [0, 4], [1, 2], [2, 3], [3, 4], [4, 1]];
function projector(yaw, pitch, width, height) {
  const cy = Math.cos(yaw), sy = Math.sin(yaw), cp = Math.cos(pitch), sp = Math.sin(pitch);
  const scale = Math.min(width, height) / 2150;
  return (x, y, z) => {
    const right = cy * x - sy * z, back = sy * x + cy * z;
    return [width / 2 + scale * right, height / 2 - scale * (cp * y - sp * back), sp * y + cp * back];
  };
}
// The smallest window that holds all cameras and nearly all points: factor, then where its middle is.
function fit(part, at, width, height) {
  const ends = [0, 1].map(axis => {
    const values = [], spots = [];
    for (let k = 0; k < part.count; k++) values.push(at(part.points[3 * k], part.points[3 * k + 1], part.points[3 * k + 2])[axis]);
    values.sort((a, b) => a - b);
    if (values.length) spots.push(values[Math.floor(0.02 * values.length)], values[Math.floor(0.98 * values.length)]);
    for (const f of part.frusta) for (let c = 0; c < 5; c++) spots.push(at(f[3 * c], f[3 * c + 1], f[3 * c + 2])[axis]);
    return [spots.reduce((a, b) => Math.min(a, b)), spots.reduce((a, b) => Math.max(a, b))];
  });
  const factor = 0.9 * Math.min(width / (ends[0][1] - ends[0][0] + 1e-6), height / (ends[1][1] - ends[1][0] + 1e-6));
  return [factor, (ends[0][0] + ends[0][1]) / 2, (ends[1][0] + ends[1][1]) / 2];
}
function drawScene(canvas, yaw, pitch, zoom) {
  const [pen, width, height] = prepare(canvas), part = scene[component];
  canvas.marks = [];
  if (!part) return;
  const raw = projector(yaw, pitch, width, height), key = component + " " + width;
  // While it is dragged the large view keeps its window, so that nothing jumps.
  if (canvas !== large || canvas.key !== key) { canvas.window = fit(part, raw, width, height); canvas.key = key; }
  const [factor, mx, my] = canvas.window, grow = zoom * factor;
  const at = (x, y, z) => { const p = raw(x, y, z); return [width / 2 + grow * (p[0] - mx), height / 2 + grow * (p[1] - my), p[2]]; };
  const size = Math.max(1.2, Math.min(width, height) / 260);
  const order = [];
  for (let k = 0; k < part.count; k++) {
    const p = at(part.points[3 * k], part.points[3 * k + 1], part.points[3 * k + 2]);
    order.push([p[2], p[0], p[1], k]);
  }
  order.sort((a, b) => a[0] - b[0]);
  for (const [, x, y, k] of order) { pen.fillStyle = part.colors[k]; pen.fillRect(x, y, size, size); }
  const centers = {};
  part.frames.forEach((frame, k) => {
    const f = part.frusta[k], corner = [];
    for (let c = 0; c < 5; c++) corner.push(at(f[3 * c], f[3 * c + 1], f[3 * c + 2]));
    pen.strokeStyle = hue(component); pen.lineWidth = 1.3; pen.beginPath();
    for (const [a, b] of LINES) { pen.moveTo(corner[a][0], corner[a][1]); pen.lineTo(corner[b][0], corner[b][1]); }
    pen.stroke();
    centers[frame] = corner[0];
    const middle = [0, 1].map(axis => corner.reduce((sum, c) => sum + c[axis], 0) / 5);
    canvas.marks.push([middle[0], middle[1], data.images[frame].name]);
  });
  if (byId("edges").checked) eachUsed((i, j, matches) => {
    if (!centers[i] || !centers[j]) return;
    pen.strokeStyle = color("soft"); pen.globalAlpha = 0.15 + 0.6 * heat(matches); pen.lineWidth = 1; pen.beginPath();
    pen.moveTo(centers[i][0], centers[i][1]); pen.lineTo(centers[j][0], centers[j][1]); pen.stroke(); pen.globalAlpha = 1;
  });
}
const nearest = marks => (x, y) => {
  let best = 18, name = "";
  for (const [mx, my, text] of marks || []) { const d = Math.hypot(mx - x, my - y); if (d < best) { best = d; name = text; } }
  return name;
};
const small = [...document.querySelectorAll("canvas[data-turn]")], large = byId("free");
function drawFree() { drawScene(large, free.yaw, free.pitch, free.zoom); }
function drawScenes() { drawFree(); for (const canvas of small) drawScene(canvas, ...fixed[canvas.dataset.turn], 1); }
for (const canvas of [large, ...small]) onHover(canvas, (x, y) => nearest(canvas.marks)(x, y));
let pending = false;
function later() { if (!pending) { pending = true; requestAnimationFrame(() => { pending = false; drawFree(); }); } }
large.addEventListener("pointerdown", event => { large.setPointerCapture(event.pointerId); large.last = [event.clientX, event.clientY]; });
large.addEventListener("pointerup", () => { large.last = null; });
large.addEventListener("pointercancel", () => { large.last = null; });
large.addEventListener("pointermove", event => {
  if (!large.last) return;
  free.yaw += (event.clientX - large.last[0]) / 150;
  free.pitch = Math.max(-1.57, Math.min(1.57, free.pitch + (event.clientY - large.last[1]) / 150));
  large.last = [event.clientX, event.clientY];
  later();
});
large.addEventListener("wheel", event => {
  event.preventDefault();
  free.zoom = Math.max(0.3, Math.min(12, free.zoom * Math.exp(-event.deltaY / 500)));
  later();
}, {passive: false});
byId("component").addEventListener("change", event => { component = Number(event.target.value); drawScenes(); });
byId("edges").addEventListener("change", drawScenes);
function turn() { if (byId("spin").checked) { free.yaw += 0.008; drawFree(); requestAnimationFrame(turn); } }
byId("spin").addEventListener("change", turn);
if (!scene.length) for (const part of document.querySelectorAll("#scene .controls, #scene .views")) part.hidden = true;
document.querySelector("#scene .empty").hidden = scene.length > 0;

// Pairs.
const pairs = data.pairs, count = data.images.length, most = Math.log(2 + pairs.matches.reduce((a, b) => Math.max(a, b), 100));
const heat = value => Math.log(1 + value) / most;
function eachUsed(work) { pairs.i.forEach((i, k) => { if (pairs.used[k]) work(i, pairs.j[k], pairs.inliers[k] || pairs.matches[k]); }); }
const ring = byId("ring"), matrix = byId("matrix");
function drawRing() {
  const [pen, width, height] = prepare(ring), radius = Math.min(width, height) / 2 - 24;
  const place = k => [width / 2 + radius * Math.sin(2 * Math.PI * k / count), height / 2 - radius * Math.cos(2 * Math.PI * k / count)];
  eachUsed((i, j, matches) => {
    const [a, b] = [place(i), place(j)];
    pen.strokeStyle = hue(data.images[i].component); pen.globalAlpha = 0.06 + 0.8 * heat(matches) ** 3; pen.lineWidth = 0.5 + 2.5 * heat(matches) ** 3;
    pen.beginPath(); pen.moveTo(...a); pen.quadraticCurveTo(width / 2, height / 2, ...b); pen.stroke();
  });
  pen.globalAlpha = 1;
  ring.marks = data.images.map((image, k) => {
    const [x, y] = place(k);
    pen.fillStyle = hue(image.component); pen.beginPath(); pen.arc(x, y, Math.max(2, Math.min(7, 2 * radius / count)), 0, 7); pen.fill();
    return [x, y, image.name + (image.component < 0 ? ": not placed" : "")];
  });
}
const known = new Map(pairs.i.map((i, k) => [i * count + pairs.j[k], k]));
function drawMatrix() {
  const [pen, width] = prepare(matrix), cell = width / count;
  pairs.i.forEach((i, k) => {
    const j = pairs.j[k];
    for (const [x, y, value] of [[i, j, pairs.matches[k]], [j, i, pairs.inliers[k]]]) {
      if (!value) continue;
      const share = heat(value);
      pen.fillStyle = `hsl(${200 + 40 * share ** 2} 70% ${dark.matches ? 14 + 60 * share ** 2 : 95 - 62 * share ** 2}%)`;
      pen.fillRect(x * cell, y * cell, Math.max(cell - (cell > 6 ? 1 : 0), 0.7), Math.max(cell - (cell > 6 ? 1 : 0), 0.7));
    }
  });
  pen.fillStyle = color("line");
  for (let k = 0; k < count; k++) pen.fillRect(k * cell, k * cell, cell, cell);
}
onHover(ring, (x, y) => nearest(ring.marks)(x, y));
onHover(matrix, (x, y) => {
  const size = matrix.getBoundingClientRect().width, column = Math.floor(x / size * count), row = Math.floor(y / size * count);
  const [i, j] = [Math.min(row, column), Math.max(row, column)];
  if (i < 0 || j >= count) return "";
  const names = data.images[i].name + (i === j ? "" : " and " + data.images[j].name), k = known.get(i * count + j);
  if (i === j) return names;
  return names + (k === undefined ? ": no matches" : `: ${pairs.matches[k]} matches, ${pairs.inliers[k]} agree${pairs.used[k] ? "" : ", not used"}`);
});

// The table.
for (const button of document.querySelectorAll("#photographs th button")) button.addEventListener("click", () => {
  const head = button.parentElement, column = head.cellIndex, body = document.querySelector("#photographs tbody");
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of head.parentElement.children) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const value = row => row.cells[column].dataset.value;
  const compare = (a, b) => a === "" || b === "" ? (a === "") - (b === "") : (down ? -1 : 1) * (isNaN(a) || isNaN(b) ? a.localeCompare(b, "en", {numeric: true}) : a - b);
  for (const row of [...body.rows].sort((a, b) => compare(value(a), value(b)))) body.append(row);
});

function drawAll() { if (scene.length) drawScenes(); drawRing(); drawMatrix(); }
addEventListener("resize", drawAll);
dark.addEventListener("change", drawAll);
drawAll();
})();
