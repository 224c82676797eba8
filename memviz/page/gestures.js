'use strict';
// Mouse, wheel and touch on a timeline and on its small map.

function bindGestures(v) {
  const c = v.over;
  const spot = e => {
    const box = v.plot.getBoundingClientRect();
    return { x: e.clientX - box.left, y: e.clientY - box.top };
  };
  bindPinch(v, c, spot);
  c.addEventListener('pointerdown', e => {
    if (e.button !== 0 || device().events === 0) return;
    c.setPointerCapture(e.pointerId);
    v.grab = { ...spot(e), moved: false, brush: e.shiftKey };
  });
  c.addEventListener('pointermove', e => {
    if (v.pinch) return;
    const p = spot(e), g = v.grab;
    v.pointer = p;
    if (g && (g.moved || Math.hypot(p.x - g.x, p.y - g.y) > 3)) {
      g.moved = true;
      if (g.brush) {
        v.brush = [clamp(g.x, gutter.left, v.w - gutter.right), clamp(p.x, gutter.left, v.w - gutter.right)];
      } else {
        v.dragging = true;
        v.pan((g.lastX ?? g.x) - p.x, p.y - (g.lastY ?? g.y));
        [g.lastX, g.lastY] = [p.x, p.y];
      }
    }
    v.moved();
  });
  c.addEventListener('pointerup', e => {
    const p = spot(e), g = v.grab;
    v.grab = null;
    v.dragging = false;
    if (!g) return;
    if (v.brush) {
      const [a, b] = v.brush.map(x => v.stateAt(x)).sort((x, y) => x - y);
      v.brush = null;
      v.zoomTo(a, b, undefined, undefined, true);
    } else if (!g.moved) {
      v.pick(p);
    }
    v.schedule();
  });
  c.addEventListener('pointercancel', () => {
    v.grab = v.brush = null;
    v.dragging = false;
    v.schedule();
  });
  c.addEventListener('pointerleave', () => {
    if (v.grab) return;
    v.pointer = null;
    v.moved();
  });
  c.addEventListener('dblclick', e => {
    const hit = v.hit(spot(e).x, spot(e).y);
    if (hit) v.reveal(hit.t.start[hit.i], Math.min(hit.t.end[hit.i], device().states));
  });
  c.addEventListener('wheel', e => {
    e.preventDefault();
    const p = spot(e), unit = e.deltaMode === 1 ? 16 : e.deltaMode === 2 ? 400 : 1;
    const dx = e.deltaX * unit, dy = e.deltaY * unit;
    if (e.altKey || p.x < gutter.left) v.zoomHeight(Math.exp(clamp(dy, -160, 160) * 0.003), p.y);
    else if (e.shiftKey) v.pan(dx || dy);
    else if (Math.abs(dx) > Math.abs(dy)) v.pan(dx);
    else v.zoom(Math.exp(clamp(dy, -160, 160) * (e.ctrlKey ? 0.012 : 0.003)), p.x);
  }, { passive: false });
  bindMinimap(v);
}

// bindPinch zooms with two fingers: what is between them stays between them.
function bindPinch(v, c, spot) {
  const fingers = new Map();
  c.addEventListener('pointerdown', e => {
    if (e.pointerType !== 'touch') return;
    fingers.set(e.pointerId, spot(e).x);
    v.pinch = fingers.size === 2;
    if (v.pinch) v.grab = null;
  });
  c.addEventListener('pointermove', e => {
    if (!fingers.has(e.pointerId)) return;
    const before = [...fingers.values()];
    fingers.set(e.pointerId, spot(e).x);
    if (!v.pinch) return;
    const now = [...fingers.values()], apart = x => Math.max(Math.abs(x[0] - x[1]), 8), middle = x => (x[0] + x[1]) / 2;
    v.pan(middle(before) - middle(now));
    v.zoom(apart(before) / apart(now), middle(now));
  });
  for (const end of ['pointerup', 'pointercancel']) {
    c.addEventListener(end, e => {
      fingers.delete(e.pointerId);
      if (fingers.size === 0) v.pinch = false;
    });
  }
}

// moved redraws what follows the mouse, at most once a frame.
Timeline.prototype.moved = function () {
  if (this.frame || this.overFrame) return;
  this.overFrame = requestAnimationFrame(() => {
    this.overFrame = 0;
    if (this.frame || !this.root.isConnected) return;
    this.drawOver();
    this.showStatus();
  });
};

// pick selects what is at a point and moves the marker there.
Timeline.prototype.pick = function (p) {
  if (p.x < gutter.left) return;
  const hit = this.hit(p.x, p.y), state = clamp(Math.floor(this.stateAt(p.x)), 0, device().states - 1);
  const change = { state };
  if (this.view === 'active') Object.assign(change, { sel: hit ? hit.id : -1, seg: -1 });
  else Object.assign(change, { seg: hit ? hit.id : -1, sel: -1 });
  update(change, true);
};

function bindMinimap(v) {
  const c = v.small;
  const stateOf = e => {
    const box = c.getBoundingClientRect();
    return (e.clientX - box.left - gutter.left) / Math.max(box.width - gutter.left - gutter.right, 1) * device().states;
  };
  const near = e => {
    const box = c.getBoundingClientRect(), slack = 7 * device().states / box.width, s = stateOf(e), r = range(1);
    if (Math.abs(s - r.from) < slack) return 'from';
    if (Math.abs(s - r.to) < slack) return 'to';
    return s > r.from && s < r.to && r.to - r.from < device().states ? 'all' : 'new';
  };
  c.addEventListener('pointerdown', e => {
    c.setPointerCapture(e.pointerId);
    v.mini = { kind: near(e), at: stateOf(e), ...range(1) };
  });
  c.addEventListener('pointermove', e => {
    const g = v.mini, s = stateOf(e);
    if (!g) {
      c.style.cursor = { from: 'ew-resize', to: 'ew-resize', all: 'grab', new: 'crosshair' }[near(e)];
      return;
    }
    g.moved = true;
    if (g.kind === 'from') v.zoomTo(Math.min(s, g.to - 8), g.to);
    else if (g.kind === 'to') v.zoomTo(g.from, Math.max(s, g.from + 8));
    else if (g.kind === 'all') v.zoomTo(g.from + s - g.at, g.to + s - g.at);
    else v.zoomTo(Math.min(s, g.at), Math.max(s, g.at));
  });
  c.addEventListener('pointerup', e => {
    const g = v.mini;
    v.mini = null;
    if (g && !g.moved && g.kind === 'new') {
      const span = g.to - g.from;
      v.zoomTo(stateOf(e) - span / 2, stateOf(e) + span / 2);
    }
  });
}

// showTip places the tooltip near the pointer, inside the window.
function showTip(place, p, ...content) {
  const tip = byId('tip'), box = place.getBoundingClientRect();
  put(tip, content);
  tip.hidden = false;
  const w = tip.offsetWidth, height = tip.offsetHeight;
  let x = box.left + p.x + 14, y = box.top + p.y + 16;
  if (x + w > innerWidth - 8) x = box.left + p.x - w - 12;
  if (y + height > innerHeight - 8) y = box.top + p.y - height - 12;
  tip.style.transform = `translate(${Math.max(4, Math.round(x))}px, ${Math.max(4, Math.round(y))}px)`;
}

function hideTip() {
  byId('tip').hidden = true;
}
