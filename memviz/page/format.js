'use strict';
// Words and elements: how sizes, numbers and times are written, and how elements are made.

const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

// bytes writes a size with binary units and at most three significant figures after the point is dropped: "37.5 MiB".
function bytes(n) {
  const sign = n < 0 ? '−' : '';
  n = Math.abs(n);
  let u = 0;
  while (n >= 1024 && u < units.length - 1) {
    n /= 1024;
    u++;
  }
  if (n >= 1023.5 && u < units.length - 1) {
    n /= 1024;
    u++;
  }
  const text = u === 0 ? String(Math.round(n)) : n >= 100 ? n.toFixed(0) : n >= 10 ? n.toFixed(1) : n.toFixed(2);
  return `${sign}${text.includes('.') ? text.replace(/\.?0+$/, '') : text} ${units[u]}`;
}

const grouped = new Intl.NumberFormat('en-US');
const number = n => grouped.format(n);
const plural = (n, one, many) => `${number(n)} ${n === 1 ? one : many || one + 's'}`;

// duration writes microseconds.
function duration(us) {
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${trim(us / 1000)} ms`;
  if (us < 120e6) return `${trim(us / 1e6)} s`;
  return `${Math.floor(us / 60e6)} min ${Math.round(us % 60e6 / 1e6)} s`;
}
const trim = x => x.toFixed(x >= 100 ? 0 : x >= 10 ? 1 : 2);

const percent = (part, whole) => whole > 0 ? `${(100 * part / whole).toFixed(part / whole >= 0.0995 ? 0 : 1)} %` : '–';

// h makes an element: h('a', {class: 'x', onclick: f, 'aria-label': 'y'}, child, …). Strings become text, null and false nothing.
function h(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes || {})) {
    if (v === undefined || v === null || v === false) continue;
    if (k === 'style') Object.assign(e.style, v);
    else if (k.startsWith('on')) e.addEventListener(k.slice(2), v);
    else if (v === true) e.setAttribute(k, '');
    else e.setAttribute(k, v);
  }
  e.append(...children.flat(3).filter(c => c !== null && c !== undefined && c !== false));
  return e;
}

// put makes the children of an element those given; null and false are left out, lists are opened.
function put(e, ...children) {
  e.replaceChildren(...children.flat().filter(c => c !== null && c !== undefined && c !== false && c !== ''));
}

// headline fills the line above a view: facts, of which the last drop out where there is no room, and tools at the right.
function headline(e, facts, tools) {
  put(e, h('span', { class: 'fact-list' }, facts), h('span', { class: 'tools' }, tools));
}

const byId = id => document.getElementById(id);
const clamp = (x, lo, hi) => Math.min(Math.max(x, lo), hi);

// say tells a screen reader what has changed.
function say(text) {
  byId('said').textContent = text;
}
