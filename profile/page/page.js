"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
// Texts are a file's: what would steer the reader's eye is shown by its number.
const clean = text =>
  String(text).replace(
    /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]/g,
    c => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
const make = (tag, text, cls) => {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = clean(text);
  if (cls) e.className = cls;
  return e;
};
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Times are in nanoseconds.
function time(ns) {
  for (const [unit, n] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) if (Math.abs(ns) >= n) return +(ns / n).toPrecision(4) + " " + unit;
  return ns + " ns";
}
function count(n, base, unit) {
  if (!n) return "–";
  let i = 0;
  while (n >= base && i < 5) { n /= base; i++; }
  return (i ? +n.toPrecision(4) : n) + " " + ["", "K", "M", "G", "T", "P"][i] + (i && base === 1024 ? "i" : "") + unit;
}
const bytes = n => count(n, 1024, "B");
const percent = (part, whole) => part > 0 && whole > 0 ? (100 * part / whole).toFixed(1) + " %" : "–";

// theme
function dark(on) { document.documentElement.classList.toggle("dark", on); drawLanes(); drawChart(); }
$("theme").onclick = () => dark(!document.documentElement.classList.contains("dark"));
addEventListener("keydown", e => {
  if (e.target.tagName === "INPUT" || e.ctrlKey || e.metaKey || e.altKey) return;
  if (e.key === "t") $("theme").click();
  if (e.key === "/") { e.preventDefault(); $("search").focus(); }
});

// overview
const onDevice = data.tables.op.reduce((s, r) => s + r.device, 0);
$("title").textContent = clean(data.device.name);
$("facts").textContent =
  new Date(data.began).toLocaleString() +
  (data.commit ? " · commit " + clean(data.commit) : "") +
  (data.device.bandwidth ? "" : " · the device's figures are not known, so there is no floor");
for (const [name, value] of [
  ["duration", time(data.duration)],
  ["on the device", time(onDevice)],
  ["operations", data.ops],
  ["goroutines", data.goroutines.length],
  ["streams", data.streams.length],
  ["memory at the peak", bytes(data.peak.total)]
]) {
  const d = make("div");
  d.append(make("dt", name), make("dd", value));
  $("tiles").append(d);
}
$("notes").textContent = clean(data.notes.join("\n"));
$("notes").hidden = !data.notes.length;
$("foot").textContent = "Written by tenon profile.";

// canvas
function sized(c, height) {
  const scale = devicePixelRatio || 1, width = c.clientWidth;
  c.style.height = height + "px";
  c.width = width * scale; c.height = height * scale;
  const g = c.getContext("2d");
  g.scale(scale, scale);
  g.font = "12px system-ui, sans-serif";
  return [g, width, height];
}
const whole = Math.max(data.duration, ...data.spans.map(s => s.end), 1);
let from = 0,
  to = whole;
const gutter = 110,
  lane = 22;
const lanes = [
  ...data.goroutines.map(n => ({name: "goroutine " + n, host: true, n})),
  ...data.streams.map(n => ({name: "stream " + n, host: false, n}))];
const laneOf = new Map(lanes.map((l, i) => [(l.host ? "h" : "d") + l.n, i]));
const xOf = (ns, width) => gutter + (ns - from) / (to - from) * (width - gutter);

function drawLanes() {
  const [g, width, height] = sized($("lanes"), lanes.length * lane + 22);
  g.textBaseline = "middle";
  const colours = {
    forward: colour("--forward"),
    backward: colour("--backward"),
    optimizer: colour("--optimizer"),
    kernel: colour("--kernel")
  };
  g.save();
  g.beginPath(); g.rect(gutter, 0, width - gutter, height); g.clip();
  for (const s of data.spans) {
    if (s.end < from || s.begin > to) continue;
    const y = laneOf.get((s.host ? "h" : "d") + s.lane) * lane, x = xOf(s.begin, width);
    g.fillStyle = s.host ? colours[s.phase] || colour("--other") : colours.kernel;
    const inset = Math.min(s.depth, 4) * 3;
    g.globalAlpha = s.depth ? 0.75 : 1;
    g.fillRect(x, y + 3 + inset, Math.max(xOf(s.end, width) - x, 1), lane - 6 - inset);
  }
  g.restore();
  g.globalAlpha = 1;
  g.fillStyle = colour("--soft");
  lanes.forEach((l, i) => g.fillText(l.name, 0, i * lane + lane / 2, gutter - 8));
  g.fillStyle = colour("--faint");
  for (let i = 0; i <= 4; i++) {
    g.textAlign = i === 4 ? "right" : i ? "center" : "left";
    g.fillText(time(Math.round(from + (to - from) * i / 4)), gutter + (width - gutter) * i / 4, lanes.length * lane + 12);
  }
  if (drag) {
    g.fillStyle = colour("--link"); g.globalAlpha = 0.2;
    g.fillRect(Math.min(drag.a, drag.b), 0, Math.abs(drag.b - drag.a), lanes.length * lane);
  }
}
let drag = null;
const at = (e, c) => { const r = c.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };
const timeAt = x => from + (Math.max(x, gutter) - gutter) / ($("lanes").clientWidth - gutter) * (to - from);
function showTip(tip, c, x, y, text) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = clean(text);
  const left = x > c.clientWidth / 2 ? x - tip.offsetWidth - 4 : x + 28;
  tip.style.left = Math.max(left, 0) + "px"; tip.style.top = y + 28 + "px";
}
$("lanes").onpointerdown = e => { const [x] = at(e, $("lanes")); drag = {a: x, b: x}; $("lanes").setPointerCapture(e.pointerId); };
$("lanes").onpointerup = () => {
  if (drag && Math.abs(drag.a - drag.b) > 4) {
    const a = timeAt(Math.min(drag.a, drag.b)),
      b = timeAt(Math.max(drag.a, drag.b));
    from = a;
    to = Math.max(b, a + 1);
  }
  drag = null;
  drawLanes();
};
$("lanes").ondblclick = () => { from = 0; to = whole; drawLanes(); };
$("lanes").onpointermove = e => {
  const [x, y] = at(e, $("lanes"));
  if (drag) { drag.b = x; drawLanes(); return; }
  const l = lanes[Math.floor(y / lane)], t = timeAt(x), slack = (to - from) / $("lanes").clientWidth;
  let found = null;
  if (l && x >= gutter)
    for (const s of data.spans)
      if (s.host === l.host && s.lane === l.n && s.begin - slack <= t && t <= s.end + slack && (!found || s.depth >= found.depth))
        found = s;
  showTip(
    $("tip"),
    $("lanes"),
    x,
    y,
    found && found.name + "\n" + time(found.end - found.begin) + " from " + time(found.begin) + (found.line ? "\n" + found.line : ""));
};
$("lanes").onpointerleave = () => { $("tip").hidden = true; };

// memory
$("peak").textContent = data.peak.total
  ? "At the peak, " + time(data.peak.at) + " in, " + bytes(data.peak.total) + " are in use."
  : "No memory was seen.";
data.categories.forEach((c, i) => {
  const s = make("span"), d = make("i", "", "dot");
  d.style.background = "var(--c" + i + ")";
  s.append(d, c + (data.peak.by[c] ? " " + bytes(data.peak.by[c]) : ""));
  $("legend").append(s);
});
function drawChart() {
  const [g, width, height] = sized($("chart"), 180);
  const top = Math.max(data.peak.total, 1),
    y = v => height - 20 - (v / top) * (height - 36),
    x = t => gutter + (t / Math.max(data.duration, 1)) * (width - gutter);
  const base = data.memory.map(() => 0);
  data.categories.forEach((c, k) => {
    g.fillStyle = colour("--c" + k);
    g.beginPath();
    const upper = base.map((b, i) => b + data.memory[i].by[k]), path = [];
    for (let i = 0; i < upper.length; i++) {
      const end = i + 1 < upper.length ? data.memory[i + 1].at : data.duration;
      path.push([x(data.memory[i].at), y(upper[i]), y(base[i])], [x(end), y(upper[i]), y(base[i])]);
    }
    path.forEach(([px, py], i) => i ? g.lineTo(px, py) : g.moveTo(px, py));
    path.reverse().forEach(([px, , py]) => g.lineTo(px, py));
    g.fill();
    upper.forEach((v, i) => { base[i] = v; });
  });
  g.fillStyle = colour("--soft"); g.textBaseline = "middle";
  g.fillText(bytes(data.peak.total), 0, y(top), gutter - 8);
  g.fillStyle = colour("--faint");
  for (let i = 0; i <= 4; i++) {
    g.textAlign = i === 4 ? "right" : i ? "center" : "left";
    g.fillText(time(Math.round(data.duration * i / 4)), gutter + (width - gutter) * i / 4, height - 8);
  }
}
$("chart").onpointermove = e => {
  const [px, py] = at(e, $("chart")), t = (px - gutter) / ($("chart").clientWidth - gutter) * data.duration;
  let u = null;
  for (const m of data.memory)
    if (m.at <= t) u = m;
    else break;
  showTip(
    $("chart-tip"),
    $("chart"),
    px,
    py,
    u
      && px >= gutter
      && data.categories
        .map((c, k) => (u.by[k] ? c + " " + bytes(u.by[k]) : ""))
        .filter(s => s)
        .join("\n"));
};
$("chart").onpointerleave = () => { $("chart-tip").hidden = true; };

// table
const columns = [
  ["key", r => r.key || "(no " + by + ")"],
  ["calls", r => r.calls],
  ["device", r => time(r.device)],
  ["share", r => percent(r.device, onDevice)],
  ["host", r => time(r.host)],
  ["bytes", r => bytes(r.bytes)],
  ["FLOPs", r => count(r.flops, 1000, "")],
  ["of the floor", r => percent(r.floor, r.bounded)]
].filter(([name]) => name !== "of the floor" || data.tables.op.some(r => r.bounded));
const value = {
  key: r => r.key,
  calls: r => r.calls,
  device: r => r.device,
  share: r => r.device,
  host: r => r.host,
  bytes: r => r.bytes,
  FLOPs: r => r.flops,
  "of the floor": r => (r.bounded ? r.floor / r.bounded : -1)
};
let by = "op",
  sort = "device",
  down = true,
  shown = 100;
const titles = {op: "by operation", line: "by line", module: "by module", time: "every operation"};
for (const b of ["op", "line", "module", "time"]) {
  const c = make("button", titles[b], "chip");
  c.dataset.by = b;
  c.onclick = () => { by = b; shown = 100; table(); };
  $("by").append(c);
}
function table() {
  for (const c of $("by").children) c.setAttribute("aria-pressed", c.dataset.by === by);
  const head = make("tr");
  for (const [name] of columns) {
    const th = make("th", name === "key" ? {op: "operation", line: "line", module: "module", time: "operation"}[by] : name);
    th.dataset.column = name;
    if (name === sort) th.setAttribute("aria-sort", down ? "descending" : "ascending");
    th.onclick = () => { down = sort === name ? !down : name !== "key"; sort = name; table(); };
    head.append(th);
  }
  $("head").replaceChildren(head);
  const want = $("search").value.toLowerCase(), of = value[sort];
  const rows = data.tables[by].filter(r => r.key.toLowerCase().includes(want));
  rows.sort((a, b) => { const x = of(a), y = of(b), d = x < y ? -1 : x > y ? 1 : 0; return down ? -d : d; });
  $("rows").replaceChildren(...rows.slice(0, shown).map(r => {
    const tr = make("tr");
    for (const [name, text] of columns) {
      const td = make("td", text(r));
      if (name === "share" && onDevice) { const i = make("i", "", "share"); i.style.width = 100 * r.device / onDevice + "%"; td.append(i); }
      tr.append(td);
    }
    return tr;
  }));
  $("more").hidden = rows.length <= shown;
  $("more").textContent = "Show more of " + rows.length + " rows";
}
$("more").onclick = () => { shown += 400; table(); };
$("search").oninput = () => { shown = 100; table(); };
$("search").onkeydown = e => { if (e.key === "Escape") { $("search").value = ""; $("search").blur(); table(); } };
table();
addEventListener("resize", () => { drawLanes(); drawChart(); });
const prefers = matchMedia("(prefers-color-scheme: dark)");
prefers.onchange = () => dark(prefers.matches);
dark(prefers.matches);
