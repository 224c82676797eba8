'use strict';
// What surrounds the strips: axes, labels inside strips, flags, the small map.

// niceBytes returns the step of a byte axis that gives about n ticks: a power of two, or half of one, of a binary unit.
function niceBytes(span, n) {
  return 2 ** Math.ceil(Math.log2(Math.max(span / n, 1)));
}

// axisBytes writes a tick so that it differs from the next one, step bytes away: in the unit of the value, or else in that of the step.
function axisBytes(b, step) {
  const unit = n => 1024 ** Math.floor(Math.log2(Math.max(n, 1)) / 10);
  if (b === 0) return '0';
  return step >= unit(b) / 8 ? bytes(b) : `${number(b / unit(step))} ${units[Math.round(Math.log2(unit(step)) / 10)]}`;
}

// axisTime writes a time after the start for an axis whose ticks are about step microseconds apart.
function axisTime(us, step) {
  if (us < 1e6 || step > 2e4) return `+${duration(us)}`;
  return `+${(us / 1e6).toFixed(clamp(Math.ceil(6 - Math.log10(Math.max(step, 1))), 2, 6))} s`;
}

function niceNumber(span, n) {
  const raw = span / n, p = 10 ** Math.floor(Math.log10(Math.max(raw, 1)));
  for (const m of [1, 2, 5, 10]) if (m * p >= raw) return Math.max(1, m * p);
  return 10 * p;
}

function drawAxes(v, c) {
  c.font = `11px ${css('--sans')}`;
  c.textBaseline = 'middle';
  c.textAlign = 'right';
  c.lineWidth = 1;
  const step = niceBytes(v.hi - v.lo, v.plotH / 56);
  for (let b = Math.ceil(v.lo / step) * step; b <= v.hi; b += step) {
    const y = v.y(b);
    c.strokeStyle = b === 0 ? css('--line-strong') : css('--grid');
    c.beginPath();
    c.moveTo(gutter.left, Math.round(y) + 0.5);
    c.lineTo(v.w - gutter.right, Math.round(y) + 0.5);
    c.stroke();
    c.fillStyle = css('--muted');
    c.fillText(axisBytes(b, step), gutter.left - 9, y);
  }
  drawStates(v, c);
  const d = device(), peak = v.greatest, y = v.y(peak);
  if (y > gutter.top - 1 && y < gutter.top + v.plotH && !v.filter) {
    c.strokeStyle = css('--peak');
    c.setLineDash([2, 3]);
    c.beginPath();
    c.moveTo(gutter.left, Math.round(y) + 0.5);
    c.lineTo(v.w - gutter.right, Math.round(y) + 0.5);
    c.stroke();
    c.setLineDash([]);
    const text = `peak ${bytes(peak)}`, state = v.view === 'active' ? d.peak_state : d.cached_peak_state;
    // Beside its state, where the marker stands at first.
    const w = c.measureText(text).width, by = v.x(state) + w + 14 > v.w - gutter.right ? -7 - w / 2 : 7 + w / 2;
    const x = clamp(v.x(state) + by, gutter.left + w / 2 + 6, v.w - gutter.right - w / 2 - 6);
    c.textAlign = 'center';
    c.fillStyle = css('--peak');
    c.strokeStyle = css('--plot');
    c.lineWidth = 4;
    c.lineJoin = 'round';
    c.strokeText(text, x, Math.max(y - 9, gutter.top - 10));
    c.fillText(text, x, Math.max(y - 9, gutter.top - 10));
    c.lineWidth = 1;
  }
  c.textAlign = 'left';
}

// drawStates draws the horizontal axis: event numbers, where their effect begins, and the time below them.
function drawStates(v, c) {
  const d = device(), step = niceNumber(v.to - v.from, v.plotW / 110), bottom = gutter.top + v.plotH;
  c.textAlign = 'center';
  const labelled = d.time_end_us > d.time_start_us;
  const first = v.totalAt(clamp(v.from, 0, d.states - 1)), last = v.totalAt(clamp(v.to - 1, 0, d.states - 1));
  const apart = first && last ? (last.time - first.time) * step / (v.to - v.from) : 1e9;
  let lastRight = -1e9;
  for (let e = Math.max(0, Math.ceil((v.from - 1) / step) * step); e < Math.min(v.to, d.events); e += step) {
    const x = v.x(e + 1);
    c.strokeStyle = css('--line-strong');
    line(c, x, bottom, x, bottom + 4);
    c.fillStyle = css('--muted');
    const text = number(e), w = c.measureText(text).width / 2;
    const middle = Math.max(x, gutter.left + w);
    if (middle - w < lastRight + 8 || middle + w > v.w) continue;
    lastRight = middle + w;
    c.fillText(text, middle, bottom + 13);
    const at = labelled && v.totalAt(e + 1);
    if (at) {
      c.fillStyle = css('--faint');
      const time = axisTime(Math.max(0, at.time - d.time_start_us), apart);
      c.fillText(time, clamp(x, gutter.left + c.measureText(time).width / 2, v.w - 4 - c.measureText(time).width / 2), bottom + 27);
    }
  }
  c.textAlign = 'right';
  c.fillStyle = css('--faint');
  c.fillText('event', gutter.left - 9, bottom + 13);
  if (labelled) c.fillText('time', gutter.left - 9, bottom + 27);
}

// drawDetails draws what only shows when strips are large: edges in time, and names inside.
function drawDetails(v, c) {
  const labels = new Map();
  c.fillStyle = css('--plot');
  let edges = 0;
  for (const t of v.drawn) {
    for (let i = 0; i < t.strips; i++) {
      const height = t.size[i] * v.ky;
      if (height < 3) continue;
      const x0 = v.x(t.first + t.column[2 * i] * t.width), x1 = v.x(t.first + t.column[2 * i + 1] * t.width);
      if (x1 < gutter.left || x0 > v.w) continue;
      if (v.kx * t.width >= 3 && edges < 3000) {
        edges++;
        c.globalAlpha = 0.75;
        if (t.start[i] >= t.first) c.fillRect(Math.round(x0), v.y(t.offset[t.step[i]] + t.size[i]), 1, height);
        c.globalAlpha = 1;
      }
      if (height >= 15) collectRuns(v, t, i, labels);
    }
  }
  c.font = `11px ${css('--sans')}`;
  c.textBaseline = 'middle';
  c.textAlign = 'left';
  let drawn = 0;
  const dimmed = v.hoverStack || where.stack;
  for (const run of labels.values()) {
    const a = Math.max(run.x0, gutter.left), w = Math.min(run.x1, v.w - gutter.right) - a;
    if (w < 62 || drawn > 400 || dimmed && run.stack !== dimmed) continue;
    const y = run.y + run.height / 2;
    if (y < gutter.top + 6 || y > gutter.top + v.plotH - 6) continue;
    drawn++;
    c.fillStyle = css('--on-strip');
    const size = bytes(run.size), s = stackText(run.stack, v.later);
    c.fillText(size, a + 6, y);
    const room = w - 18 - c.measureText(size).width;
    if (s && s.label && room > 40) {
      c.globalAlpha = 0.82;
      c.fillText(fitText(c, shortLabel(s.label), room), a + 13 + c.measureText(size).width, y);
      c.globalAlpha = 1;
    }
  }
}

// collectRuns keeps for every strip its longest stretch at one height, joined across tiles.
function collectRuns(v, t, i, labels) {
  const id = t.id[i], last = t.step[i + 1];
  for (let s = t.step[i]; s < last; s++) {
    const x0 = v.x(t.first + t.at[s] * t.width), x1 = v.x(t.first + (s + 1 < last ? t.at[s + 1] : t.column[2 * i + 1]) * t.width);
    const best = labels.get(id);
    if (best && Math.abs(best.offset - t.offset[s]) * v.ky < 1.5 && Math.abs(best.x1 - x0) < 0.5) {
      best.x1 = x1;
      continue;
    }
    if (x1 < gutter.left || x0 > v.w - gutter.right) continue;
    const seen = Math.min(x1, v.w - gutter.right) - Math.max(x0, gutter.left);
    if (best && Math.min(best.x1, v.w - gutter.right) - Math.max(best.x0, gutter.left) >= seen) continue;
    labels.set(id, {
      x0,
      x1,
      offset: t.offset[s],
      y: v.y(t.offset[s] + t.size[i]),
      height: t.size[i] * v.ky,
      size: t.size[i],
      stack: t.stack[i]
    });
  }
}

function fitText(c, text, room) {
  if (c.measureText(text).width <= room) return text;
  let lo = 0, hi = text.length;
  while (lo < hi) {
    const mid = (lo + hi + 1) >> 1;
    if (c.measureText(text.slice(0, mid) + '…').width <= room) lo = mid;
    else hi = mid - 1;
  }
  return lo > 2 ? text.slice(0, lo) + '…' : '';
}

// drawFlags draws the marker's head, failed allocations and the program's own marks.
function drawFlags(v, c) {
  const d = device(), right = v.w - gutter.right;
  c.font = `11px ${css('--sans')}`;
  c.textBaseline = 'middle';
  let lastRight = gutter.left;
  for (const m of d.marks) {
    const a = Math.max(v.x(m.start), gutter.left), b = Math.min(v.x(m.end), right);
    if (b < gutter.left || a > right || b - a < 1) continue;
    c.fillStyle = css('--mark');
    c.fillRect(a, 3, Math.max(b - a - 1, 1), 14);
    if (b - a > 40 && a >= lastRight - 1) {
      c.fillStyle = css('--ink');
      c.fillText(fitText(c, m.name, b - a - 8), a + 4, 10.5);
      lastRight = b;
    }
  }
  drawFailures(v, c, right);
  const m = markerState(), x = v.x(m);
  if (x >= gutter.left - 1 && x <= right + 1) {
    c.fillStyle = css('--accent');
    c.beginPath();
    c.moveTo(x - 5, gutter.top + v.plotH + 7);
    c.lineTo(x + 5, gutter.top + v.plotH + 7);
    c.lineTo(x, gutter.top + v.plotH);
    c.fill();
  }
}

// drawFailures marks failed allocations; flags that would lie on each other become one with their number.
function drawFailures(v, c, right) {
  const seen = device().ooms.map(o => v.x(o.state)).filter(x => x >= gutter.left && x <= right);
  c.strokeStyle = css('--danger');
  c.setLineDash([3, 3]);
  c.globalAlpha = seen.length > 12 ? 0.45 : 1;
  for (const x of seen) line(c, x, gutter.top, x, gutter.top + v.plotH);
  c.globalAlpha = 1;
  c.setLineDash([]);
  for (let i = 0; i < seen.length;) {
    let n = i + 1;
    while (n < seen.length && (seen[n] < seen[i] + 62 || seen[i] > right - 124)) n++;
    flag(c, seen[i], n - i > 1 ? `OOM × ${n - i}` : 'OOM', css('--danger'), right);
    i = n;
  }
}

function flag(c, x, text, colour, right) {
  const w = c.measureText(text).width + 10, a = Math.min(x, right - w);
  c.fillStyle = colour;
  c.fillRect(a, 4, w, 15);
  c.fillStyle = css('--plot');
  c.fillText(text, a + 5, 12);
}

// drawMinimap draws the whole trace small, with the visible range in it.
function drawMinimap(v) {
  // The canvas keeps the size that it was given, so its place tells the width.
  const w = v.small.parentElement.clientWidth, height = v.small.clientHeight;
  if (w < 50) return;
  sizeCanvas(v.small, w, height, v.ratio);
  const c = v.small.getContext('2d'), d = device();
  c.setTransform(v.ratio, 0, 0, v.ratio, 0, 0);
  c.clearRect(0, 0, w, height);
  const a = gutter.left, plotW = w - gutter.left - gutter.right, k = plotW / Math.max(d.states, 1);
  c.fillStyle = css('--panel');
  c.fillRect(a, 0, plotW, height);
  const level = Math.max(0, d.top_level - 1), most = Math.max(v.greatest * 1.04, 1);
  const finest = info.static ? Math.max(level, info.static.finest_level[info.devices.indexOf(d)]) : level;
  for (let i = 0; i * 512 * 2 ** finest < d.states; i++) {
    const t = tile({ device: d.device, view: v.view, level: finest, index: i, filter: v.filter }, v.later);
    if (t) silhouette(c, t, x => Math.round((a + x * k) * v.ratio) / v.ratio, height, most);
  }
  const x0 = a + v.from * k, x1 = a + Math.min(v.to, d.states) * k;
  c.fillStyle = css('--veil');
  c.fillRect(a, 0, x0 - a, height);
  c.fillRect(x1, 0, a + plotW - x1, height);
  c.strokeStyle = css('--accent');
  c.lineWidth = 1.5;
  c.strokeRect(x0 + 0.75, 0.75, Math.max(x1 - x0 - 1.5, 2), height - 1.5);
  c.fillStyle = css('--accent');
  for (const x of [x0, x1]) {
    c.beginPath();
    c.roundRect(x - 3, height / 2 - 9, 6, 18, 3);
    c.fill();
  }
  const m = a + markerState() * k;
  c.fillRect(m - 0.5, 0, 1, height);
  c.fillStyle = css('--danger');
  c.globalAlpha = d.ooms.length > 12 ? 0.5 : 1;
  for (const o of d.ooms) c.fillRect(a + o.state * k - 0.5, 0, 1, height);
  c.globalAlpha = 1;
}

function silhouette(c, t, x, height, most) {
  c.beginPath();
  c.moveTo(x(t.first), height);
  for (let i = 0; i < t.columns; i++) {
    const y = height - t.peak[i] / most * height;
    c.lineTo(x(t.first + i * t.width), y);
    c.lineTo(x(t.first + (i + 1) * t.width), y);
  }
  c.lineTo(x(t.last), height);
  c.fillStyle = css('--mini');
  c.fill();
}
