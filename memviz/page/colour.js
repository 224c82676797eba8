'use strict';
// Colours: one per stack, stream, pool or category, or a ramp for sizes and lifetimes; all of equal weight, in both themes.

let colourCache = new Map();
let cssCache = new Map();

function forgetColours() {
  colourCache = new Map();
  cssCache = new Map();
  for (const t of tiles.map.values()) if (t) t.picture = null;
}

// css returns a custom property of the page, such as css('--ink').
function css(name) {
  let v = cssCache.get(name);
  if (v === undefined) {
    v = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    cssCache.set(name, v);
  }
  return v;
}

// oklch turns lightness, chroma and hue (degrees) into [r, g, b] of 0..255, after Björn Ottosson's definition of Oklab (2020).
function oklch(l, c, hue) {
  const a = c * Math.cos(hue * Math.PI / 180), b = c * Math.sin(hue * Math.PI / 180);
  const L = (l + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const M = (l - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const S = (l - 0.0894841775 * a - 1.2914855480 * b) ** 3;
  const linear = [4.0767416621 * L - 3.3077115913 * M + 0.2309699292 * S, -1.2684380046 * L + 2.6097574011 * M - 0.3413193965 * S,
    -0.0041960863 * L - 0.7034186147 * M + 1.7076147010 * S];
  return linear.map(x => Math.round(255 * clamp(x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055, 0, 1)));
}

// keyColour gives the k-th of many distinct colours: hues a golden angle apart, three lightnesses in turn.
function keyColour(k) {
  const dark = document.documentElement.dataset.theme === 'dark';
  if (k === 0) return dark ? [98, 108, 122] : [150, 160, 174];
  const hue = (k * 137.508 + 205) % 360,
    turn = k % 3;
  return dark
    ? oklch([0.66, 0.58, 0.74][turn], [0.105, 0.11, 0.09][turn], hue)
    : oklch([0.72, 0.64, 0.8][turn], [0.115, 0.125, 0.1][turn], hue);
}

// rampColour gives the colour of x in 0..1, from quiet blue to warm.
function rampColour(x) {
  const dark = document.documentElement.dataset.theme === 'dark';
  x = Math.round(clamp(x, 0, 1) * 32) / 32;
  return dark ? oklch(0.42 + 0.4 * x, 0.09 + 0.04 * x, 265 - 205 * x) : oklch(0.88 - 0.38 * x, 0.06 + 0.09 * x, 215 + 150 * x);
}

const colourModes = [
  ['stack', 'stack'],
  ['size', 'size'],
  ['lifetime', 'lifetime'],
  ['stream', 'stream'],
  ['pool', 'pool'],
  ['category', 'category']];

// colourKey returns what strip i of a tile is coloured by: a small number.
function colourKey(t, i) {
  switch (where.colour) {
    case 'size': return Math.round(Math.log2(Math.max(t.size[i], 512)) * 2);
    case 'lifetime': return Math.round(Math.log2(Math.max(t.end[i] - t.start[i], 1)) * 2);
    case 'stream': return t.marks[i] & 255;
    case 'pool': return t.marks[i] >> 8 & 255;
    case 'category': return t.marks[i] >> 16 & 255;
    default: return t.stack[i];
  }
}

// colourRGB returns [r, g, b] of a key.
function colourRGB(key) {
  const name = `${where.colour}:${key}`;
  let c = colourCache.get(name);
  if (!c) {
    const d = device();
    switch (where.colour) {
      case 'size': c = rampColour((key / 2 - 9) / (greatestPower() - 9)); break;
      case 'lifetime': c = rampColour(key / 2 / Math.max(1, Math.log2(Math.max(d.states, 2)))); break;
      case 'stream': case 'category': c = keyColour(key + 1); break;
      default: c = keyColour(key);
    }
    colourCache.set(name, c);
  }
  return c;
}

// stripRGB is the colour of strip i of a tile: that of its key, every second allocation a little lighter to tell neighbours apart.
function stripRGB(t, i) {
  const c = colourRGB(colourKey(t, i));
  return t.id[i] & 1 ? mix(c, [255, 255, 255], 0.09) : c;
}

// greatestPower is the power of two of the size at the warm end of the ramp.
const greatestPower = () => Math.max(12, Math.floor(Math.log2(Math.max(device().max_active, 1))) - 1);

// colourLegend explains colours that are not those of stacks.
function colourLegend() {
  const d = device(),
    name = (key, text) => h('span', {}, h('i', { style: { background: rgbText(colourRGB(key)) } }), text);
  const ramp = (from, to) =>
    h('span', { class: 'ramp' },
      from,
      h('i', { style: { background: `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map(x => rgbText(rampColour(x))).join(', ')})` } }),
      to);
  switch (where.colour) {
    case 'size':
      return h('span', { class: 'legend' }, ramp('512 B', `${bytes(2 ** greatestPower())} and more`));
    case 'lifetime':
      return h('span', { class: 'legend' }, ramp('1 event', plural(d.states, 'event')));
    case 'stream':
      return h('span', { class: 'legend' },
        d.streams.map((s, k) => name(k, streamName(s))));
    case 'pool':
      return h('span', { class: 'legend' },
        d.pools.map((p, k) => name(k, p === '' ? 'unknown' : p === '(0,0)' ? 'default' : p)));
    default:
      return h('span', { class: 'legend' },
        info.categories.map((c, k) => name(k, c || 'none')));
  }
}

const rgbText = c => `rgb(${c[0]} ${c[1]} ${c[2]})`;
const stackColour = id => rgbText(keyColour(id));

// rgbOf reads "#rrggbb".
function rgbOf(hex) {
  const n = parseInt(hex.slice(1), 16);
  return [n >> 16, n >> 8 & 255, n & 255];
}

const mix = (a, b, x) => a.map((v, i) => Math.round(v + (b[i] - v) * x));
