'use strict';
// Where we are: the view, the range, the selection and so on, kept in the address so that a link leads back to it.

let info = null; // Info, once it has come

const defaults = {
  view: 'active',
  device: '',
  from: 0,
  to: 0,
  lo: 0,
  hi: 0,
  state: -1,
  sel: -1,
  seg: -1,
  stack: 0,
  q: '',
  only: false,
  colour: 'stack',
  oom: 0,
  at: 'peak',
  form: 'table'
};
const where = { ...defaults };
const listeners = new Set();
let theme = 'system';

// device is the one chosen, or that with the longest trace.
const device = () =>
  info.devices.find(d => String(d.device) === where.device) || info.devices.reduce((a, b) => (b.events > a.events ? b : a));

// markerState is the state that all views show: the one picked, or the peak.
function markerState() {
  const d = device();
  return where.state >= 0 ? Math.min(where.state, d.states - 1) : d.peak_state;
}

// readAddress takes over what the address says.
function readAddress() {
  const p = new URLSearchParams(location.hash.slice(1));
  for (const [k, v] of Object.entries(defaults)) {
    const text = p.get(k);
    if (text === null) where[k] = v;
    else if (typeof v === 'number') where[k] = Number.isFinite(Number(text)) ? Number(text) : v;
    else if (typeof v === 'boolean') where[k] = text === '1';
    else where[k] = text;
  }
}

function addressText() {
  const p = new URLSearchParams();
  for (const [k, v] of Object.entries(defaults)) {
    if (where[k] === v) continue;
    p.set(k, typeof v === 'boolean' ? '1' : typeof where[k] === 'number' ? String(Math.round(where[k] * 100) / 100) : where[k]);
  }
  return '#' + p.toString();
}

// update changes where we are and tells everyone. With push the step can be undone with the browser's Back.
function update(change, push) {
  const before = { ...where };
  Object.assign(where, change);
  const changed = new Set(Object.keys(defaults).filter(k => before[k] !== where[k]));
  if (!changed.size) return;
  if (push) {
    writeAddress.flush();
    history.pushState(null, '', addressText());
  } else {
    writeAddress();
  }
  for (const f of listeners) f(changed);
}

// writeAddress waits for a pause: browsers allow few changes of the address a second.
function writeAddress() {
  clearTimeout(writeAddress.timer);
  writeAddress.waits = true;
  writeAddress.timer = setTimeout(writeAddress.flush, 250);
}
writeAddress.flush = () => {
  clearTimeout(writeAddress.timer);
  if (!writeAddress.waits) return;
  writeAddress.waits = false;
  history.replaceState(null, '', addressText());
};

// range returns the visible states and bytes of a timeline.
function range(greatest) {
  const d = device();
  const from = where.to > where.from ? where.from : 0, to = where.to > where.from ? where.to : Math.max(d.states, 1);
  const lo = where.hi > where.lo ? where.lo : 0, hi = where.hi > where.lo ? where.hi : Math.max(greatest * 1.06, 1);
  return { from, to, lo, hi };
}

// Themes: what the system says, unless a person chose otherwise here.
function darkNow() {
  return theme === 'dark' || theme === 'system' && matchMedia('(prefers-color-scheme: dark)').matches;
}

function setTheme(t) {
  theme = t;
  try { localStorage.setItem('tenon-memviz-theme', t); } catch { /* a file: page may have no storage */ }
  showTheme();
}

function showTheme() {
  document.documentElement.dataset.theme = darkNow() ? 'dark' : 'light';
  byId('theme').title = `Theme: ${theme === 'system' ? 'as the system' : theme} (t)`;
  forgetColours();
  for (const f of listeners) f(new Set(['theme']));
}

const nextTheme = () => setTheme(darkNow() ? 'light' : 'dark');
