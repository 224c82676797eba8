'use strict';
// Search: one box; what matches stands out in the timeline and is listed at the right.

let searchFault = ''; // why the query was refused

const searchBroken = () => searchFault !== '';

function bindSearch() {
  const box = byId('search');
  box.addEventListener('input', () => {
    clearTimeout(bindSearch.timer);
    bindSearch.timer = setTimeout(() => setQuery(box.value.trim()), 140);
  });
  box.addEventListener('keydown', e => {
    if (e.key === 'Enter') {
      e.preventDefault();
      clearTimeout(bindSearch.timer);
      setQuery(box.value.trim());
      byId('inspector').querySelector('.result, .holder')?.focus();
    } else if (e.key === 'Escape') {
      box.value = '';
      setQuery('');
      box.blur();
      byId('view').focus();
      e.stopPropagation();
    }
  });
}

function setQuery(q) {
  searchFault = '';
  update({
    q,
    sel: q ? -1 : where.sel,
    only: q ? where.only : false,
    view: q && !['active', 'state', 'peak', 'trees'].includes(where.view) ? 'active' : where.view
  });
}

async function searchDetails() {
  const d = device(), q = where.q;
  if (embedded) {
    const found = drawnMatches(q);
    return [
      h('header', { class: 'side-head' },
        h('div', {},
          h('h2', {}, found.length ? plural(found.length, 'strip') : 'Nothing drawn matches'),
          h('p', { class: 'muted' }, `match “${q}”`))),
      h('p', { class: 'note' },
        'A static file searches the strips that it draws. Open the snapshot with tenon memviz to search every allocation.'),
      h('ul', { class: 'results' }, found.slice(0, 200).map(resultRow))
    ];
  }
  let r;
  try {
    r = await ask('search', { device: d.device, q, limit: 200 });
  } catch (e) {
    if (q === where.q) searchFault = e.message;
    return [h('header', { class: 'side-head' }, h('div', {}, h('h2', {}, 'Search'), h('p', { class: 'danger' }, e.message))), queryHelp()];
  }
  say(`${r.count} allocations match`);
  if (!r.count) {
    const pools = await treesFor(d),
      nodes = foundNodes(pools) || [];
    if (nodes.length)
      return lentDetails(nodes,
        liveOutputs(pools).filter(o => nodes.includes(o.node)));
    return [
      h('header', { class: 'side-head' }, h('div', {}, h('h2', {}, 'Nothing matches'), h('p', { class: 'muted' }, `“${q}”`))),
      queryHelp()];
  }
  return [
    h('header', { class: 'side-head' },
      h('div', {}, h('h2', {}, plural(r.count, 'allocation')), h('p', { class: 'muted' }, `match “${q}” · ${bytes(r.bytes)} together`)),
      where.view === 'active'
        && h('label', { class: 'switch', title: 'Stack only these in the timeline (o)' },
          h('input', {
            type: 'checkbox',
            checked: where.only,
            onchange: e => update({ only: e.target.checked, lo: 0, hi: 0 }),
            'data-key': 'only'
          }),
          ' only these')),
    r.groups.length > 1 ? h('h3', {}, 'By stack') : null,
    r.groups.length > 1 ? h('ul', { class: 'holders' }, r.groups.slice(0, 12).map(g => holderRow(g, r.bytes))) : null,
    h('h3', {}, r.results.length < r.count ? `Largest ${r.results.length}` : 'Largest first'),
    h('ul', { class: 'results' }, r.results.map(resultRow)),
  ].filter(Boolean);
}

// lentDetails shows what a search for graphs finds whose outputs the allocator counts as free.
function lentDetails(nodes, lent) {
  const row = o => h('li', {}, h('div', { class: 'result' }, h('i', { class: 'swatch', style: { background: 'var(--pool)' } }),
    h('b', {}, bytes(o.size)), h('span', {}, outputText(o))));
  return [
    h('header', { class: 'side-head' },
      h('div', {}, h('h2', {}, plural(nodes.length, 'graph')), h('p', { class: 'muted' }, `match “${where.q}”`))),
    h('p', { class: 'note' }, lent.length
      ? 'After a replay the allocator counts the memory of these outputs as free, though tensors hold it.'
      : 'None of their outputs is in use at the end.'),
    h('ul', { class: 'results' }, lent.map(row)),
  ];
}

const resultRow = a => h('li', {}, h('button', { class: 'result', 'data-key': `a${a.id}`, onclick: () => selectResult(a) },
  h('i', { class: 'swatch', style: { background: stackColour(a.stack.id) } }), h('b', {}, bytes(a.size)), labelElement(a.stack.label),
  h('span', { class: 'count' }, a.before ? 'from before' : `event ${number(a.start - 1)}`)));

// drawnMatches lists what matches among the strips on the screen, largest first.
function drawnMatches(q) {
  const found = new Map(), test = localFilter(q);
  for (const t of timelines.active.drawn) {
    for (let i = 0; i < t.strips; i++) {
      if (!found.has(t.id[i]) && test(t, i))
        found.set(t.id[i], {
          id: t.id[i],
          size: t.size[i],
          start: t.start[i],
          end: t.end[i],
          before: Boolean((t.marks[i] >>> 24) & 1),
          stack: stackTexts.get(t.stack[i]) || { id: t.stack[i], label: '' }
        });
    }
  }
  return [...found.values()].sort((a, b) => b.size - a.size || a.id - b.id);
}

function selectResult(a) {
  update({ sel: a.id, state: clamp(a.start, 0, device().states - 1) }, true);
  const r = range(1);
  if (where.view === 'active' && (a.end < r.from || a.start > r.to)) timelines.active.reveal(a.start, Math.min(a.end, device().states));
}

function queryHelp() {
  const rows = [
    ['conv2d', 'a frame of the stack has it: file, line or function'],
    ['"my file.py"', 'with its spaces'],
    ['size>=10MiB', 'also <, <=, >, ='],
    ['stream:0', 'on that stream'],
    ['pool:1,0', 'in that private pool'],
    ['graph:7', 'an output in use of that graph'],
    ['tree:7', 'of it or of the graphs after it'],
    ['category:gradient', 'where the snapshot tells'],
    ['addr:0x7f…', 'at that address'],
    ['event:120', 'alive after it'],
    ['stack:17', 'of that stack'],
    ['-backward', 'not that']];
  return h('dl', { class: 'query-help' },
    rows.map(([a, b]) => [h('dt', {}, h('code', {}, a)), h('dd', {}, b)]));
}

const scales = { '': 1, k: 1024, m: 2 ** 20, g: 2 ** 30, t: 2 ** 40 }; // as the server has them, with and without the i

// localFilter makes a test of strips from a query, for static files: sizes, streams, pools and the stacks that are there.
function localFilter(q) {
  if (localFilter.q === q) return localFilter.test;
  const tests = (q.match(/-?(?:"[^"]*"|[^\s"]+)/g) || []).map(word => {
    const not = word.startsWith('-') && word.length > 1;
    const w = (not ? word.slice(1) : word).replaceAll('"', '').toLowerCase();
    let m, f;
    if ((m = /^size(>=|<=|>|<|=)([\d.]+)([kmgt]?i?)b?$/.exec(w))) {
      const n = Number(m[2]) * scales[m[3].replace('i', '')];
      f = {
        '>=': (t, i) => t.size[i] >= n,
        '<=': (t, i) => t.size[i] <= n,
        '>': (t, i) => t.size[i] > n,
        '<': (t, i) => t.size[i] < n,
        '=': (t, i) => t.size[i] === n
      }[m[1]];
    } else if ((m = /^stream:(.*)$/.exec(w))) f = (t, i) => device().streams[t.marks[i] & 255] === m[1];
    else if ((m = /^pool:(.*)$/.exec(w))) f = (t, i) => device().pools[t.marks[i] >> 8 & 255] === `(${m[1]})`;
    else if ((m = /^stack:(\d+)$/.exec(w))) f = (t, i) => t.stack[i] === Number(m[1]);
    else f = (t, i) => stackHas(t.stack[i], w);
    return not ? (t, i) => !f(t, i) : f;
  });
  localFilter.q = q;
  localFilter.test = (t, i) => tests.every(f => f(t, i));
  return localFilter.test;
}

function stacksCame() {
  timelines.active.schedule();
  fillInspector();
}

function stackHas(id, word) {
  const s = stackText(id, stacksCame);
  if (!s) return false;
  if (s.text === undefined) s.text = copyText(s.frames || []).toLowerCase();
  return s.text.includes(word);
}
