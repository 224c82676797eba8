'use strict';
// Two snapshots compared, by stack and by segment.

class CompareView {
  constructor() {
    this.head = h('div', { class: 'facts' });
    this.body = h('div', { class: 'page' });
    this.root = h('div', { class: 'compare-view' }, this.head, this.body);
    this.open = new Set();
  }

  show(place) {
    put(place, this.root);
    this.load();
  }

  hide() {}

  changed(what) {
    if (what.has('at') || what.has('device') || what.has('theme')) this.load();
  }

  async load() {
    const turn = this.turn = (this.turn || 0) + 1;
    if (!info.diff) {
      put(this.head);
      put(this.body,
        h('div', { class: 'empty' },
          h('h2', {}, 'One snapshot is open'),
          h('p', {}, 'To see what two snapshots hold differently, by stack, name both:'),
          h('pre', {}, `tenon memviz ${info.file} AFTER`)));
      return;
    }
    try {
      const f = await ask('diff', { device: device().device, at: where.at });
      if (turn === this.turn) this.fill(f);
    } catch (e) {
      if (turn === this.turn) put(this.body, h('div', { class: 'empty' }, h('p', {}, e.message)));
    }
  }

  fill(f) {
    const change = (a, b) =>
      h('span', { class: b > a ? 'more' : b < a ? 'less' : 'muted' }, a === b ? 'the same' : `${b > a ? '+' : ''}${bytes(b - a)}`);
    const fact = (name, a, b) =>
      h('span', { class: 'fact' }, h('b', {}, `${bytes(a)} → ${bytes(b)}`), h('span', {}, name, ' '), change(a, b));
    const form = (k, text) =>
      h('button', { class: 'small', 'aria-pressed': where.at === k ? 'true' : 'false', onclick: () => update({ at: k }, true) }, text);
    headline(this.head,
      [fact('active', f.before_active, f.after_active), fact('in segments', f.before_cached, f.after_cached)],
      [h('span', { class: 'group', role: 'group', 'aria-label': 'When' }, form('peak', 'At the peaks'), form('end', 'At the ends'))]);
    const of = device => (f.before_device === f.after_device ? '' : ` (device ${device})`);
    const most = Math.max(...f.groups.map(g => Math.abs(g.after_bytes - g.before_bytes)), 1),
      rows = [];
    for (const [k, g] of f.groups.entries()) rows.push(...this.rows(g, k, most, f, change));
    if (f.rest.before_count || f.rest.after_count)
      rows.push(...this.rows({ ...f.rest, label: f.rest.label || 'all other stacks', frames: [] }, -1, most, f, change));
    put(this.body,
      h('p', { class: 'muted names' },
        'From ',
        h('b', {}, f.before_file),
        of(f.before_device),
        ' to ',
        h('b', {}, f.after_file),
        of(f.after_device)),
      rows.length
        ? h('table', { class: 'list' },
            h('thead', {},
              h('tr', {},
                ['', 'Allocated by', 'Change', '', 'Before', 'After'].map((t, i) =>
                  h('th', { scope: 'col', class: i === 2 || i > 3 ? 'n' : '' }, t)))),
            h('tbody', {}, rows))
        : h('p', { class: 'faint pad' }, 'Both hold the same.'),
      this.segments('Segments only before', f.only_before),
      this.segments('Segments only after', f.only_after));
  }

  rows(g, k, most, f, change) {
    const delta = g.after_bytes - g.before_bytes, half = 50 * Math.abs(delta) / most, open = this.open.has(k) && k >= 0;
    const toggle = () => {
      if (!this.open.delete(k)) this.open.add(k);
      this.fill(f);
    };
    const line = h('tr', {},
      h('td', {},
        k >= 0 && g.frames.length
          ? h('button', { class: 'fold-button', 'aria-label': 'Stack', 'aria-expanded': open ? 'true' : 'false', onclick: toggle },
              open ? '▾' : '▸')
          : ''),
      h('td', { class: 'who' },
        k >= 0
          ? h('span', { class: 'label' },
              labelElement(g.label),
              ' ',
              h('span', { class: 'callers' },
                callersOf(g, 4).map(x => `‹ ${x} `)))
          : h('span', { class: 'muted' }, g.label)),
      h('td', { class: 'n strong' }, change(g.before_bytes, g.after_bytes)),
      h('td', { class: 'wide' },
        h('div', { class: 'meter both' },
          h('span', {
            class: delta < 0 ? 'less' : 'more',
            style: delta < 0 ? { right: '50%', width: `${half}%` } : { left: '50%', width: `${half}%` }
          }))),
      h('td', { class: 'n' }, g.before_count ? `${bytes(g.before_bytes)} · ${number(g.before_count)} ×` : '–'),
      h('td', { class: 'n' }, g.after_count ? `${bytes(g.after_bytes)} · ${number(g.after_count)} ×` : '–'));
    return open ? [line, h('tr', { class: 'open' }, h('td', {}), h('td', { colspan: 5 }, framesElement(g.frames)))] : [line];
  }

  segments(title, list) {
    if (!list || !list.length) return '';
    const sum = list.reduce((n, s) => n + s.size, 0);
    return h('details', {},
      h('summary', {}, `${title}: ${number(list.length)}, ${bytes(sum)}`),
      h('table', { class: 'list' },
        h('thead', {},
          h('tr', {},
            ['Address', 'Size', 'Kind', 'Active'].map((t, i) => h('th', { scope: 'col', class: i % 2 ? 'n' : '' }, t)))),
        h('tbody', {},
          list
            .slice(0, 500)
            .map(s =>
              h('tr', {},
                h('td', {}, h('code', {}, s.addr)),
                h('td', { class: 'n strong' }, bytes(s.size)),
                h('td', {}, s.kind || '–'),
                h('td', { class: 'n' }, bytes(s.active)))))));
  }
}
