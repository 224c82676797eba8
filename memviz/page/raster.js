'use strict';
// Drawing a tile: its strips become pixels, one pixel a column, by hand; that is many times faster than paths.

// paint fills columns [a, b) between the heights y0 < y1 (pixels from the top, not whole) of an image of w by h pixels. Rows that are
// met in part are blended, so that strips thinner than a pixel keep their weight.
function paint(px, w, h, a, b, y0, y1, rgb, colour) {
  if (y1 <= 0 || y0 >= h) return;
  y0 = Math.max(y0, 0);
  y1 = Math.min(y1, h);
  const top = Math.floor(y0), bottom = Math.ceil(y1) - 1;
  if (top >= bottom) {
    blend(px, top * w, a, b, rgb, y1 - y0);
    return;
  }
  let r = top;
  if (y0 > top) blend(px, w * r++, a, b, rgb, 1 - (y0 - top));
  const whole = y1 < bottom + 1 ? bottom : bottom + 1;
  if (b - a > 6) {
    for (; r < whole; r++) px.fill(colour, r * w + a, r * w + b);
  } else {
    for (; r < whole; r++) for (let x = r * w + a, end = r * w + b; x < end; x++) px[x] = colour;
  }
  if (whole === bottom) blend(px, w * bottom, a, b, rgb, y1 - bottom);
}

function blend(px, row, a, b, rgb, share) {
  for (let x = row + a, end = row + b; x < end; x++) {
    const v = px[x];
    if (v >>> 24 === 0) {
      px[x] = (255 * share << 24 | rgb[2] << 16 | rgb[1] << 8 | rgb[0]) >>> 0;
      continue;
    }
    const r = v & 255, g = v >> 8 & 255, bl = v >> 16 & 255;
    px[x] = ((v >>> 24) << 24 | (bl + (rgb[2] - bl) * share) << 16 | (g + (rgb[1] - g) * share) << 8 | r + (rgb[0] - r) * share) >>> 0;
  }
}

const packed = c => (255 << 24 | c[2] << 16 | c[1] << 8 | c[0]) >>> 0;

// picture draws tile t for the bytes [lo, hi) on h pixels and keeps the result with it. lit(i) says whether strip i is to stand out;
// null means that all do.
function picture(t, lo, hi, h, lit, stamp) {
  const w = t.columns, k = h / (hi - lo);
  const px = new Uint32Array(w * h);
  const quiet = rgbOf(css('--quiet')), quietColour = packed(quiet), ground = rgbOf(css('--plot'));
  for (let c = 0; c < w; c++) paint(px, w, h, c, c + 1, h - (t.peak[c] - lo) * k, h + lo * k, quiet, quietColour);
  const looks = new Map();
  for (let i = 0; i < t.strips; i++) {
    const height = t.size[i] * k;
    const bright = !lit || lit(i);
    const name = colourKey(t, i) * 4 + (t.id[i] & 1) * 2 + (bright ? 1 : 0);
    let look = looks.get(name);
    if (!look) {
      const c = stripRGB(t, i);
      const rgb = bright ? c : mix(c, ground, 0.84);
      const edge = mix(rgb, ground, 0.32);
      look = { rgb, colour: packed(rgb), edge, edgeColour: packed(edge) };
      looks.set(name, look);
    }
    const last = t.step[i + 1];
    for (let s = t.step[i]; s < last; s++) {
      const a = t.at[s], b = s + 1 < last ? t.at[s + 1] : t.column[2 * i + 1];
      const y1 = h - (t.offset[s] - lo) * k, y0 = y1 - height;
      if (height >= 4) { // a line at the lower edge parts neighbours of one colour
        paint(px, w, h, a, b, y0, y1 - 1, look.rgb, look.colour);
        paint(px, w, h, a, b, y1 - 1, y1, look.edge, look.edgeColour);
      } else {
        paint(px, w, h, a, b, y0, y1, look.rgb, look.colour);
      }
    }
  }
  const canvas = document.createElement('canvas');
  canvas.width = w;
  canvas.height = h;
  canvas.getContext('2d').putImageData(new ImageData(new Uint8ClampedArray(px.buffer), w, h), 0, 0);
  t.picture = { canvas, lo, hi, h, stamp };
  return t.picture;
}
