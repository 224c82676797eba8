'use strict';
// The details at the right: what is selected, else what was searched for, else who holds memory at the marker.

let inspectorTurn = 0; // answers that come after a newer question are dropped

// nearestState gives the state to ask at and blocks for: in a static file the closest one that it holds.
function nearestState(s) {
  if (!info.static) return s;
  const list = info.static.states[String(device().device)] || [];
  return list.length ? list.reduce((a, b) => Math.abs(b - s) < Math.abs(a - s) ? b : a) : s;
}

async function fillInspector() {
  const place = byId('inspector'), turn = ++inspectorTurn;
  const fresh = () => turn === inspectorTurn;
  try {
    let content;
    if (where.view === 'cached' && where.seg >= 0) content = await allocationDetails('cached', where.seg);
    else if (where.view !== 'cached' && where.sel >= 0) content = await allocationDetails('active', where.sel);
    else if (where.q && where.view !== 'cached') content = await searchDetails();
    else content = await holdersDetails();
    if (!fresh()) return;
    const keep = document.activeElement && place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    put(place, ...content);
    if (keep) place.querySelector(`[data-key="${CSS.escape(keep)}"]`)?.focus();
  } catch (e) {
    if (fresh()) put(place, h('div', { class: 'empty small-empty' }, h('p', {}, e.message)));
  }
}

const row = (name, ...value) => [h('dt', {}, name), h('dd', {}, ...value)];

// jump is a link that moves the marker, and the view with it.
function jump(state, text) {
  return h('button', { class: 'link', onclick: () => showState(state) }, text);
}

// showState moves the marker and makes sure that a timeline shows it.
function showState(state) {
  const change = { state }, r = range(1), span = r.to - r.from;
  if ((state < r.from || state >= r.to) && span < device().states) {
    change.from = clamp(state - span / 2, 0, device().states - span);
    change.to = change.from + span;
  }
  update(change);
}

async function allocationDetails(view, id) {
  let a;
  try {
    a = await ask('alloc', { device: device().device, view, id });
  } catch (e) {
    if (!(e instanceof Missing)) throw e;
    a = allocationFromTiles(view, id);
    if (!a) throw e;
  }
  const d = device(), output = view === 'active' && a.addr && a.stays ? liveOutputs(await treesFor(d)).find(o => o.addr === a.addr) : null;
  const colour = view === 'active' ? stackColour(a.stack.id) : 'var(--muted)';
  const life = a.end_us && a.start_us ? duration(a.end_us - a.start_us) : '';
  const pending = a.end - a.freed > 1 && !a.stays; // other streams held it up
  const close = () => update(view === 'active' ? { sel: -1 } : { seg: -1 }, true);
  return [
    h('header', { class: 'side-head' },
      h('i', { class: 'swatch', style: { background: colour } }),
      h('div', {},
        h('h2', {}, bytes(a.size)),
        h('p', { class: 'muted' }, `${number(a.size)} bytes · ${view === 'active' ? 'allocation' : 'segment'} ${number(a.id)}`)),
      h('button', { class: 'icon', 'aria-label': 'Close the details', title: 'Close (Escape)', onclick: close, 'data-key': 'close' }, '✕')),
    h('dl', { class: 'facts-list' },
      row(
        'lives',
        a.before ? 'since before the trace' : jump(a.start, `from event ${number(a.start - 1)}`),
        a.stays ? ' to the end' : [' to ', jump(a.end - 1, `event ${number(a.end - 1)}`)],
        h('div', { class: 'muted' }, `${plural(Math.min(a.end, d.states) - a.start, 'event')}${life ? ', ' + life : ''}`)),
      pending ? row('freed', `asked at event ${number(a.freed - 1)}, completed ${plural(a.end - a.freed, 'event')} later`) : null,
      row('stream', streamName(a.stream)),
      a.pool ? row('pool', a.pool === '(0,0)' ? 'default' : h('span', { class: 'badge pool' }, `private ${a.pool}`)) : null,
      output ? row('output of', `${nodeTitle(output.node)}: ${output.op}, ${baseLine(output.at)}`) : null,
      a.category ? row('category', a.category) : null,
      a.addr ? row('address', h('code', {}, a.addr)) : null),
    h('div', { class: 'actions' },
      h('button', { class: 'small', title: 'Zoom to its life (z)', onclick: () => revealSelection(), 'data-key': 'zoom' }, 'Zoom to it'),
      view === 'active' && a.stack.id
        ? h('button', {
              class: 'small',
              title: 'Let all strips of this stack stand out (s)',
              onclick: () => toggleStack(a.stack.id),
              'data-key': 'same'
            },
            where.stack === a.stack.id ? 'All stacks' : 'Same stack')
        : null,
      view === 'active' && where.view === 'active'
        ? h('button', {
              class: 'small',
              title: 'Where it lies in its segment (b)',
              onclick: () => update({ view: 'state', state: a.start }, true),
              'data-key': 'block'
            },
            'Block')
        : null,
      where.view === 'state'
        ? h('button', { class: 'small', onclick: () => update({ view: 'active' }, true), 'data-key': 'strip' }, 'Show in timeline')
        : null,
      a.stack.frames && a.stack.frames.length ? copyButton(() => copyText(a.stack.frames)) : null),
    h('h3', {}, 'Allocated by'),
    framesElement(a.stack.frames || []),
  ];
}

// allocationFromTiles puts together what the tiles tell, for static files.
function allocationFromTiles(view, id) {
  const d = device();
  for (const t of tiles.map.values()) {
    if (!t || !t.key.includes(`device=${d.device}&view=${view}&`)) continue;
    const i = stripOf(t, id);
    if (i < 0) continue;
    const m = t.marks[i];
    return {
      id,
      addr: '',
      size: t.size[i],
      stream: d.streams[m & 255],
      pool: d.pools[(m >> 8) & 255],
      category: info.categories[(m >> 16) & 255] || '',
      start: t.start[i],
      freed: t.end[i],
      end: t.end[i],
      before: Boolean((m >>> 24) & 1),
      stays: Boolean((m >>> 25) & 1),
      stack: stackTexts.get(t.stack[i]) || { id: t.stack[i], frames: [] }
    };
  }
  return null;
}

function toggleStack(id) {
  update({ stack: where.stack === id ? 0 : id }, true);
}

async function revealSelection() {
  const view = where.view === 'cached' ? 'cached' : 'active', id = view === 'cached' ? where.seg : where.sel;
  if (id < 0) return;
  let a;
  try {
    a = await ask('alloc', { device: device().device, view, id });
  } catch {
    a = allocationFromTiles(view, id);
  }
  if (!a) return;
  if (where.view !== view) update({ view }, true);
  timelines[view].reveal(a.start, Math.min(a.end, device().states));
}

async function holdersDetails() {
  const d = device(), asked = markerState(), s = nearestState(asked);
  const top = info.static ? info.static.top : 60, filter = where.only && where.q ? where.q : undefined;
  const at = await ask('at', { device: d.device, state: s, top, filter });
  return [
    h('header', { class: 'side-head' },
      h('div', {},
        h('h2', {}, bytes(at.active)),
        h('p', { class: 'muted' },
          !d.events
            ? 'held in the snapshot'
            : s === d.peak_state
              ? 'held at the peak'
              : at.event
                ? `held after event ${number(s - 1)}, ${at.event.action}`
                : 'held before the trace',
          ` · ${plural(at.count, 'allocation')}`)),
      h('button', { class: 'small', onclick: () => update({ view: 'peak' }, true), title: 'Table and flame graph (4)' }, 'Explain')),
    asked !== s
      ? h('p', { class: 'note' }, `This static file knows who holds what at some states only; the nearest is ${number(s)}.`)
      : null,
    at.groups.length
      ? h('ul', { class: 'holders' },
          at.groups.map(g => holderRow(g, at.active)))
      : h('p', { class: 'faint pad' }, 'Nothing is allocated here.'),
    at.rest.count
      ? h('p', { class: 'faint pad' },
          `and ${bytes(at.rest.bytes)} in ${plural(at.rest.count, 'allocation')} of ${plural(at.stacks - at.groups.length, 'other stack')}`)
      : null
  ].filter(Boolean);
}

// holderRow is one stack in a list: hovering lets its strips stand out, a click keeps that.
function holderRow(g, whole) {
  const v = timelines[where.view] || (where.view === 'state' ? views.state : null);
  const hover = id => () => {
    if (!v) return;
    clearTimeout(holderRow.timer);
    holderRow.timer = setTimeout(() => {
      v.hoverStack = id;
      v.schedule();
    }, id ? 40 : 0);
  };
  const via = h('span', {});
  if (g.stack)
    stackPromise(g.stack).then(s => {
      via.textContent = callersOf(s, 3)
        .map(x => `‹ ${x}`)
        .join(' ');
    });
  return h('li', {},
    h('button', {
        class: where.stack === g.stack && g.stack ? 'holder on' : 'holder',
        'data-key': `s${g.stack}`,
        'aria-pressed': where.stack === g.stack ? 'true' : 'false',
        onmouseenter: hover(g.stack),
        onmouseleave: hover(0),
        onclick: () => {
          if (!g.stack) return;
          if (v) toggleStack(g.stack);
          else update({ view: 'active', stack: g.stack }, true);
        }
      },
      h('i', { class: 'swatch', style: { background: stackColour(g.stack) } }),
      labelElement(g.label),
      h('span', { class: 'amount' }, bytes(g.bytes)),
      h('span', { class: 'callers' }, via),
      h('span', { class: 'count' }, g.count > 1 ? `${number(g.count)} ×` : ''),
      h('span', { class: 'share' },
        h('span', { style: { width: `${(100 * g.bytes) / Math.max(whole, 1)}%`, background: stackColour(g.stack) } }))));
}
