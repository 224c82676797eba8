'use strict';
// The list of events beside the block map: only the rows in sight exist.

const eventRow = 24, eventPage = 256;

class EventTable {
  constructor() {
    this.pages = new Map();
    this.inner = h('div', { class: 'event-rows' });
    this.scroller = h('div', { class: 'events', tabindex: '0', role: 'listbox', 'aria-label': 'Events of the trace' }, this.inner);
    this.scroller.addEventListener('scroll', () => this.fill(), { passive: true });
    // Until somebody scrolls the marked row stays in sight, also when what stands around the list takes its place.
    new ResizeObserver(() => this.scroller.scrollTop === this.placed ? this.reveal(markerState()) : this.fill()).observe(this.scroller);
  }

  // rows: state 0 first, then one state per event; in a static file the states that it holds. A very long trace is scaled, since elements
  // have a greatest height.
  show() {
    const d = device();
    this.device = d.device;
    this.states = info.static ? info.static.states[String(d.device)] || [] : null;
    this.total = this.states ? this.states.length : d.states;
    this.height = Math.min(this.total * eventRow, 8e6);
    this.inner.style.height = `${this.height}px`;
    this.inner.style.setProperty('--index', `${number(d.states).length + 1}ch`);
    this.reveal(markerState());
  }

  get topRow() {
    const view = this.scroller.clientHeight,
      most = Math.max(1, this.height - view);
    return this.height === this.total * eventRow
      ? this.scroller.scrollTop / eventRow
      : (this.scroller.scrollTop / most) * Math.max(0, this.total - view / eventRow);
  }

  // rowOf returns the row of a state.
  rowOf(state) {
    return this.states ? this.states.indexOf(nearestState(state)) : state;
  }

  reveal(marked) {
    const state = this.rowOf(marked);
    const view = this.scroller.clientHeight || 400, rows = view / eventRow, top = this.topRow;
    if (state < top + 1 || state > top + rows - 2) {
      const want = clamp(state - rows / 2, 0, Math.max(0, this.total - rows));
      this.scroller.scrollTop =
        this.height === this.total * eventRow ? want * eventRow : (want / Math.max(1, this.total - rows)) * (this.height - view);
    }
    this.placed = this.scroller.scrollTop;
    this.fill();
  }

  // stored fetches the event of a state that a static file holds.
  async stored(s) {
    const name = `${this.device}/at ${s}`;
    if (this.pages.has(name)) return;
    this.pages.set(name, null);
    const at = await ask('at', { device: this.device, state: s, top: info.static.top }).catch(() => null);
    this.pages.set(name, at && at.event ? at.event : 'missing');
    this.fill();
  }

  async page(k) {
    const name = `${this.device}/${k}`;
    if (!this.pages.has(name)) {
      this.pages.set(name, null);
      try {
        const list = await ask('events', { device: this.device, from: k * eventPage, count: eventPage });
        this.pages.set(name, list.events);
      } catch (e) {
        this.pages.set(name, e instanceof Missing ? 'missing' : []);
      }
      this.fill();
    }
  }

  event(index) {
    if (this.states) {
      this.stored(index + 1);
      return this.pages.get(`${this.device}/at ${index + 1}`);
    }
    const k = Math.floor(index / eventPage), p = this.pages.get(`${this.device}/${k}`);
    if (p === undefined) this.page(k);
    return Array.isArray(p) ? p[index - k * eventPage] : p;
  }

  fill() {
    if (!this.scroller.isConnected || this.total === undefined) return;
    const top = this.topRow, first = Math.max(0, Math.floor(top)), n = Math.ceil(this.scroller.clientHeight / eventRow) + 1, rows = [];
    const marker = this.rowOf(markerState());
    for (let k = first; k < Math.min(this.total, first + n); k++)
      rows.push(this.row(this.states ? this.states[k] : k, this.scroller.scrollTop + (k - top) * eventRow, k === marker));
    put(this.inner, ...rows);
    this.scroller.setAttribute('aria-activedescendant', `state-${this.states ? this.states[marker] : marker}`);
  }

  row(s, y, on) {
    const look = {
      class: on ? 'event on' : 'event',
      role: 'option',
      id: `state-${s}`,
      'aria-selected': on ? 'true' : 'false',
      style: { transform: `translateY(${Math.round(y)}px)` },
      onclick: () => update({ state: s })
    };
    if (s === 0)
      return h('div', look,
        h('span', { class: 'index' }, '–'),
        h('span', { class: 'faint' }, device().events ? 'before the trace' : 'as of the snapshot'));
    const e = this.event(s - 1);
    if (e === 'missing')
      return h('div', look, h('span', { class: 'index' }, number(s - 1)), h('span', { class: 'faint' }, 'not in this static file'));
    if (!e) return h('div', look, h('span', { class: 'index' }, number(s - 1)), h('span', { class: 'faint' }, '…'));
    return h('div', { ...look, title: `${e.action} ${e.addr} ${bytes(e.size)} stream ${e.stream}${e.label ? `\n${e.label}` : ''}` },
      h('span', { class: 'index' }, number(e.index)),
      h('span', { class: `action ${e.action}` }, actionText[e.action] || e.action),
      h('span', { class: 'size' }, e.action === 'snapshot' ? '' : bytes(e.size)),
      h('span', { class: 'what' }, e.stack ? shortLabel(e.label) : e.addr, e.note ? h('span', { class: 'faint' }, ` · ${e.note}`) : null));
  }
}

const actionText = {
  alloc: 'alloc',
  free_requested: 'free asked',
  free_completed: 'free',
  segment_alloc: 'segment +',
  segment_free: 'segment −',
  segment_map: 'map',
  segment_unmap: 'unmap',
  oom: 'OOM',
  snapshot: 'snapshot',
  user_defined: 'mark'
};
