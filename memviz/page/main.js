'use strict';
// The page as a whole: tabs, devices, the details' width; it begins when everything is here.

const timelines = {};
let views = {};

const viewList = [
  { name: 'active', title: 'Active memory', long: 'Active Memory Timeline' },
  { name: 'cached', title: 'Cached memory', long: 'Active Cached Memory Timeline' },
  { name: 'state', title: 'Allocator state', long: 'Allocator State History' },
  { name: 'peak', title: 'Peak', long: 'Who holds what' },
  { name: 'oom', title: 'Out of memory', long: 'Why allocations failed' },
  { name: 'compare', title: 'Compare', long: 'Difference of two snapshots' },
  { name: 'settings', title: 'Settings', long: 'Allocator settings' },
];

const withDetails = new Set(['active', 'cached', 'state']);
let shown = null;

function fillTabs() {
  const tabs = byId('tabs'),
    d = device();
  put(tabs,
    ...viewList.map((v, k) =>
      h('button', {
          role: 'tab',
          id: `tab-${v.name}`,
          'aria-selected': where.view === v.name ? 'true' : 'false',
          'aria-controls': 'view',
          tabindex: where.view === v.name ? '0' : '-1',
          title: `${v.long} (${k + 1})`,
          onclick: () => update({ view: v.name }, true)
        },
        v.title,
        v.name === 'oom' && d.ooms.length ? h('span', { class: 'badge danger' }, String(d.ooms.length)) : null)));
}

function bindTabs() {
  byId('tabs').addEventListener('keydown', e => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
    if (!by) return;
    e.preventDefault();
    e.stopPropagation();
    const k = viewList.findIndex(v => v.name === where.view);
    update({ view: viewList[(k + by + viewList.length) % viewList.length].name }, true);
    byId(`tab-${where.view}`).focus();
  });
}

function showView() {
  if (!views[where.view]) where.view = defaults.view;
  const v = views[where.view];
  for (const t of byId('tabs').children) {
    const on = t.id === `tab-${where.view}`;
    t.setAttribute('aria-selected', on ? 'true' : 'false');
    t.tabIndex = on ? 0 : -1;
    if (on) t.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  }
  byId('view').setAttribute('aria-labelledby', `tab-${where.view}`);
  byId('main').classList.toggle('alone', !withDetails.has(where.view));
  document.title = `${baseName(info.file)} · ${viewList.find(x => x.name === where.view).title} · tenon memviz`;
  if (shown === v) return;
  const had = byId('view').contains(document.activeElement);
  if (shown) shown.hide();
  shown = v;
  v.show(byId('view'));
  if (had) byId('view').focus({ preventScroll: true });
}

function fillDevices() {
  const list = info.devices;
  byId('device-label').hidden = list.length < 2;
  put(
    byId('device'),
    ...list.map(d => h('option', { value: String(d.device), selected: d === device() }, `Device ${d.device} · ${bytes(d.max_active)}`)));
  byId('device').onchange = e =>
    update({ device: e.target.value, from: 0, to: 0, lo: 0, hi: 0, state: -1, sel: -1, seg: -1, stack: 0, oom: 0 }, true);
}

function bindDivider() {
  const bar = byId('divider'),
    set = w => document.documentElement.style.setProperty('--side', `${clamp(w, 240, Math.max(260, innerWidth * 0.6))}px`);
  const width = () => byId('inspector').getBoundingClientRect().width;
  bar.addEventListener('pointerdown', e => { bar.setPointerCapture(e.pointerId); bar.dataset.drag = '1'; });
  bar.addEventListener('pointermove', e => bar.dataset.drag && set(innerWidth - e.clientX));
  bar.addEventListener('pointerup', () => delete bar.dataset.drag);
  bar.addEventListener('keydown', e => {
    const by = { ArrowLeft: 24, ArrowRight: -24 }[e.key];
    if (!by) return;
    e.stopPropagation();
    set(width() + by);
  });
}

// follow reacts to a change of where we are.
function follow(what) {
  if (what.has('device')) {
    fillTabs();
    fillDevices();
  }
  if (what.has('colour')) forgetColours();
  const same = !what.has('view');
  if (!same) showView();
  else if (shown) shown.changed(what);
  if (what.has('theme')) fillTabs();
  if (['device', 'sel', 'seg', 'q', 'only', 'state', 'view', 'stack', 'theme'].some(k => what.has(k))) {
    clearTimeout(follow.timer);
    follow.waits = true;
    follow.timer = setTimeout(() => {
      follow.waits = false;
      fillInspector();
    }, what.has('state') && !what.has('sel') ? 30 : 0);
  }
  if (what.has('q') && document.activeElement !== byId('search')) byId('search').value = where.q;
}

function emptyFile() {
  byId('main').classList.add('alone');
  document.querySelector('.search').hidden = true;
  put(
    byId('view'),
    h('div', { class: 'empty' },
      h('h2', {}, 'The snapshot holds nothing'),
      h('p', {}, 'It has neither events nor segments of any device. In PyTorch, start recording before the part that you want to see:'),
      h('pre', {}, 'torch.cuda.memory._record_memory_history()\n…\ntorch.cuda.memory._dump_snapshot("snapshot.pickle")'),
      h('p', {}, 'With Tenon:'),
      h('pre', {},
        'device.RecordMemoryHistory(cuda.History{Enabled: cuda.HistoryAll, Context: cuda.ContextAll})\n…\n'
          + 'device.DumpSnapshot("snapshot.pickle")')));
}

async function begin() {
  try { theme = localStorage.getItem('tenon-memviz-theme') || 'system'; } catch { /* no storage: the system's theme */ }
  document.documentElement.dataset.theme = darkNow() ? 'dark' : 'light';
  byId('theme').addEventListener('click', nextTheme);
  byId('skip').addEventListener('click', e => { e.preventDefault(); byId('view').focus(); });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', showTheme);
  try {
    info = await ask('info');
  } catch (e) {
    byId('main').classList.add('alone');
    put(
      byId('view'),
      h('div', { class: 'empty' },
        h('h2', {}, 'The snapshot could not be shown'),
        h('p', {}, e.message),
        h('button', { class: 'small', onclick: () => location.reload() }, 'Try again')));
    return;
  }
  byId('file').textContent = baseName(info.file);
  byId('file').title = info.file;
  document.title = `${baseName(info.file)} · tenon memviz`;
  if (!info.devices || !info.devices.length) {
    emptyFile();
    bindHelp();
    document.documentElement.dataset.ready = '1';
    return;
  }
  defaults.view = info.first || 'active';
  readAddress();
  for (const v of ['active', 'cached']) timelines[v] = new Timeline(v);
  views = {
    ...timelines,
    state: new BlockView(),
    peak: new HoldersView(),
    oom: new OOMView(),
    compare: new CompareView(),
    settings: new SettingsView()
  };
  if (info.devices.some(d => d.trees)) {
    viewList.push({ name: 'trees', title: 'Graph trees', long: 'What the pools of compiled regions are for' });
    views.trees = new TreesView();
  }
  if (!new URLSearchParams(location.hash.slice(1)).has('view') && !device().events) where.view = 'state';
  listeners.add(follow);
  showTheme();
  fillDevices();
  bindTabs();
  bindKeys();
  bindSearch();
  bindDivider();
  byId('search').value = where.q;
  addEventListener('hashchange', reread);
  addEventListener('popstate', reread);
  fillTabs();
  showView();
  fillInspector();
  document.documentElement.dataset.ready = '1';
}

// reread takes over an address that a person or the browser's Back has set.
function reread() {
  if (location.hash === addressText()) return;
  const before = { ...where };
  readAddress();
  const changed = new Set(Object.keys(defaults).filter(k => before[k] !== where[k]));
  if (changed.size) follow(changed);
}

if (document.readyState === 'loading') document.addEventListener('DOMContentLoaded', begin);
else begin();
