'use strict';
// Out of memory: for each failed allocation, why nothing that was free could serve.

class OOMView {
  constructor() {
    this.head = h('div', { class: 'facts' });
    this.body = h('div', { class: 'page' });
    this.root = h('div', { class: 'oom-view' }, this.head, this.body);
  }

  show(place) {
    put(place, this.root);
    this.load();
  }

  hide() {}

  changed(what) {
    if (what.has('oom') || what.has('device') || what.has('theme')) this.load();
  }

  async load() {
    const d = device(), turn = this.turn = (this.turn || 0) + 1;
    if (!d.ooms.length) {
      put(this.head);
      put(this.body,
        h('div', { class: 'empty good' },
          h('h2', {}, 'No allocation failed'),
          h('p', {},
            'The trace holds no out-of-memory event. When one happens while history is recorded, this page tells why no free block could '
              + 'serve it and who held the memory.')));
      return;
    }
    const k = clamp(where.oom, 0, d.ooms.length - 1);
    try {
      const o = await ask('oom', { device: d.device, index: k });
      if (turn === this.turn) this.fill(o, k);
    } catch (e) {
      if (turn === this.turn) put(this.body, h('div', { class: 'empty' }, h('p', {}, e.message)));
    }
  }

  fill(o, k) {
    const d = device(),
      n = d.ooms.length;
    headline(this.head,
      [
        h('span', { class: 'fact' }, h('b', {}, `${k + 1} of ${n}`), h('span', {}, n === 1 ? 'failed allocation' : 'failed allocations')),
        n > 1
          ? h('span', { class: 'group' },
              h('button', { class: 'small', disabled: k === 0, onclick: () => update({ oom: k - 1 }) }, '← Before'),
              h('button', { class: 'small', disabled: k === n - 1, onclick: () => update({ oom: k + 1 }) }, 'Next →'))
          : null],
      [
        h('button', {
            class: 'small',
            onclick: () => {
              update({ view: 'active' }, true);
              showState(o.state);
            }
          },
          'Show in timeline'),
        h('button', { class: 'small', onclick: () => update({ view: 'state', state: Math.max(0, o.state - 1) }, true) },
          'Block map just before')]);
    const figure = (name, value, cls) => h('div', { class: `figure ${cls || ''}` }, h('b', {}, value), h('span', {}, name));
    put(this.body,
      h('h2', { class: 'oom-title' }, 'Wanted ', h('em', {}, bytes(o.size)), ` on stream ${streamName(o.stream)}`),
      h('div', { class: 'figures' },
        figure('live allocations', bytes(o.active)),
        figure('cached and free', bytes(o.free)),
        figure('left on the device', bytes(o.device_free)),
        figure('missing', bytes(Math.max(0, o.size - o.device_free)), 'danger')),
      this.bar(o),
      h('div', { class: 'summary' }, o.summary.map((s, i) => h('p', { class: i === 0 ? 'first' : '' }, s))),
      h('h3', {}, 'Why free memory could not serve'),
      o.reasons.length ? this.reasons(o) : h('p', { class: 'faint' }, 'No cached memory was free.'),
      o.candidates.length ? h('h3', {}, 'Largest free pieces') : '',
      o.candidates.length ? this.candidates(o) : '',
      h('div', { class: 'two' },
        h('div', {},
          h('h3', {}, 'Who held memory'),
          o.holders.length
            ? h('ul', { class: 'holders' },
                o.holders.map(g => holderRow(g, o.active)))
            : h('p', { class: 'faint' }, 'No live allocation is known.')),
        h('div', {}, h('h3', {}, 'Asked for by'), framesElement(o.stack.frames || []))));
  }

  bar(o) {
    const device = o.active + o.free + o.device_free,
      whole = Math.max(device, o.size, 1),
      part = (n, cls, text) => h('span', { class: cls, style: { width: `${(100 * n) / whole}%` }, title: text });
    return h('div', {
        class: 'stacked',
        role: 'img',
        'aria-label': `${bytes(o.active)} active, ${bytes(o.free)} cached and free, ${bytes(o.device_free)} left on the device, `
          + `${bytes(o.size)} wanted`
      },
      h('div', { class: 'stacked-row' },
        part(o.active, 'active', `active ${bytes(o.active)}`),
        part(o.free, 'free', `cached and free ${bytes(o.free)}`),
        part(o.device_free, 'left', `left on the device ${bytes(o.device_free)}`)),
      h('div', { class: 'stacked-row want' }, part(o.size, 'wanted', `wanted ${bytes(o.size)}`)),
      h('div', { class: 'legend' },
        [
          ['active', 'active'],
          ['free', 'cached and free'],
          ['left', 'left on the device'],
          ['wanted', 'wanted']
        ].map(([c, t]) => h('span', {}, h('i', { class: c }), t))));
  }

  reasons(o) {
    const most = Math.max(...o.reasons.map(r => r.bytes), 1);
    return h('table', { class: 'list' },
      h('thead', {},
        h('tr', {},
          ['Reason', '', 'Pieces', 'Bytes', 'Largest'].map((t, i) => h('th', { scope: 'col', class: i > 1 ? 'n' : '' }, t)))),
      h('tbody', {},
        o.reasons.map(r =>
          h('tr', {},
            h('td', { class: 'reason' }, h('b', {}, r.why), h('div', { class: 'muted' }, r.text)),
            h('td', { class: 'wide' },
              h('div', { class: 'meter' }, h('span', { style: { width: `${(100 * r.bytes) / most}%`, background: 'var(--danger)' } }))),
            h('td', { class: 'n' }, number(r.pieces)),
            h('td', { class: 'n strong' }, bytes(r.bytes)),
            h('td', { class: 'n' }, bytes(r.largest))))));
  }

  candidates(o) {
    const neighbour = id =>
      id < 0
        ? h('span', { class: 'faint' }, 'end of segment')
        : h('button', { class: 'link', onclick: () => update({ view: 'state', sel: id, state: Math.max(0, o.state - 1) }, true) },
            `allocation ${number(id)}`);
    return h('div', { class: 'scroll-x' },
      h('table', { class: 'list' },
        h('thead', {},
          h('tr', {},
            ['Address', 'Size', 'Stream', 'Pool', 'Kind', 'Between', 'Why not'].map((t, i) =>
              h('th', { scope: 'col', class: i === 1 ? 'n' : '' }, t)))),
        h('tbody', {},
          o.candidates.map(c =>
            h('tr', {},
              h('td', {}, h('code', {}, c.addr)),
              h('td', { class: 'n strong' }, bytes(c.size)),
              h('td', {}, streamName(c.stream)),
              h('td', {}, c.pool === '(0,0)' ? 'default' : c.pool || '?'),
              h('td', {}, c.kind || '–'),
              h('td', {}, neighbour(c.before), ' – ', neighbour(c.after)),
              h('td', {}, c.why))))));
  }
}
