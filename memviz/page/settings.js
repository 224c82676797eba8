'use strict';
// What the file says of itself: devices, streams, pools, and the allocator's settings.

// settingText writes a setting's value in words where its number says nothing.
function settingText(k, v) {
  if (v === '') return '(empty)';
  if (k === 'max_split_size') return v < 0 ? 'unlimited' : bytes(v);
  if (k === 'garbage_collection_threshold') return v === 0 ? 'off' : String(v);
  if (!v || typeof v !== 'object') return String(v);
  const list = Object.entries(v);
  if (k === 'roundup_power2_divisions' && list.every(([, x]) => !(x > 1))) return 'off';
  return list.map(([name, x]) => `${name}: ${x}`).join(', ');
}

class SettingsView {
  constructor() {
    this.root = h('div', { class: 'page settings' });
  }

  show(place) {
    put(place, this.root);
    this.fill();
  }

  hide() {}

  changed(what) {
    if (what.has('device')) this.fill();
  }

  fill() {
    const d = device(), settings = Object.entries(info.settings || {});
    const pools = d.pools.filter(p => p !== '');
    const moment = s => s === 0 ? 'before the trace' : `event ${number(s - 1)}`;
    put(this.root,
      h('h2', {}, 'Allocator settings'),
      settings.length
        ? h('table', { class: 'list plain' },
            h('tbody', {},
              settings.map(([k, v]) => h('tr', {}, h('th', { scope: 'row' }, h('code', {}, k)), h('td', {}, settingText(k, v))))))
        : h('p', { class: 'faint' }, 'The snapshot holds none.'),
      h('h2', {}, `Device ${d.device}`),
      h('dl', { class: 'facts-list wide-list' },
        row(
          'trace',
          `${plural(d.events, 'event')}, ${plural(d.allocations, 'allocation')}`
            + (d.time_end_us > d.time_start_us
              ? `, ${duration(d.time_end_us - d.time_start_us)} from ${new Date(d.time_start_us / 1000)
                .toISOString().replace('T', ' ').slice(0, 19)} UTC`
              : '')),
        row(
          'peak',
          `${bytes(d.max_active)} active (${moment(d.peak_state)}), ${bytes(d.max_cached)} in segments (${moment(d.cached_peak_state)})`),
        row('at the end', `${bytes(d.end_active)} active in ${bytes(d.end_cached)} of ${plural(d.segments, 'segment')}`),
        row('streams', d.streams.map(streamName).join(', ') || '–'),
        row('pools', pools.map(p => (p === '(0,0)' ? 'default' : `private ${p}`)).join(', ') || '–')),
      h('p', { class: 'faint' },
        `${info.file} · ${plural(info.stacks, 'stack')}${info.static ? ' · static file: the coarser levels, and chosen states' : ''}`));
  }
}
