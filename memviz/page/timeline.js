'use strict';
// The timelines: strips of live allocations (or of segments) stacked over the states of the trace, with a small map of the whole below.

const gutter = { left: 74, bottom: 38, top: 22, right: 14 };

class Timeline {
  constructor(view) {
    this.view = view; // of the protocol: active or cached
    this.pointer = null; // {x, y} in CSS pixels of the plot, while the mouse is over it
    this.hoverStack = 0;
    this.drawn = []; // tiles of the last picture, left to right
    this.base = h('canvas', { class: 'layer' });
    this.over = h('canvas', {
      class: 'layer', tabindex: '0', role: 'application', 'aria-roledescription': 'timeline',
      'aria-label': view === 'active' ? 'Active memory timeline' : 'Cached memory timeline', 'aria-describedby': 'timeline-how',
    });
    this.small = h('canvas', { class: 'minimap', 'aria-hidden': 'true' });
    this.plot = h('div', { class: 'plot' }, this.base, this.over);
    this.status = h('div', { class: 'status' });
    this.facts = h('div', { class: 'facts' });
    this.root = h('div', { class: 'timeline' },
      this.facts,
      this.plot,
      this.small,
      this.status,
      h('p', { class: 'hidden', id: 'timeline-how' },
        'Arrow keys pan, plus and minus zoom, comma and full stop move the marker, Enter selects the largest allocation at the marker, '
          + 'brackets walk through those there.'));
    this.later = () => this.schedule();
    bindGestures(this);
    new ResizeObserver(() => this.schedule()).observe(this.plot);
  }

  // whole is the greatest total of the view, greatest that of what is shown, which a search may narrow.
  get whole() {
    return this.view === 'active' ? device().max_active : device().max_cached;
  }

  get filter() {
    return this.view === 'active' && where.only && where.q && !info.static ? where.q : undefined;
  }

  get greatest() {
    if (!this.filter) return this.whole;
    const d = device(), t = tile({ device: d.device, view: this.view, level: d.top_level, index: 0, filter: this.filter }, this.later);
    return t ? t.greatest : this.whole;
  }

  // show puts the view into place; hide is called when another takes it.
  show(place) {
    put(place, this.root);
    this.fillFacts();
    this.schedule();
  }

  hide() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    hideTip();
  }

  schedule() {
    if (!this.frame && this.root.isConnected) this.frame = requestAnimationFrame(() => { this.frame = 0; this.draw(); });
  }

  // changed is called with the names of what changed in where.
  changed(what) {
    if (what.has('device') || what.has('colour') || what.has('sel') || what.has('stack') || what.has('q') || what.has('only'))
      this.fillFacts();
    this.schedule();
  }

  fillFacts() {
    const d = device(),
      active = this.view === 'active';
    const fact = (name, value, title, go) =>
      h('span', { class: 'fact', title }, h('b', {}, value), go ? h('button', { class: 'link', onclick: go }, name) : h('span', {}, name));
    const peak = active ? d.peak_state : d.cached_peak_state;
    const modes = colourModes.filter(
      ([k]) => (k !== 'category' || info.categorised) && (k !== 'pool' || d.pools.length > 2) && (k !== 'stream' || d.streams.length > 1));
    const s = where.stack ? stackText(where.stack, () => this.fillFacts()) : null;
    headline(this.facts,
      [
        fact('peak', bytes(this.whole), `State ${number(peak)}: go there (p)`, () => goToPeak(this.view)),
        active
          ? fact('reserved', bytes(d.max_cached), 'Greatest total of segments')
          : fact('in use', bytes(d.max_active), 'Greatest total of live allocations'),
        fact('at end', bytes(active ? d.end_active : d.end_cached)),
        fact(d.events === 1 ? 'event' : 'events', number(d.events)),
        active
          ? fact(d.allocations === 1 ? 'allocation' : 'allocations', number(d.allocations))
          : fact('segments at the end', number(d.segments)),
        d.time_end_us > d.time_start_us ? fact('', duration(d.time_end_us - d.time_start_us), 'From the first event to the last') : null],
      d.events === 0
        ? []
        : [
            where.stack
              ? h('button', { class: 'chip', title: 'Stop highlighting this stack (Escape)', onclick: () => update({ stack: 0 }) },
                  h('i', { style: { background: stackColour(where.stack) } }),
                  `${s && s.label ? callName(splitLabel(s.label)) : 'one stack'} ✕`)
              : null,
            h('label', { class: 'choose' },
              'Colour by ',
              h('select', { onchange: e => update({ colour: e.target.value }), id: 'colour' },
                modes.map(([k, name]) => h('option', { value: k, selected: where.colour === k }, name)))),
            h('button', { class: 'small', title: 'Whole trace (0)', onclick: () => this.zoomTo(0, device().states, 0, 0) }, 'Whole'),
            h('button', { class: 'small', title: 'Heights to what is visible (f)', onclick: () => this.fitHeight() }, 'Fit height')]);
  }

  // measure sets the sizes of the canvases and the scales.
  measure() {
    const box = this.plot.getBoundingClientRect();
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    const w = Math.max(200, Math.floor(box.width)), height = Math.max(120, Math.floor(box.height));
    for (const c of [this.base, this.over]) sizeCanvas(c, w, height, ratio);
    const r = range(this.greatest);
    const plotW = w - gutter.left - gutter.right, plotH = height - gutter.bottom - gutter.top;
    Object.assign(this, { ratio, w, h: height, plotW, plotH, ...r, kx: plotW / (r.to - r.from), ky: plotH / (r.hi - r.lo) });
  }

  x(state) { return gutter.left + (state - this.from) * this.kx; }
  y(byte) { return gutter.top + this.plotH - (byte - this.lo) * this.ky; }
  stateAt(x) { return this.from + (x - gutter.left) / this.kx; }
  byteAt(y) { return this.lo + (gutter.top + this.plotH - y) / this.ky; }

  // wanted lists the parameters of the tiles for the visible range.
  wanted(from, to, pixels, filter) {
    const d = device();
    let level = Math.ceil(Math.log2(Math.max((to - from) / pixels, 1)));
    if (info.static) level = Math.max(level, info.static.finest_level[info.devices.indexOf(d)]);
    level = clamp(level, 0, d.top_level);
    const size = 512 * 2 ** level, list = [];
    for (let i = Math.floor(Math.max(from, 0) / size); i * size < Math.min(to, d.states); i++) {
      list.push({ device: d.device, view: this.view, level, index: i, filter, ...this.detail() });
    }
    return list;
  }

  // detail adds the parameters of vertical zoom: what is small there may be large here.
  detail() {
    const span = this.hi - this.lo;
    if (info.static || !(span < this.whole / 2)) return {};
    const window = 2 ** Math.ceil(Math.log2(span * 2)), step = window / 2;
    const lo = Math.max(0, Math.floor(this.lo / step) * step);
    return { min: 2 ** Math.max(0, Math.floor(Math.log2(span / (this.plotH * 2)))), lo, hi: lo + window };
  }

  draw() {
    const began = performance.now();
    this.measure();
    const c = this.base.getContext('2d');
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.fillStyle = css('--plot');
    c.fillRect(0, 0, this.w, this.h);
    if (device().events === 0) {
      this.drawEmpty(c);
      return;
    }
    this.budget = began + 14;
    this.more = false;
    c.save();
    c.beginPath();
    c.rect(gutter.left, gutter.top, this.plotW, this.plotH);
    c.clip();
    this.drawn = [];
    for (const p of this.wanted(this.from, this.to, this.plotW * this.ratio, this.filter)) {
      const t = tile(p, this.later);
      if (t) this.drawTile(c, t, p);
      else this.drawSubstitute(c, p);
    }
    drawDetails(this, c);
    c.restore();
    drawAxes(this, c);
    if (this.whole === 0)
      this.drawWords(c,
        this.view === 'active'
          ? 'No allocation is known: none was live, and the trace holds none.'
          : 'No segment is known: the trace holds none, and neither does the snapshot.');
    this.drawOver();
    drawMinimap(this);
    this.showStatus();
    if (this.more) this.schedule();
    this.cost = performance.now() - began;
  }

  // drawWords writes lines into the middle of the plot.
  drawWords(c, ...lines) {
    c.fillStyle = css('--muted');
    c.font = `14px ${css('--sans')}`;
    c.textAlign = 'center';
    lines.forEach((text, k) => c.fillText(text, this.w / 2, this.h / 2 + 24 * (k - (lines.length - 1) / 2)));
    c.textAlign = 'left';
  }

  drawEmpty(c) {
    this.drawWords(c,
      'The trace of this device is empty: record with history enabled to see a timeline.',
      'Its segments and blocks are under “Allocator state”.');
    this.drawn = [];
    this.drawOver();
    this.small.getContext('2d').clearRect(0, 0, this.small.width, this.small.height);
    put(this.status);
  }

  // litOf returns what stands out in a tile, with a stamp that tells one choice from another.
  litOf(t, p) {
    const stack = this.hoverStack || where.stack;
    if (stack) return { lit: i => t.stack[i] === stack, stamp: `s${stack}` };
    if (where.q && !where.only && this.view === 'active' && !searchBroken()) {
      if (embedded) {
        const f = localFilter(where.q);
        return { lit: i => f(t, i), stamp: `l${where.q} ${stackTexts.size}` };
      }
      const f = tile({ ...p, filter: where.q }, this.later);
      if (f) return { lit: i => stripOf(f, t.id[i]) >= 0, stamp: `q${where.q}` };
    }
    return { lit: null, stamp: '' };
  }

  // drawTile draws a tile's picture, made anew where that fits into this frame.
  drawTile(c, t, p) {
    this.drawn.push(t);
    const px = Math.round(this.plotH * this.ratio), { lit, stamp } = this.litOf(t, p);
    const full = `${where.colour} ${document.documentElement.dataset.theme} ${stamp}`;
    let pic = t.picture;
    if (!pic || pic.stamp !== full || pic.lo !== this.lo || pic.hi !== this.hi || pic.h !== px) {
      if (!pic || performance.now() < this.budget) pic = picture(t, this.lo, this.hi, px, lit, full);
      else this.more = true;
    }
    this.place(c, t, pic, this.x(t.first), this.x(t.last));
  }

  place(c, t, pic, x0, x1) {
    const r = this.ratio, a = Math.round(x0 * r) / r, b = Math.round(x1 * r) / r;
    c.imageSmoothingEnabled = false;
    c.drawImage(pic.canvas, a, this.y(pic.hi), b - a, (pic.hi - pic.lo) * this.ky);
  }

  // drawSubstitute draws a coarser tile that is here already, cut to the range of the one that is not.
  drawSubstitute(c, p) {
    const size = 512 * 2 ** p.level, from = p.index * size, to = from + size;
    for (let level = p.level; level <= device().top_level; level++) {
      const index = Math.floor(from / (512 * 2 ** level));
      for (const extra of [p.lo === undefined ? null : { min: p.min, lo: p.lo, hi: p.hi }, {}]) {
        if (!extra) continue;
        const q = { device: p.device, view: p.view, level, index, filter: p.filter, ...extra };
        const top = level === device().top_level && !Object.keys(extra).length;
        const t = top ? tile(q, this.later) : tiles.get(request('tile', q));
        if (!t) continue;
        c.save();
        c.beginPath();
        c.rect(this.x(from), 0, (to - from) * this.kx, this.h);
        c.clip();
        this.drawTile(c, t, q);
        c.restore();
        return;
      }
    }
  }

  // hit returns the strip at a point of the plot, or null.
  hit(x, y) {
    if (x < gutter.left || x > this.w - gutter.right || y < gutter.top || y > gutter.top + this.plotH) return null;
    return this.stripAt(this.stateAt(x), this.byteAt(y), 1.5 / this.ky);
  }

  stripAt(state, byte, slack) {
    let best = null;
    for (const t of this.drawn) {
      const col = Math.floor((state - t.first) / t.width);
      if (col < 0 || col >= t.columns) continue;
      for (let i = 0; i < t.strips; i++) {
        if (t.column[2 * i] > col || t.column[2 * i + 1] <= col) continue;
        const off = t.offset[stepAt(t, i, col)];
        const away = byte < off ? off - byte : byte > off + t.size[i] ? byte - off - t.size[i] : 0;
        if (away <= slack && (!best || away < best.away)) best = { t, i, away, id: t.id[i] };
        if (away === 0) return best;
      }
    }
    return best;
  }

  // stripsAt lists the strips of one state, lowest first.
  stripsAt(state) {
    const t = this.drawn.find(t => state >= t.first && state < t.last), list = [];
    if (!t) return list;
    const col = Math.floor((state - t.first) / t.width);
    for (let i = 0; i < t.strips; i++) {
      if (t.column[2 * i] <= col && t.column[2 * i + 1] > col) list.push({ id: t.id[i], size: t.size[i], t, i });
    }
    return list;
  }

  // totalAt returns the greatest total near a state, from the finest tile here.
  totalAt(state) {
    const t = this.drawn.find(t => state >= t.first && state < t.last);
    if (!t) return null;
    const col = Math.floor((state - t.first) / t.width);
    return { total: t.width === 1 ? t.total[col] : t.peak[col], time: t.time[col], exact: t.width === 1 };
  }

  outline(id) {
    const top = [], bottom = [];
    for (const t of this.drawn) {
      const i = stripOf(t, id);
      if (i < 0) continue;
      const last = t.step[i + 1];
      for (let s = t.step[i]; s < last; s++) {
        const a = this.x(t.first + t.at[s] * t.width), b = this.x(t.first + (s + 1 < last ? t.at[s + 1] : t.column[2 * i + 1]) * t.width);
        const y1 = this.y(t.offset[s]), y0 = this.y(t.offset[s] + t.size[i]);
        top.push([a, y0], [b, y0]);
        bottom.push([a, y1], [b, y1]);
      }
    }
    if (!top.length) return null;
    const path = new Path2D();
    top.forEach(([x, y], k) => k ? path.lineTo(x, y) : path.moveTo(x, y));
    bottom.reverse().forEach(([x, y]) => path.lineTo(x, y));
    path.closePath();
    return path;
  }

  // drawOver draws what follows the mouse and the selection; the strips stay as they are.
  drawOver() {
    const c = this.over.getContext('2d');
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.clearRect(0, 0, this.w, this.h);
    hideTip();
    if (device().events === 0) return;
    c.save();
    c.beginPath();
    c.rect(gutter.left, gutter.top - 1, this.plotW, this.plotH + 2);
    c.clip();
    const hover = this.pointer && !this.dragging ? this.hit(this.pointer.x, this.pointer.y) : null;
    const selected = this.view === 'active' ? where.sel : where.seg;
    if (hover && hover.id !== selected) this.strokeStrip(c, hover.id, 1, 'hover');
    if (selected >= 0) this.strokeStrip(c, selected, 2, 'selected');
    const m = markerState();
    c.strokeStyle = css('--accent');
    c.lineWidth = 1;
    c.setLineDash([4, 3]);
    line(c, this.x(m), gutter.top, this.x(m), gutter.top + this.plotH);
    c.setLineDash([]);
    if (this.pointer && !this.dragging && this.pointer.x > gutter.left) {
      c.strokeStyle = css('--cross');
      line(c, this.pointer.x, gutter.top, this.pointer.x, gutter.top + this.plotH);
    }
    if (this.brush) {
      c.fillStyle = css('--brush');
      c.fillRect(Math.min(...this.brush), gutter.top, Math.abs(this.brush[1] - this.brush[0]), this.plotH);
    }
    c.restore();
    drawFlags(this, c);
    if (hover) this.tip(hover);
    this.over.style.cursor = this.dragging ? 'grabbing' : hover ? 'pointer' : 'crosshair';
  }

  strokeStrip(c, id, width, kind) {
    const path = this.outline(id);
    if (!path) return;
    c.fillStyle = css(kind === 'hover' ? '--hover-wash' : '--select-wash');
    c.fill(path);
    c.lineJoin = 'round';
    c.strokeStyle = css('--plot');
    c.lineWidth = width + 2;
    c.stroke(path);
    c.strokeStyle = css('--ink');
    c.lineWidth = width;
    c.stroke(path);
  }

  tip({ t, i }) {
    const s = stackText(t.stack[i], this.later),
      d = device();
    const marks = t.marks[i],
      pool = d.pools[(marks >> 8) & 255];
    const lines = [
      h('b', {}, bytes(t.size[i])),
      ' ',
      h('span', { class: 'tip-kind' }, this.view === 'active' ? info.categories[(marks >> 16) & 255] || '' : 'segment')];
    const life = (marks >>> 24) & 1 ? 'since before the trace' : `from event ${number(t.start[i] - 1)}`;
    const till = (marks >>> 25) & 1 ? 'to the end' : `for ${plural(t.end[i] - t.start[i], 'event')}`;
    const meta = [`stream ${streamName(d.streams[marks & 255])}`];
    if (pool && pool !== '(0,0)') meta.push(`private pool ${pool}`);
    showTip(this.plot,
      this.pointer,
      h('div', {}, lines),
      s && s.label && t.stack[i]
        ? h('div', { class: 'tip-stack' },
            h('i', { style: { background: rgbText(colourRGB(colourKey(t, i))) } }),
            h('span', {},
              labelElement(s.label),
              callersOf(s, 3).map(x => h('div', { class: 'caller' }, x))))
        : h('div', { class: 'faint' }, t.stack[i] ? '' : 'no stack recorded'),
      h('div', { class: 'tip-life' }, `${life}, ${till}`),
      h('div', { class: 'tip-life' }, meta.join(' · ')));
  }

  showStatus() {
    if (device().events === 0) return;
    const at = this.pointer && this.pointer.x > gutter.left ? this.stateAt(this.pointer.x) : markerState();
    const d = device(), total = this.totalAt(at), s = clamp(Math.floor(at), 0, d.states - 1);
    const text = [h('b', {}, s === 0 ? 'before the trace' : `event ${number(s - 1)}`)];
    if (total) {
      if (d.time_start_us) text.push(h('span', {}, `+${duration(Math.max(0, total.time - d.time_start_us))}`));
      text.push(h('span', {}, `${total.exact ? '' : '≤ '}${bytes(total.total)} ${this.view === 'active' ? 'active' : 'cached'}`));
    }
    const left = this.drawn.reduce((n, t) => n + t.without, 0);
    if (left)
      text.push(
        h('span', { class: 'faint', title: 'They are part of the grey silhouette; zoom in to see them.' },
          `${number(left)} too small or brief to draw here`));
    if (
      info.static
      && this.drawn.length
      && this.drawn[0].level === info.static.finest_level[info.devices.indexOf(d)]
      && this.kx * this.drawn[0].width > 4
    ) {
      text.push(h('span', { class: 'faint' }, 'finest level of this static file'));
    }
    put(this.status,
      ...text,
      h('span', { class: 'grow' }),
      where.colour === 'stack'
        ? h('span', { class: 'faint keys-hint' },
            'wheel zooms · drag pans · shift-drag picks a range · ',
            h('button', { class: 'link', onclick: showHelp }, '? for keys'))
        : colourLegend());
  }

  // zoomTo changes the visible range; zero bytes mean the default heights.
  zoomTo(from, to, lo, hi, push) {
    const d = device(), least = Math.min(8, d.states);
    let span = clamp(to - from, least, d.states);
    from = clamp(from, 0, d.states - span);
    if (span >= d.states) from = span = 0;
    update({ from, to: from + span, lo: lo ?? where.lo, hi: hi ?? where.hi }, push);
  }

  zoom(factor, x) {
    this.measure();
    const at = this.stateAt(x ?? clamp(this.x(markerState()), gutter.left, this.w - gutter.right));
    this.zoomTo(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  pan(pixels, up) {
    this.measure();
    const dx = pixels / this.kx, span = this.to - this.from, from = clamp(this.from + dx, 0, device().states - span);
    const change = { from, to: from + span };
    if (span >= device().states) change.from = change.to = 0;
    if (up && where.hi > where.lo) {
      const lo = Math.max(0, this.lo + up / this.ky);
      Object.assign(change, { lo, hi: lo + this.hi - this.lo });
    }
    update(change);
  }

  zoomHeight(factor, y) {
    this.measure();
    const at = y === undefined ? (this.lo + this.hi) / 2 : this.byteAt(y), most = Math.max(this.greatest * 1.06, 1);
    const span = clamp((this.hi - this.lo) * factor, 1024, most);
    const lo = Math.max(0, at - (at - this.lo) / (this.hi - this.lo) * span);
    if (span >= most) update({ lo: 0, hi: 0 });
    else update({ lo, hi: lo + span });
  }

  // fitHeight makes the visible totals fill the height.
  fitHeight() {
    let most = 0;
    for (const t of this.drawn) {
      const a = clamp(Math.floor((this.from - t.first) / t.width), 0, t.columns),
        b = clamp(Math.ceil((this.to - t.first) / t.width), 0, t.columns);
      for (let c = a; c < b; c++) most = Math.max(most, t.peak[c]);
    }
    if (most * 1.06 >= this.greatest) update({ lo: 0, hi: 0 });
    else if (most > 0) update({ lo: 0, hi: most * 1.08 });
  }

  // reveal brings states [start, end) into view with room on both sides.
  reveal(start, end) {
    const room = Math.max((end - start) * 0.3, 20);
    this.zoomTo(start - room, end + room, 0, 0, true);
  }
}

function sizeCanvas(c, w, height, ratio) {
  const pw = Math.round(w * ratio), ph = Math.round(height * ratio);
  if (c.width !== pw || c.height !== ph) {
    c.width = pw;
    c.height = ph;
    c.style.width = `${w}px`;
    c.style.height = `${height}px`;
  }
}

function line(c, x0, y0, x1, y1) {
  c.beginPath();
  c.moveTo(Math.round(x0) + 0.5, y0);
  c.lineTo(Math.round(x1) + 0.5, y1);
  c.stroke();
}

const streamName = s => s === undefined ? '?' : s === '0' ? '0 (default)' : s;

function goToPeak(view) {
  const d = device(), s = view === 'cached' ? d.cached_peak_state : d.peak_state;
  update({ state: s, lo: 0, hi: 0 });
  const r = range(1),
    span = r.to - r.from;
  if (s < r.from || s >= r.to)
    update({ from: clamp(s - span / 2, 0, d.states - span), to: clamp(s - span / 2, 0, d.states - span) + span });
  say(`Marker at the peak, state ${s}`);
}
