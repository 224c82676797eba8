'use strict';
// Allocator State History: the events at the left, every segment with its blocks beside them, as of the marked state.

const lineHeight = 26, barHeight = 18;

class BlockView {
  constructor() {
    this.table = new EventTable();
    this.canvas = h('canvas', { class: 'layer', role: 'img', 'aria-label': 'Segments and their blocks' });
    this.spacer = h('div');
    this.scroller = h('div', { class: 'blocks', tabindex: '0', 'aria-label': 'Block map' }, this.canvas, this.spacer);
    this.head = h('div', { class: 'facts' });
    this.slider = h('input', {
      type: 'range',
      min: '0',
      step: '1',
      'aria-label': 'State',
      class: 'slider',
      oninput: e => update({ state: Number(e.target.value) })
    });
    this.legend = h('div', { class: 'legend block-legend' });
    this.root = h('div', { class: 'state-view' },
      this.head,
      this.slider,
      h('div', { class: 'split' }, this.table.scroller, h('div', { class: 'map' }, this.scroller, this.legend)));
    this.zoomed = 1;
    this.hoverStack = 0;
    this.scroller.addEventListener('scroll', () => this.schedule(), { passive: true });
    this.scroller.addEventListener('pointermove', e => this.hover(e));
    this.scroller.addEventListener('pointerleave', () => { this.over = null; hideTip(); this.schedule(); });
    this.scroller.addEventListener('click', () => this.over && update({ sel: this.over.b ? this.over.b.id : -1 }, true));
    this.scroller.addEventListener('wheel', e => this.wheel(e), { passive: false });
    new ResizeObserver(() => { this.layout(); this.schedule(); }).observe(this.scroller);
  }

  show(place) {
    put(place, this.root);
    this.slider.max = String(device().states - 1);
    this.table.show();
    this.load();
  }

  hide() {
    hideTip();
  }

  changed(what) {
    if (what.has('device')) {
      this.slider.max = String(device().states - 1);
      this.table.show();
    }
    if (what.has('state') || what.has('device')) this.table.reveal(markerState());
    if (what.has('state') || what.has('device') || what.has('q')) this.load();
    this.schedule();
  }

  async load() {
    const d = device(), s = markerState(), near = nearestState(s);
    this.slider.value = String(s);
    this.turn = (this.turn || 0) + 1;
    const turn = this.turn;
    try {
      const map = await ask('blocks', { device: d.device, state: near });
      const pools = near === d.states - 1 ? await treesFor(d) : [], lit = await this.matches(near);
      if (turn !== this.turn) return;
      this.map = map; // with its segments at once, since the view may be laid out at any time
      this.lit = lit;
      this.placeOutputs([...map.segments, ...map.strays.map(strayed)], pools);
      this.fault = '';
      if (near !== s) update({ state: near }); // a static file holds some states only; the list shows them
    } catch (e) {
      if (turn !== this.turn) return;
      this.map = null;
      this.fault = e.message;
    }
    this.layout();
    this.fillHead();
    this.schedule();
  }

  // placeOutputs finds the outputs of graphs in the segments. If the search names a graph, it leaves only the segments that the graph
  // needs. After a replay, outputs have memory that the allocator counts as free: these are a segment's lent pieces.
  placeOutputs(segments, pools) {
    const outputs = liveOutputs(pools), found = pools.length ? foundNodes(pools) : null;
    const needed = found && found.flatMap(n => n.segments).map(BigInt);
    this.segments = segments.filter(s => {
      s.base = BigInt(s.addr);
      return !needed || needed.some(a => a >= s.base && a < s.base + BigInt(s.size));
    });
    this.only = this.segments.length < segments.length ? where.q : '';
    this.wanted = found && new Set(found);
    for (const s of this.segments) {
      s.lent = [];
      if (s.stray) continue;
      for (const o of outputs) {
        const offset = Number(o.begin - s.base);
        if (offset < 0 || offset >= s.size) continue;
        const b = s.blocks.find(b => offset >= b.offset && offset < b.offset + b.size);
        if (b) b.output = o;
        else s.lent.push({ ...o, offset });
      }
    }
  }

  // matches returns the allocations of a state that the search finds, or null where nothing is searched for.
  async matches(state) {
    if (!where.q || embedded) return null;
    try {
      const found = await ask('search', { device: device().device, q: `${where.q} state:${state}`, limit: 4000 });
      return new Set(found.results.map(a => a.id));
    } catch {
      return null; // the details say what is wrong with the query
    }
  }

  fillHead() {
    const m = this.map, s = markerState(), traced = device().events > 0;
    this.fillLegend();
    if (!m) {
      headline(this.head, [h('span', { class: 'danger' }, this.fault)], []);
      return;
    }
    let size = 0, active = 0, largest = 0, count = 0, pools = new Set();
    for (const g of this.segments.filter(g => !g.stray)) {
      size += g.size;
      count++;
      active += g.active;
      largest = Math.max(largest, g.largest);
      if (isPrivate(g)) pools.add(g.pool);
    }
    const fact = (name, value, title) => h('span', { class: 'fact', title }, h('b', {}, value), h('span', {}, name));
    headline(this.head,
      [
        traced
          ? fact(s === 0 ? 'before the trace' : `of ${plural(device().events, 'event')}`, s === 0 ? 'state 0' : `event ${number(s - 1)}`)
          : fact('without a trace', 'the snapshot’s own state'),
        fact('in segments', bytes(size)),
        fact('active', `${bytes(active)} · ${percent(active, size)}`),
        fact('largest free piece', bytes(largest), 'An allocation larger than this needs a new segment'),
        fact(count === 1 ? 'segment' : 'segments', number(count)),
        pools.size ? fact(pools.size === 1 ? 'private pool' : 'private pools', number(pools.size)) : null,
        this.only ? h('span', { class: 'chip' }, `only segments of “${this.only}”`) : null],
      [
        h('button', { class: 'small', title: 'To the peak (p)', onclick: () => goToPeak('active') }, 'Peak'),
        h('button', { class: 'small', title: 'All segments in sight (0)', onclick: () => this.setZoom(1) }, 'Fit'),
        h('button', { class: 'small', title: 'Larger blocks (+)', 'aria-label': 'Larger', onclick: () => this.setZoom(this.zoomed * 1.5) },
          '+'),
        h(
          'button',
          { class: 'small', title: 'Smaller blocks (−)', 'aria-label': 'Smaller', onclick: () => this.setZoom(this.zoomed / 1.5) },
          '−')]);
  }

  // fillLegend explains what the map shows, as far as that occurs in it.
  fillLegend() {
    const of = test => (this.segments || []).some(test), e = this.current();
    const pending = of(s => s.blocks.some(b => b.pending)), pools = of(isPrivate), event = e ? (frees(e.action) ? 'gone' : 'now') : '';
    const lent = of(s => s.lent && s.lent.length > 0);
    const key = `${pending} ${pools} ${lent} ${event}`;
    if (this.explained === key) return;
    this.explained = key;
    const name = (cls, text) => h('span', {}, h('i', { class: cls }), text);
    put(this.legend,
      h('span', {}, 'Colour is the stack'),
      name('free', 'free'),
      pending ? name('pending', 'freed, still in use elsewhere') : null,
      pools ? name('private', 'private pool') : null,
      lent ? name('lent', 'output of a replay, free to the allocator') : null,
      event ? name(event, event === 'gone' ? 'freed by this event' : 'made by this event') : null);
  }

  setZoom(z) {
    this.zoomed = clamp(z, 1, 4096);
    this.layout();
    this.schedule();
  }

  wheel(e) {
    if (!e.ctrlKey && !e.altKey) return;
    e.preventDefault();
    this.setZoom(this.zoomed * Math.exp(-clamp(e.deltaY, -160, 160) * 0.006));
  }

  // layout places segments like words in lines: groups by pool and stream, larger first, cut where a line ends.
  layout() {
    this.pieces = [];
    this.titles = [];
    if (!this.map || !this.scroller.isConnected) return;
    const w = this.scroller.clientWidth - 32, groups = groupSegments(this.segments);
    if (w < 60 || !groups.length) return;
    const whole = this.segments.reduce((n, g) => n + g.size, 0);
    const lines = Math.max(3, Math.floor((this.scroller.clientHeight - 24 - groups.length * 52) / lineHeight) - groups.length);
    if (this.zoomed === 1) this.scale = this.fitScale(groups, w, lines, whole);
    const k = this.scale * this.zoomed;
    let y = 14;
    for (const g of groups) {
      this.titles.push({ y, g });
      y += 26;
      y = this.flow(g.segments, k, w, y) + lineHeight + 12;
    }
    this.spacer.style.height = `${y}px`;
    this.total = y;
  }

  // fitScale finds the pixels a byte for which all lines are used, by halving.
  fitScale(groups, w, lines, whole) {
    let lo = w / Math.max(whole, 1) / 8, hi = w * lines * 2 / Math.max(whole, 1);
    // A segment fills more than a line only where it has many blocks, or where lines are needed anyway.
    const largest = this.segments.reduce((a, s) => s.size > a.size ? s : a);
    if (whole / largest.size < lines / 4) hi = Math.min(hi, (w - 2) / largest.size * Math.max(1, largest.blocks.length / 8));
    for (let i = 0; i < 24; i++) {
      const mid = Math.sqrt(lo * hi);
      let used = 0;
      for (const g of groups) {
        this.pieces = [];
        used += this.flow(g.segments, mid, w, 0) / lineHeight + 1;
      }
      if (used <= lines) lo = mid;
      else hi = mid;
    }
    this.pieces = [];
    return lo;
  }

  flow(segments, k, w, y) {
    let x = 0;
    for (const s of segments) {
      const width = Math.max(s.size * k, 3);
      if (x > 0 && x + Math.min(width, w) > w) {
        x = 0;
        y += lineHeight;
      }
      for (let done = 0; done < width - 1e-6;) {
        const part = Math.min(width - done, w - x);
        this.pieces.push({
          s,
          x,
          y,
          w: part,
          from: (done / width) * s.size,
          to: ((done + part) / width) * s.size,
          opens: done === 0,
          closes: done + part >= width - 1e-6
        });
        done += part;
        x += part;
        if (done < width - 1e-6) {
          x = 0;
          y += lineHeight;
        }
      }
      x += 5;
      if (x >= w) {
        x = 0;
        y += lineHeight;
      }
    }
    return y;
  }

  schedule() {
    if (!this.frame) this.frame = requestAnimationFrame(() => { this.frame = 0; this.draw(); });
  }

  draw() {
    if (!this.scroller.isConnected) return;
    const ratio = Math.min(devicePixelRatio || 1, 2),
      w = this.scroller.clientWidth,
      height = this.scroller.clientHeight,
      top = this.scroller.scrollTop;
    sizeCanvas(this.canvas, w, height, ratio);
    const c = this.canvas.getContext('2d');
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, w, height);
    c.translate(16, -top);
    this.fillLegend();
    if (this.map && !(this.pieces || []).length) {
      c.font = `14px ${css('--sans')}`;
      c.fillStyle = css('--muted');
      c.fillText('No segment and no allocation is known in this state.', 0, 30);
    }
    for (const { y, g } of this.titles || []) this.drawTitle(c, y, g);
    for (const p of this.pieces || []) {
      if (p.y + barHeight < top || p.y > top + height) continue;
      this.drawPiece(c, p);
    }
  }

  drawTitle(c, y, g) {
    c.textBaseline = 'middle';
    c.font = `600 12px ${css('--sans')}`;
    c.fillStyle = g.private ? css('--pool') : css('--ink');
    const name = g.stray
      ? 'In no segment that the file knows'
      : g.private
        ? `Private pool ${g.pool}`
        : g.pool === ''
          ? 'Gone before the snapshot, pool unknown'
          : 'Default pool';
    c.fillText(name, 0, y + 10);
    let x = c.measureText(name).width + 10;
    c.font = `12px ${css('--sans')}`;
    c.fillStyle = css('--muted');
    const text = g.stray
      ? `${plural(g.segments.length, 'allocation')} · ${bytes(g.size)}`
      : `stream ${streamName(g.stream)} · ${plural(g.segments.length, 'segment')} · ${bytes(g.size)}, ${percent(g.active, g.size)} active`;
    c.fillText(fitText(c, text, this.scroller.clientWidth - 24 - x), x, y + 10);
  }

  drawPiece(c, p) {
    const k = p.w / (p.to - p.from), event = this.current();
    c.fillStyle = css('--free');
    c.fillRect(p.x, p.y, p.w, barHeight);
    const end = p.to;
    for (const b of p.s.blocks) {
      if (b.offset + b.size <= p.from || b.offset >= end) continue;
      const a = p.x + (Math.max(b.offset, p.from) - p.from) * k, z = p.x + (Math.min(b.offset + b.size, end) - p.from) * k;
      const stack = this.hoverStack || where.stack, dim = stack ? b.stack !== stack : this.lit && !this.lit.has(b.id);
      c.globalAlpha = dim ? 0.18 : 1;
      c.fillStyle = stackColour(b.stack);
      c.fillRect(a, p.y, Math.max(z - a - (z - a > 3 ? 1 : 0), 0.6), barHeight);
      if (b.pending) hatch(c, a, p.y, z - a);
      c.globalAlpha = 1;
      if (z - a > 58 && !dim) {
        c.fillStyle = css('--on-strip');
        c.font = `11px ${css('--sans')}`;
        c.textBaseline = 'middle';
        const text = bytes(b.size),
          s = z - a > 120 && stackText(b.stack, () => this.schedule());
        c.fillText(
          fitText(c, s && s.label ? `${text}  ${callName(splitLabel(s.label))}` : text, z - a - 10),
          a + 5,
          p.y + barHeight / 2 + 0.5);
      }
      if (where.sel === b.id || this.over && this.over.b === b) {
        c.strokeStyle = css('--ink');
        c.lineWidth = where.sel === b.id ? 2 : 1;
        c.strokeRect(a + 0.5, p.y - 0.5, Math.max(z - a - 1, 2), barHeight + 1);
      }
    }
    for (const o of p.s.lent || []) this.drawLent(c, p, k, o);
    c.strokeStyle = isPrivate(p.s) ? css('--pool') : css('--line-strong');
    c.lineWidth = 1;
    c.setLineDash(isPrivate(p.s) ? [4, 2] : []);
    c.beginPath();
    const x0 = p.x - 0.5, x1 = p.x + p.w + 0.5, y0 = p.y - 1.5, y1 = p.y + barHeight + 1.5;
    c.moveTo(x1, y0);
    c.lineTo(x0, y0);
    if (p.opens) c.lineTo(x0, y1);
    else c.moveTo(x0, y1);
    c.lineTo(x1, y1);
    if (p.closes) c.lineTo(x1, y0);
    c.stroke();
    c.setLineDash([]);
    if (event) this.drawEvent(c, p, k, event);
  }

  drawLent(c, p, k, o) {
    if (o.offset + o.size <= p.from || o.offset >= p.to) return;
    const a = p.x + (Math.max(o.offset, p.from) - p.from) * k, z = p.x + (Math.min(o.offset + o.size, p.to) - p.from) * k;
    const dim = this.wanted && !this.wanted.has(o.node);
    c.globalAlpha = dim ? 0.18 : 1;
    c.fillStyle = css('--pool');
    c.fillRect(a, p.y, Math.max(z - a - (z - a > 3 ? 1 : 0), 0.6), barHeight);
    hatch(c, a, p.y, z - a);
    c.globalAlpha = 1;
    if (z - a > 58 && !dim) {
      const text = fitText(c, `${bytes(o.size)}  ${nodeTitle(o.node)} · ${o.op}`, z - a - 10);
      c.font = `11px ${css('--sans')}`;
      c.textBaseline = 'middle';
      c.fillStyle = css('--plot');
      c.fillRect(a + 3, p.y + 2, c.measureText(text).width + 4, barHeight - 4);
      c.fillStyle = css('--pool');
      c.fillText(text, a + 5, p.y + barHeight / 2 + 0.5);
    }
  }

  // current is the event that led to this state, with where it happened.
  current() {
    const s = markerState(), e = s > 0 && this.map && this.map.state === s ? this.table.event(s - 1) : null;
    return e && typeof e === 'object' && e.addr ? { from: BigInt(e.addr), size: e.size, action: e.action } : null;
  }

  drawEvent(c, p, k, e) {
    p.s.base ??= BigInt(p.s.addr);
    const off = Number(e.from - p.s.base);
    if (off + e.size <= p.from || off >= p.to || off < 0) return;
    const a = p.x + (Math.max(off, p.from) - p.from) * k, z = p.x + (Math.min(off + e.size, p.to) - p.from) * k;
    c.strokeStyle = frees(e.action) ? css('--danger') : css('--accent');
    c.lineWidth = 2;
    c.strokeRect(a - 1, p.y - 3, Math.max(z - a + 1, 4), barHeight + 6);
  }

  hover(e) {
    const box = this.scroller.getBoundingClientRect(), x = e.clientX - box.left - 16, y = e.clientY - box.top + this.scroller.scrollTop;
    const p = (this.pieces || []).find(p => y >= p.y - 2 && y < p.y + barHeight + 2 && x >= p.x && x < p.x + p.w);
    this.over = null;
    if (p) {
      const off = p.from + ((x - p.x) / p.w) * (p.to - p.from);
      const slack = (1.5 * (p.to - p.from)) / p.w;
      const b =
        p.s.blocks.find(b => off >= b.offset && off < b.offset + b.size)
        || p.s.blocks.find(b => off >= b.offset - slack && off < b.offset + b.size + slack);
      this.over = { p, b };
      this.lentAt = b ? null : (p.s.lent || []).find(o => off >= o.offset && off < o.offset + o.size);
      this.tip(e, p.s, b, off);
    } else {
      hideTip();
    }
    this.scroller.style.cursor = this.over && this.over.b ? 'pointer' : 'default';
    this.schedule();
  }

  tip(e, s, b, off) {
    const box = this.scroller.getBoundingClientRect(),
      d = device();
    const segment = s.stray
      ? `at ${s.addr}, in no known segment`
      : `segment ${s.addr} · ${bytes(s.size)}${s.kind ? ` · ${s.kind}` : ''}${s.expandable ? ' · expandable' : ''}`
        + ` · ${percent(s.active, s.size)} active`;
    const place = [
      h('div', { class: 'tip-life' }, segment),
      isPrivate(s) ? h('div', { class: 'tip-life' }, `private pool ${d.pools[s.pool]}`) : null];
    const at = { x: e.clientX - box.left, y: e.clientY - box.top };
    if (b && b.output) place.unshift(h('div', { class: 'tip-life' }, outputText(b.output)));
    if (this.lentAt) {
      showTip(this.scroller,
        at,
        h('div', {}, h('b', {}, bytes(this.lentAt.size)), ' in use, though the allocator counts it as free'),
        h('div', { class: 'tip-life' }, outputText(this.lentAt)),
        ...place);
      return;
    }
    if (!b) {
      showTip(this.scroller, at, h('div', {}, h('b', {}, bytes(freePiece(s, off))), ' free'), ...place);
      return;
    }
    const t = stackText(b.stack, () => this.schedule());
    showTip(this.scroller,
      at,
      h('div', {}, h('b', {}, bytes(b.size)), b.pending ? ' freed, waiting for other streams' : ''),
      t && t.label && b.stack
        ? h('div', { class: 'tip-stack' },
            h('i', { style: { background: stackColour(b.stack) } }),
            h('span', {},
              labelElement(t.label),
              callersOf(t, 3).map(x => h('div', { class: 'caller' }, x))))
        : h('div', { class: 'faint' }, b.stack ? '' : 'no stack recorded'),
      ...place);
  }
}

// frees tells events that give memory back.
const frees = action => action.startsWith('free') || action.endsWith('free') || action.endsWith('unmap');

// strayed makes an allocation in no known segment look like a segment of its own.
const strayed = b => ({
  addr: `0x${b.offset.toString(16)}`,
  size: b.size,
  active: b.size,
  largest: 0,
  stream: -1,
  pool: -1,
  kind: '',
  stray: true,
  blocks: [{ ...b, offset: 0 }]
});

const isPrivate = s => {
  const name = s.stray ? '' : device().pools[s.pool];
  return name !== '' && name !== '(0,0)';
};

// freePiece returns the size of the gap between blocks that holds an offset.
function freePiece(s, off) {
  let from = 0, to = s.size;
  for (const b of s.blocks) {
    if (b.offset + b.size <= off) from = Math.max(from, b.offset + b.size);
    else if (b.offset > off) to = Math.min(to, b.offset);
  }
  return to - from;
}

function hatch(c, x, y, w) {
  c.save();
  c.beginPath();
  c.rect(x, y, w, barHeight);
  c.clip();
  c.strokeStyle = css('--plot');
  c.lineWidth = 2;
  for (let a = x - barHeight; a < x + w; a += 6) {
    c.beginPath();
    c.moveTo(a, y + barHeight);
    c.lineTo(a + barHeight, y);
    c.stroke();
  }
  c.restore();
}

function groupSegments(segments) {
  const d = device(), groups = new Map();
  for (const s of segments) {
    const key = `${s.pool} ${s.stream}`;
    if (!groups.has(key))
      groups.set(key, {
        stray: s.stray,
        pool: d.pools[s.pool],
        private: isPrivate(s),
        stream: d.streams[s.stream],
        segments: [],
        size: 0,
        active: 0
      });
    const g = groups.get(key);
    g.segments.push(s);
    g.size += s.size;
    g.active += s.active;
  }
  const list = [...groups.values()];
  for (const g of list) g.segments.sort((a, b) => b.size - a.size || (a.addr < b.addr ? -1 : 1));
  return list.sort((a, b) => (a.stray ? 1 : 0) - (b.stray ? 1 : 0) || a.private - b.private || b.size - a.size);
}
