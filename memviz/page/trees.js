'use strict';
// Graph trees: what the private pools of compiled regions are for, graph by graph, at the end of the trace.

const treesFor = d => d.trees ? ask('trees', { device: d.device }) : Promise.resolve([]);

const nodeTitle = n => n.warm_up ? `warm-up of function ${n.function}` : `graph ${n.id}`;
const nodeLines = n => n.from === n.to ? n.from : `${n.from} – ${n.to}`;
const baseLine = line => line.slice(line.lastIndexOf('/') + 1);

// nodesOf returns the nodes of a pool that a search word names: one, or with its descendants.
function nodesOf(pool, word, id) {
  const out = [];
  let depth = -1;
  for (const n of pool.nodes) {
    if (depth >= 0 && n.depth <= depth) depth = -1;
    if (n.id === id && depth < 0 && word === 'tree') depth = n.depth;
    if (n.id === id || depth >= 0) out.push(n);
  }
  return out;
}

// treeSearch returns the part of the search text that names a graph, or null: the word, the ID, and the pool if there is one.
function treeSearch() {
  const m = /(?:^|\s)(graph|tree):(\S+)/.exec(where.q), p = /(?:^|\s)pool:(\S+)/.exec(where.q);
  return m ? { word: m[1], id: m[2], pool: p ? `(${p[1].replace(/[()]/g, '')})` : '' } : null;
}

// foundNodes returns the nodes that the search names, or null where it names none.
function foundNodes(pools) {
  const s = treeSearch();
  return s && pools.filter(p => !s.pool || p.pool === s.pool).flatMap(p => nodesOf(p, s.word, s.id));
}

// liveOutputs lists the outputs in use of all graphs, each with its node.
function liveOutputs(pools) {
  return pools.flatMap(p => p.nodes.flatMap(n => n.outputs.filter(o => o.live)
    .map(o => ({ ...o, begin: BigInt(o.addr), node: n, pool: p }))));
}

const outputText = o => `output of ${nodeTitle(o.node)}: ${o.op}, ${baseLine(o.at)}`;

class TreesView {
  constructor() {
    this.head = h('div', { class: 'facts' });
    this.body = h('div', { class: 'page trees' });
    this.root = h('div', { class: 'trees-view' }, this.head, this.body);
    this.open = new Set();
  }

  show(place) {
    put(place, this.root);
    this.load();
  }

  hide() {}

  changed(what) {
    if (what.has('device') || what.has('q') || what.has('theme')) this.load();
  }

  async load() {
    const d = device(), turn = this.turn = (this.turn || 0) + 1;
    try {
      const pools = await treesFor(d);
      if (turn !== this.turn) return;
      this.pools = pools;
      this.fill();
    } catch (e) {
      if (turn === this.turn) put(this.body, h('div', { class: 'empty' }, h('p', {}, e.message)));
    }
  }

  fill() {
    const pools = this.pools, sum = key => pools.reduce((n, p) => n + p[key], 0);
    const graphs = pools.reduce((n, p) => n + p.nodes.filter(x => !x.warm_up).length, 0);
    const fact = (name, value) => h('span', { class: 'fact' }, h('b', {}, value), h('span', {}, name));
    headline(this.head, [
      fact('at the end', device().events ? `after event ${number(device().events - 1)}` : 'the snapshot’s own state'),
      fact('in pools of graphs', bytes(sum('reserved'))), fact('in use', bytes(sum('live'))),
      fact(graphs === 1 ? 'graph' : 'graphs', number(graphs)), fact(pools.length === 1 ? 'pool' : 'pools', number(pools.length)),
    ], []);
    if (!pools.length) {
      put(this.body, h('div', { class: 'empty' }, h('h2', {}, 'No compiled region had graphs'),
        h('p', {}, 'on this device when the snapshot was taken.')));
      return;
    }
    const lit = foundNodes(pools);
    put(this.body, pools.flatMap(p => [...this.summary(p), this.table(p, lit)]));
  }

  // summary says what a pool's bytes are for.
  summary(p) {
    const path = p.nodes.filter(n => n.place >= 0).sort((a, b) => a.place - b.place).map(n => n.id).join(' → ');
    const graphs = Math.max(0, p.reserved - p.live - p.idle);
    const parts = [
      { n: p.live, cls: 'active', name: 'in use by tensors' },
      { n: graphs, cls: 'graphs', name: 'for graphs only', why: 'Graphs write there when they run, so it must stay' },
      { n: p.idle, cls: 'free', name: 'neither', why: 'Runs without a graph needed it, or the workspaces of graphs, or it is rounding' },
    ];
    const text = x => `${bytes(x.n)} ${x.name}`, width = x => `${100 * x.n / Math.max(p.reserved, 1)}%`;
    const state = `${p.state}, generation ${number(p.generation)}${path ? `, path ${path}` : ''}`;
    return [
      h('h2', {}, h('span', { class: 'badge pool' }, `private pool ${p.pool}`),
        ` ${bytes(p.reserved)} in ${plural(p.segments, 'segment')}`),
      h('p', { class: 'muted' }, state,
        p.state === 'execution' ? '. After a replay, tensors have memory that the allocator counts as free.' : ''),
      h('div', { class: 'stacked', role: 'img', 'aria-label': parts.map(text).join(', ') },
        h('div', { class: 'stacked-row' }, parts.map(x => h('span', { class: x.cls, style: { width: width(x) }, title: text(x) }))),
        h('div', { class: 'legend' }, parts.map(x => h('span', { title: x.why || '' }, h('i', { class: x.cls }), text(x))))),
    ];
  }

  table(p, lit) {
    const titles = ['', 'Graph', 'Records', 'Runs', 'Pool grew', '', 'Writes', 'In use'], why = {
      4: 'Segments that were added for its recording, or for its runs without a graph',
      6: 'The memory that it writes when it runs, without workspaces',
      7: 'Outputs that tensors hold',
    };
    const head = titles.map((t, i) => h('th', { scope: 'col', class: i > 2 && i !== 5 ? 'n' : '', title: why[i] }, t));
    return h('table', { class: 'list' }, h('caption', { class: 'hidden' }, `Graphs of the pool ${p.pool}`),
      h('thead', {}, h('tr', {}, head)), h('tbody', {}, p.nodes.flatMap(n => this.rows(p, n, lit))));
  }

  rows(p, n, lit) {
    const key = `${p.pool} ${n.id}`, open = this.open.has(key);
    const toggle = () => {
      if (!this.open.delete(key)) this.open.add(key);
      this.fill();
      this.body.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
    };
    const arrow = h('button', { class: 'fold-button', 'aria-expanded': open ? 'true' : 'false',
      'aria-label': `Outputs of ${nodeTitle(n)}`, 'data-key': key, onclick: toggle }, open ? '▾' : '▸');
    const title = h('span', { style: { paddingLeft: `${n.depth * 18}px` } }, n.depth ? '└ ' : '', nodeTitle(n));
    const inPath = { class: 'badge', title: `Number ${n.place + 1} of the path: it has run since the latest root` };
    const from = baseLine(n.from), to = baseLine(n.to);
    const callers = `${n.kind}, ${plural(n.calls, 'call')}, ${n.from === n.to ? from : `${from} – ${to}`}`;
    const share = `${100 * n.grown / Math.max(p.reserved, 1)}%`;
    const line = h('tr', { class: [lit && lit.includes(n) ? 'on' : '', n.warm_up ? 'rest' : ''].join(' ').trim() },
      h('td', {}, arrow),
      h('td', { class: 'node', onclick: toggle }, title, n.place >= 0 ? h('span', inPath, 'path') : null),
      h('td', { class: 'who', onclick: toggle, title: `${n.name}, ${nodeLines(n)}` },
        h('span', { class: 'label' }, n.name, ' ', h('span', { class: 'callers' }, callers))),
      h('td', { class: 'n' }, number(n.runs)), h('td', { class: n.grown ? 'n strong' : 'n faint' }, bytes(n.grown)),
      h('td', { class: 'wide' },
        h('div', { class: 'meter' }, n.grown ? h('span', { style: { width: share, background: 'var(--pool)' } }) : null)),
      h('td', { class: 'n' }, n.warm_up ? '–' : bytes(n.used)), h('td', { class: n.live ? 'n strong' : 'n faint' }, bytes(n.live)));
    if (!open) return [line];
    const find = word => () => {
      const q = `${word}:${n.id} pool:${p.pool.slice(1, -1)}`;
      byId('search').value = q;
      update({ view: 'state', state: device().states - 1, q, sel: -1 }, true);
    };
    return [line, h('tr', { class: 'open' }, h('td', {}), h('td', { colspan: 7 },
      h('p', { class: 'muted' }, `Last ran in generation ${number(n.generation)}. It needs ${plural(n.segments.length, 'segment')}.`),
      h('div', { class: 'actions' }, h('button', { class: 'small', onclick: find('graph') }, 'Its segments and blocks'),
        n.warm_up ? null : h('button', { class: 'small', onclick: find('tree') }, 'With all graphs after it')),
      this.outputs(n)))];
  }

  outputs(n) {
    if (!n.outputs.length) {
      return h('p', { class: 'faint' }, n.warm_up ? 'None of its outputs is in use.' : 'It has no outputs that are used after it.');
    }
    const sorted = [...n.outputs].sort((a, b) => b.live - a.live || b.size - a.size);
    const titles = ['Output', 'Made at', 'Address', 'Bytes', ''];
    const row = o => h('tr', {}, h('td', {}, o.op), h('td', { title: o.at }, baseLine(o.at)), h('td', {}, h('code', {}, o.addr)),
      h('td', { class: 'n strong' }, bytes(o.size)), h('td', { class: o.live ? '' : 'faint' }, o.live ? 'in use' : 'closed'));
    return h('table', { class: 'list' },
      h('thead', {}, h('tr', {}, titles.map((t, i) => h('th', { scope: 'col', class: i === 3 ? 'n' : '' }, t)))),
      h('tbody', {}, sorted.map(row)));
  }
}
