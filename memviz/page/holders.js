'use strict';
// Who holds what: a table and a flame graph by stack, at the peak or at any other state.

class HoldersView {
  constructor() {
    this.head = h('div', { class: 'facts' });
    this.body = h('div', { class: 'page' });
    this.root = h('div', { class: 'holders-view' }, this.head, this.body);
    this.open = new Set();
    this.native = false;
  }

  show(place) {
    put(place, this.root);
    this.load();
  }

  hide() {
    hideTip();
  }

  changed(what) {
    if (['state', 'device', 'q', 'only', 'form', 'stack', 'theme'].some(k => what.has(k))) this.load();
  }

  async load() {
    const d = device(), asked = markerState(), s = nearestState(asked);
    const turn = this.turn = (this.turn || 0) + 1;
    const filter = where.q && !info.static ? where.q : undefined;
    try {
      const at = await ask('at', { device: d.device, state: s, top: info.static ? info.static.top : 200, filter });
      if (turn !== this.turn) return;
      this.fill(at, s, asked, filter);
      put(this.body);
      if (where.form === 'flame') await this.flame(at, turn);
      else this.table(at);
    } catch (e) {
      if (turn === this.turn) put(this.body, h('div', { class: 'empty' }, h('p', {}, e.message)));
    }
  }

  fill(at, s, asked, filter) {
    const d = device(),
      fact = (name, value) => h('span', { class: 'fact' }, h('b', {}, value), h('span', {}, name));
    const form = (k, text) =>
      h('button', { class: 'small', 'aria-pressed': where.form === k ? 'true' : 'false', onclick: () => update({ form: k }, true) }, text);
    headline(this.head,
      [
        fact(s === d.peak_state ? 'at the peak' : s === 0 ? 'before the trace' : `after event ${number(s - 1)}`, bytes(at.active)),
        fact(at.count === 1 ? 'allocation' : 'allocations', number(at.count)),
        fact(at.stacks === 1 ? 'stack' : 'stacks', number(at.stacks)),
        fact('in segments', bytes(at.cached)),
        at.time_us && d.time_start_us ? fact('after the start', duration(Math.max(0, at.time_us - d.time_start_us))) : null,
        filter ? h('span', { class: 'chip' }, `only “${filter}”`) : null,
        asked !== s ? h('span', { class: 'faint' }, `nearest state in this static file to ${number(asked)}`) : null],
      [
        s === d.peak_state
          ? null
          : h('button', { class: 'small', onclick: () => update({ state: d.peak_state }, true), title: 'To the peak (p)' }, 'Peak'),
        h('button', { class: 'small', onclick: () => update({ state: d.states - 1 }, true) }, 'End'),
        h('span', { class: 'group', role: 'group', 'aria-label': 'Form' }, form('table', 'Table'), form('flame', 'Flame graph'))]);
  }

  table(at) {
    if (!at.groups.length) {
      put(this.body, h('div', { class: 'empty' }, h('p', {}, 'Nothing is allocated in this state.')));
      return;
    }
    let sum = 0;
    const rows = [];
    for (const [k, g] of at.groups.entries()) {
      sum += g.bytes;
      rows.push(...this.groupRows(g, k, at, sum));
    }
    if (at.rest.count) {
      rows.push(
        h('tr', { class: 'rest' },
          h('td', {}),
          h('td', {}, `${plural(at.stacks - at.groups.length, 'other stack')}`),
          h('td', { class: 'n' }, bytes(at.rest.bytes)),
          h('td', { class: 'n' }, percent(at.rest.bytes, at.active)),
          h('td', { class: 'wide' }),
          h('td', { class: 'n' }, number(at.rest.count)),
          h('td', { class: 'n' }, bytes(at.rest.largest)),
          h('td', {})));
    }
    put(this.body,
      h('table', { class: 'list' },
        h('caption', { class: 'hidden' }, 'Memory by stack'),
        h('thead', {},
          h('tr', {},
            ['', 'Allocated by', 'Bytes', 'Share', 'All so far', 'Count', 'Largest', 'Oldest'].map((t, i) =>
              h('th', {
                  scope: 'col',
                  class: [2, 3, 5, 6, 7].includes(i) ? 'n' : '',
                  title: t === 'Oldest' ? 'The event of its oldest allocation' : undefined
                },
                t)))),
        h('tbody', {}, rows)));
  }

  labelCell(g) {
    const via = h('span', { class: 'callers' });
    if (g.stack) stackPromise(g.stack).then(s => { via.textContent = callersOf(s, 4).map(x => `‹ ${x}`).join(' '); });
    return h('span', { class: 'label' }, labelElement(g.label), ' ', via);
  }

  groupRows(g, k, at, sum) {
    const id = `g${g.stack}`, open = this.open.has(id);
    const toggle = () => {
      if (!this.open.delete(id)) this.open.add(id);
      this.table(at);
      this.body.querySelector(`[data-key="${id}"]`)?.focus();
    };
    const line = h('tr', { class: where.stack === g.stack && g.stack ? 'on' : '' },
      h('td', {},
        h(
          'button',
          { class: 'fold-button', 'aria-expanded': open ? 'true' : 'false', 'aria-label': 'Stack', 'data-key': id, onclick: toggle },
          open ? '▾' : '▸')),
      h('td', { class: 'who', onclick: toggle },
        h('i', { class: 'swatch', style: { background: stackColour(g.stack) } }),
        this.labelCell(g)),
      h('td', { class: 'n strong' }, bytes(g.bytes)),
      h('td', { class: 'n' }, percent(g.bytes, at.active)),
      h('td', { class: 'wide' },
        h('div', { class: 'meter', title: `the first ${k + 1} hold ${percent(sum, at.active)}` },
          h('span', { class: 'before', style: { width: `${(100 * (sum - g.bytes)) / at.active}%` } }),
          h('span', { style: { width: `${(100 * g.bytes) / at.active}%`, background: stackColour(g.stack) } }))),
      h('td', { class: 'n' }, number(g.count)),
      h('td', { class: 'n' }, bytes(g.largest)),
      h('td', { class: 'n muted' }, g.oldest === 0 ? 'before' : number(g.oldest - 1)));
    if (!open) return [line];
    const cell = h('td', { colspan: 6 }, h('p', { class: 'faint' }, '…'));
    stackPromise(g.stack).then(s =>
      put(cell,
        h('div', { class: 'actions' },
          h('button', { class: 'small', onclick: () => update({ view: 'active', stack: g.stack }, true) }, 'Show in timeline'),
          h('button', { class: 'small', onclick: () => update({ view: 'state', stack: g.stack }, true) }, 'Show in block map'),
          s ? copyButton(() => copyText(s.frames)) : null),
        s ? framesElement(s.frames) : h('p', { class: 'faint' }, 'This static file does not hold the stack.')));
    return [line, h('tr', { class: 'open' }, h('td', {}), cell, h('td', {}))];
  }

  async flame(at, turn) {
    const stacks = await Promise.all(at.groups.map(g => stackPromise(g.stack)));
    if (turn !== this.turn) return;
    this.tree = flameTree(at, stacks, this.native);
    this.focus = this.tree;
    this.drawFlame();
  }

  drawFlame() {
    const boxes = [];
    let deepest = 0;
    const walk = (n, x, w, depth) => {
      if (w < 0.12 || boxes.length > 3000) return;
      deepest = Math.max(deepest, depth);
      boxes.push(
        h('button', {
            class: n.rest ? 'flame rest' : 'flame',
            style: { left: `${x}%`, width: `calc(${w}% - 1px)`, top: `${depth * 21}px`, background: n.rest || !n.at ? '' : flameColour(n) },
            'aria-label': `${n.name || 'all'}, ${bytes(n.bytes)}`,
            onclick: () => {
              this.focus = n === this.focus ? n.parent || n : n;
              this.drawFlame();
            },
            onmousemove: e =>
              showTip(
                document.body,
                { x: e.clientX, y: e.clientY },
                h('div', {}, h('b', {}, bytes(n.bytes)), ` · ${percent(n.bytes, this.tree.bytes)} · ${plural(n.count, 'allocation')}`),
                h('div', { class: 'tip-stack' }, n.name || 'all stacks'),
                n.at ? h('div', { class: 'tip-life' }, n.at) : null),
            onmouseleave: hideTip
          },
          w > 2.2 ? `${n.name || 'all'}` : '',
          w > 7 && n.at ? h('span', { class: 'flame-at' }, ` ${baseName(n.at)}`) : '',
          w > 9 ? h('span', { class: 'flame-bytes' }, bytes(n.bytes)) : ''));
      let at = x;
      for (const c of n.list) {
        const part = w * c.bytes / n.bytes;
        walk(c, at, part, depth + 1);
        at += part;
      }
    };
    walk(this.focus, 0, 100, 0);
    const native = h('label', { class: 'switch' },
      h('input', {
        type: 'checkbox',
        checked: this.native,
        onchange: e => {
          this.native = e.target.checked;
          this.load();
        }
      }),
      ' all frames');
    put(this.body,
      h('div', { class: 'flame-head' },
        h('span', { class: 'muted' }, 'Callers above, callees below; width is bytes held. Click a frame to widen it, again to go back.'),
        h('span', { class: 'grow' }),
        this.focus !== this.tree
          ? h('button', {
                class: 'small',
                onclick: () => {
                  this.focus = this.tree;
                  this.drawFlame();
                }
              },
              'All')
          : null,
        native),
      h('div', { class: 'flames', style: { height: `${(deepest + 1) * 21}px` }, title: '' }, boxes));
  }
}

// flameTree joins stacks from their outermost frames on.
function flameTree(at, stacks, native) {
  const node = (name, place, parent) => ({ name, at: place, parent, bytes: 0, count: 0, children: new Map(), list: [] });
  const root = node('', '', null);
  at.groups.forEach((g, k) => {
    let n = root;
    n.bytes += g.bytes;
    n.count += g.count;
    let frames = stacks[k] ? [...stacks[k].frames].reverse() : [];
    if (!native) frames = frames.filter(f => !nativeFrame(f) && !plumbing.test(f.name));
    if (!frames.length)
      frames = [
        g.label
          ? { file: splitLabel(g.label).file, line: splitLabel(g.label).line, name: splitLabel(g.label).name }
          : { file: '', line: 0, name: '(no stack)' }];
    for (const f of frames) {
      const key = `${f.file}:${f.line}:${f.name}`;
      if (!n.children.has(key)) n.children.set(key, node(callName(f) || '(no name)', `${f.file}${f.line ? `:${f.line}` : ''}`, n));
      n = n.children.get(key);
      n.bytes += g.bytes;
      n.count += g.count;
    }
  });
  if (at.rest.bytes) {
    const n = node(`${plural(at.stacks - at.groups.length, 'other stack')}`, '', root);
    Object.assign(n, { bytes: at.rest.bytes, count: at.rest.count, rest: true });
    root.bytes += n.bytes;
    root.count += n.count;
    root.children.set('rest', n);
  }
  const order = n => {
    n.list = [...n.children.values()].sort((a, b) => (a.rest ? 1 : 0) - (b.rest ? 1 : 0) || b.bytes - a.bytes);
    n.list.forEach(order);
  };
  order(root);
  return root;
}

// flameColour keeps one hue per file, so that packages show.
function flameColour(n) {
  let x = 7;
  for (const ch of n.at.replace(/:\d+$/, '')) x = (x * 31 + ch.charCodeAt(0)) >>> 0;
  const dark = document.documentElement.dataset.theme === 'dark';
  return rgbText(oklch(dark ? 0.5 : 0.82, 0.07 + (x >> 9) % 3 * 0.015, 20 + x % 110 + ((x >> 4) % 2 ? 160 : 0)));
}
