'use strict';
// Answers: the same requests are answered by the server or, in a static file, by what is embedded in it.

const embedded = (() => {
  const e = byId('tenon-static');
  return e ? JSON.parse(e.textContent) : null;
})();

// Missing is what a static file does not hold.
class Missing extends Error {}

// Refused is an answer that says why there is none.
class Refused extends Error {}

// request writes a request as its text; parameters that are undefined are left out.
function request(path, parameters) {
  const list = Object.entries(parameters || {}).filter(([, v]) => v !== undefined && v !== '');
  return path + (list.length ? '?' + list.map(([k, v]) => `${k}=${encodeURIComponent(v)}`).join('&') : '');
}

// Cache forgets what was not used for the longest time.
class Cache {
  constructor(limit) {
    this.limit = limit;
    this.map = new Map();
  }
  get(key) {
    const v = this.map.get(key);
    if (v !== undefined) {
      this.map.delete(key);
      this.map.set(key, v);
    }
    return v;
  }
  set(key, v) {
    this.map.delete(key);
    this.map.set(key, v);
    if (this.map.size > this.limit) this.map.delete(this.map.keys().next().value);
  }
  delete(key) {
    this.map.delete(key);
  }
}

const answers = new Cache(600); // request text to promise
let pending = 0;

// busy shows the line below the bar while answers are awaited for more than a moment.
function busy(change) {
  pending += change;
  clearTimeout(busy.timer);
  if (pending === 0) byId('progress').hidden = true;
  else busy.timer = setTimeout(() => { byId('progress').hidden = pending === 0; }, 200);
}

async function fetchAnswer(text) {
  busy(1);
  try {
    const r = await fetch(text);
    if (!r.ok) {
      const body = await r.text();
      let why = body;
      try { why = JSON.parse(body).error || body; } catch { /* not ours */ }
      throw new Refused(why || `The answer to ${text} was ${r.status}.`);
    }
    notice('');
    return r;
  } catch (e) {
    if (e instanceof TypeError) {
      notice('The viewer’s server does not answer. Start tenon memviz again and reload this page.');
      throw new Refused('The viewer’s server does not answer.');
    }
    throw e;
  } finally {
    busy(-1);
  }
}

// notice shows a sentence above everything, or removes it.
function notice(text) {
  const e = byId('notice');
  if (e.textContent !== text) e.textContent = text;
  e.hidden = !text;
}

// ask returns the JSON answer to a request; answers are kept.
function ask(path, parameters) {
  const text = request(path, parameters);
  let p = answers.get(text);
  if (p) return p;
  if (embedded) {
    p =
      text in embedded
        ? Promise.resolve(embedded[text])
        : Promise.reject(new Missing('This static file does not hold that; open the snapshot with tenon memviz to see it.'));
    p.catch(() => {});
  } else {
    p = fetchAnswer(text).then(r => r.json());
    p.catch(() => answers.delete(text));
  }
  answers.set(text, p);
  return p;
}

const tiles = new Cache(192); // request text to tile, or to null while it is on its way
const failedTiles = new Set();

// tile returns the tile at once if it is here; else it asks for it and calls arrived when it has come.
function tile(parameters, arrived) {
  const text = request('tile', parameters);
  const t = tiles.get(text);
  if (t !== undefined) return t;
  if (failedTiles.has(text) || embedded && !(text in embedded)) return null;
  tiles.set(text, null);
  loadTile(text).then(t => {
    tiles.set(text, t);
    arrived();
  }, () => {
    tiles.delete(text);
    failedTiles.add(text);
    setTimeout(() => failedTiles.delete(text), 3000);
  });
  return null;
}

async function loadTile(text) {
  if (!embedded) return decodeTile(await (await fetchAnswer(text)).arrayBuffer(), text);
  const packed = Uint8Array.from(atob(embedded[text]), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  return decodeTile(await new Response(stream).arrayBuffer(), text);
}

// decodeTile reads the binary form, whose arrays are used in place.
function decodeTile(buffer, key) {
  const d = new DataView(buffer);
  if (d.getUint32(0, true) !== 0x4c544e54 || d.getUint16(4, true) !== 1) throw new Refused('A tile has an unknown form.');
  const t = {
    key, level: d.getUint32(8, true), index: d.getUint32(12, true), columns: d.getUint32(16, true), strips: d.getUint32(20, true),
    steps: d.getUint32(24, true), without: d.getUint32(28, true), first: d.getFloat64(32, true), width: d.getFloat64(40, true),
    greatest: d.getFloat64(48, true), least: d.getFloat64(56, true),
  };
  let at = 64;
  const take = (type, n) => {
    const a = new type(buffer, at, n);
    at += Math.ceil(n * type.BYTES_PER_ELEMENT / 8) * 8;
    return a;
  };
  t.peak = take(Float64Array, t.columns);
  t.total = take(Float64Array, t.columns);
  t.time = take(Float64Array, t.columns);
  t.size = take(Float64Array, t.strips);
  t.id = take(Uint32Array, t.strips);
  t.stack = take(Uint32Array, t.strips);
  t.start = take(Uint32Array, t.strips);
  t.end = take(Uint32Array, t.strips);
  t.marks = take(Uint32Array, t.strips);
  t.column = take(Uint32Array, 2 * t.strips);
  t.step = take(Uint32Array, t.strips + 1);
  t.offset = take(Float64Array, t.steps);
  t.at = take(Uint32Array, t.steps);
  t.last = t.first + t.columns * t.width; // state after its last column
  return t;
}

// stripOf returns the position of allocation id in a tile, or -1.
function stripOf(t, id) {
  if (!t.byId) t.byId = new Map(Array.from(t.id, (v, i) => [v, i]));
  const i = t.byId.get(id);
  return i === undefined ? -1 : i;
}

// stepAt returns the position of the step of strip i that holds in column c.
function stepAt(t, i, c) {
  let lo = t.step[i], hi = t.step[i + 1] - 1;
  while (lo < hi) {
    const mid = (lo + hi + 1) >> 1;
    if (t.at[mid] <= c) lo = mid;
    else hi = mid - 1;
  }
  return lo;
}

const stackTexts = new Map(); // id to {label, frames}, or to null where it is not to be had
let stackWanted = new Set();
let stackTimer = 0;

// stackText returns a stack that is here already; otherwise it is asked for, many at a time, and arrived is called later.
function stackText(id, arrived) {
  if (id === 0) return { id: 0, label: '', frames: [] };
  const s = stackTexts.get(id);
  if (s !== undefined) return s;
  stackWanted.add(id);
  stackText.arrived = stackText.arrived || new Set();
  if (arrived) stackText.arrived.add(arrived);
  if (!stackTimer) stackTimer = setTimeout(fetchStacks, 12);
  return null;
}

async function fetchStacks() {
  stackTimer = 0;
  const ids = [...stackWanted], calls = [...stackText.arrived];
  stackWanted = new Set();
  stackText.arrived.clear();
  if (embedded) {
    for (const id of ids) stackTexts.set(id, (embedded[`stack?id=${id}`] || [null])[0]);
  } else {
    for (let i = 0; i < ids.length; i += 100) {
      const part = ids.slice(i, i + 100);
      try {
        const r = await fetchAnswer(`stack?id=${part.join(',')}`);
        (await r.json()).forEach((s, k) => stackTexts.set(part[k], s));
      } catch {
        for (const id of part) stackTexts.set(id, null);
      }
    }
  }
  for (const f of calls) f();
}

// stackPromise resolves to the stack, or to null.
function stackPromise(id) {
  return new Promise(done => {
    const look = () => {
      const s = stackText(id, look);
      if (s !== null || stackTexts.get(id) === null) done(s);
    };
    look();
  });
}
