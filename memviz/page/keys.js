'use strict';
// The keyboard, and the page that explains it.

const keyTable = [
  [
    'Views',
    [
      ['1 … 8', 'active, cached, allocator state, peak, out of memory, compare, settings, and graph trees if there are any'],
      ['/', 'search'],
      ['Esc', 'close, then clear selection, highlight, search'],
      ['t', 'dark or light'],
      ['?', 'this page']]],
  [
    'Timeline',
    [
      ['← →', 'pan (with Shift a whole page)'],
      ['+ −', 'zoom at the marker'],
      ['↑ ↓', 'zoom heights'],
      ['0', 'the whole trace'],
      ['f', 'fit the height to what is visible'],
      ['Home End', 'to the start, to the end']]],
  [
    'Marker and selection',
    [
      [', .', 'marker one event back, on'],
      ['p', 'marker to the peak'],
      ['[ ]', 'select the allocation below, above at the marker'],
      ['Enter', 'select the largest at the marker'],
      ['z', 'zoom to the selection’s life'],
      ['s', 'highlight its stack'],
      ['b', 'show its block'],
      ['o', 'stack only what the search matches']]],
  [
    'Mouse',
    [
      ['wheel', 'zoom at the pointer (with Alt: heights; with Shift: pan)'],
      ['drag', 'pan'],
      ['Shift drag', 'zoom to a range'],
      ['click', 'select, and move the marker'],
      ['double click', 'zoom to an allocation’s life']]],
  [
    'Search',
    [
      ['conv2d', 'a frame has it'],
      ['size>=10MiB', 'also < <= > ='],
      ['stream:0 pool:1,0', 'stream, private pool'],
      ['graph:7 tree:7', 'outputs in use of a graph, of all after it too'],
      ['category:gradient', 'category'],
      ['addr:0x7f… event:120', 'at the address, alive after the event'],
      ['-word', 'not']]]
];

function keySection(title) {
  const rows = keyTable.find(([t]) => t === title)[1];
  return h('section', {},
    h('h3', {}, title),
    h('dl', {},
      rows.map(([k, text]) => [
        h('dt', {},
          k.split(' ').map(x => (x === '…' ? ' … ' : h('kbd', {}, x)))),
        h('dd', {}, text)])));
}

function showHelp() {
  const d = byId('help');
  if (d.open) {
    d.close();
    return;
  }
  put(d,
    h('header', {}, h('h2', {}, 'Keys'), h('button', { class: 'icon', 'aria-label': 'Close', onclick: () => d.close() }, '✕')),
    h('div', { class: 'key-columns' },
      [
        ['Views', 'Timeline', 'Search'],
        ['Marker and selection', 'Mouse']
      ].map(column => h('div', {}, column.map(keySection)))));
  d.showModal();
}

function bindHelp() {
  byId('help-button').addEventListener('click', showHelp);
  byId('help').addEventListener('click', e => {
    if (e.target === byId('help')) byId('help').close();
  });
}

function bindKeys() {
  bindHelp();
  document.addEventListener('keydown', e => {
    if (e.ctrlKey || e.metaKey || e.altKey || byId('help').open && e.key !== '?') return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName) && e.target.type !== 'checkbox' && e.target.type !== 'range';
    if (typing) return;
    if (onKey(e)) e.preventDefault();
  });
}

// onKey returns whether the key meant something.
function onKey(e) {
  const n = '12345678'.indexOf(e.key);
  if (n >= 0 && n < viewList.length) {
    update({ view: viewList[n].name }, true);
    return true;
  }
  switch (e.key) {
    case '/': byId('search').focus(); byId('search').select(); return true;
    case '?': showHelp(); return true;
    case 't': nextTheme(); return true;
    case 'Escape': return escape();
    case 'p': goToPeak(where.view); return true;
    case ',': case '<': stepMarker(e.shiftKey || e.key === '<' ? -10 : -1); return true;
    case '.': case '>': stepMarker(e.shiftKey || e.key === '>' ? 10 : 1); return true;
    case 'z': revealSelection(); return true;
    case 's': selectedStack().then(id => id && toggleStack(id)); return true;
    case 'b': update({ view: 'state' }, true); return true;
    case 'o': if (where.q && !info.static) update({ only: !where.only, lo: 0, hi: 0 }); return true;
  }
  const v = timelines[where.view];
  return v ? timelineKey(v, e) : where.view === 'state' ? stateKey(e) : false;
}

function escape() {
  for (const [k, v] of [['sel', -1], ['seg', -1], ['stack', 0], ['q', '']]) {
    if (where[k] === v) continue;
    if (k === 'q') byId('search').value = '';
    update(k === 'q' ? { q: '', only: false } : { [k]: v }, true);
    return true;
  }
  return false;
}

function stepMarker(by) {
  let s = clamp(markerState() + by, 0, device().states - 1);
  if (info.static && where.view === 'state') { // only some states are there: step over those
    const list = views.state.table.states, k = list.indexOf(nearestState(markerState()));
    s = list[clamp(k + by, 0, list.length - 1)] ?? s;
  }
  showState(s);
  const v = timelines[where.view], total = v && v.totalAt(s);
  say(`event ${s - 1}${total ? `, ${bytes(total.total)}` : ''}`);
}

async function selectedStack() {
  if (where.sel < 0) return where.stack;
  try {
    return (await ask('alloc', { device: device().device, view: 'active', id: where.sel })).stack.id;
  } catch {
    return allocationFromTiles('active', where.sel)?.stack.id || 0;
  }
}

function timelineKey(v, e) {
  if (/^(BUTTON|A|SUMMARY)$/.test(e.target.tagName) && e.key === 'Enter') return false;
  const page = e.shiftKey ? 0.9 : 0.15;
  switch (e.key) {
    case 'ArrowLeft': v.pan(-v.plotW * page); return true;
    case 'ArrowRight': v.pan(v.plotW * page); return true;
    case 'ArrowUp': v.zoomHeight(0.8, v.y(v.lo)); return true;
    case 'ArrowDown': v.zoomHeight(1.25, v.y(v.lo)); return true;
    case '+': case '=': v.zoom(0.7); return true;
    case '-': case '_': v.zoom(1 / 0.7); return true;
    case '0': v.zoomTo(0, device().states, 0, 0); return true;
    case 'f': v.fitHeight(); return true;
    case 'Home': v.pan(-1e9); return true;
    case 'End': v.pan(1e9); return true;
    case '[': case ']': walkStrips(v, e.key === ']' ? 1 : -1); return true;
    case 'Enter': {
      const list = v.stripsAt(markerState());
      if (list.length) selectStrip(v, list.reduce((a, b) => b.size > a.size ? b : a));
      return true;
    }
  }
  return false;
}

// walkStrips selects the next strip at the marker, upwards or downwards.
function walkStrips(v, by) {
  const list = v.stripsAt(markerState());
  if (!list.length) return;
  const k = list.findIndex(s => s.id === (v.view === 'active' ? where.sel : where.seg));
  selectStrip(v, list[k < 0 ? (by > 0 ? 0 : list.length - 1) : clamp(k + by, 0, list.length - 1)]);
}

function selectStrip(v, s) {
  update(v.view === 'active' ? { sel: s.id, seg: -1 } : { seg: s.id, sel: -1 });
  const text = stackTexts.get(s.t.stack[s.i]);
  say(`${bytes(s.size)}${text && text.label ? `, ${shortLabel(text.label)}` : ''}`);
}

function stateKey(e) {
  const view = views.state, rows = Math.max(1, Math.floor(view.table.scroller.clientHeight / eventRow) - 2);
  if (e.target.type === 'range' && /^(Arrow|Page|Home|End)/.test(e.key)) return false;
  switch (e.key) {
    case 'ArrowUp': case 'k': case 'ArrowLeft': stepMarker(-1); return true;
    case 'ArrowDown': case 'j': case 'ArrowRight': stepMarker(1); return true;
    case 'PageUp': stepMarker(-rows); return true;
    case 'PageDown': stepMarker(rows); return true;
    case 'Home': stepMarker(-1e12); return true;
    case 'End': stepMarker(1e12); return true;
    case '+': case '=': view.setZoom(view.zoomed * 1.5); return true;
    case '-': case '_': view.setZoom(view.zoomed / 1.5); return true;
    case '0': view.setZoom(1); return true;
  }
  return false;
}
