'use strict';
// Stacks as people read them: the function first, the file after it, native frames folded.

// splitLabel takes "path/file.py:12:name" apart.
function splitLabel(label) {
  const m = /^(.*?):(\d+):(.*)$/.exec(label);
  return m ? { file: m[1], line: Number(m[2]), name: m[3] } : { file: '', line: 0, name: label };
}

// callName writes a function without the path that Go's package names have: "example.com/mod/pkg.Func" is "pkg.Func".
function callName(f) {
  if (!f.file.endsWith('.go')) return f.name;
  const path = f.name.split('[', 1)[0];
  return f.name.slice(path.lastIndexOf('/') + 1);
}

const baseName = path => path.slice(Math.max(path.lastIndexOf('/'), path.lastIndexOf('\\')) + 1);

// shortLabel writes a label as "name  file.py:12".
function shortLabel(label) {
  const { file, line } = splitLabel(label), name = callName(splitLabel(label));
  if (!file) return name;
  return `${name || '(no name)'}  ${baseName(file)}${line ? `:${line}` : ''}`;
}

// labelElement writes a label with its parts set apart.
function labelElement(label) {
  const { file, line } = splitLabel(label || ''),
    name = callName(splitLabel(label || ''));
  if ((!file && name === 'no stack recorded') || !label) return h('span', { class: 'label faint' }, 'no stack recorded');
  return h('span', { class: 'label', title: label },
    h('span', { class: 'fn' }, name || '(no name)'),
    file ? h('span', { class: 'at' }, ` ${baseName(file)}${line ? `:${line}` : ''}`) : null);
}

const plumbing = new RegExp('^(_?wrapped_call_impl|_call_impl|__call__|_?wrapper|wrapped|inner|_fn|decorate_\\w+|profile_hook_step'
  + '|_optimizer_\\w+|__init__|__enter__|_apply|_use_grad\\w*)$');
const nativeFrame = f =>
  f.file === '' || f.file === '??' || /\.(cpp|cc|cxx|c|h|hpp|cuh?|so[.\d]*|S)$/.test(f.file) || (f.file.startsWith('<') && f.line === 0);
const dullFrame = f => nativeFrame(f) || (plumbing.test(f.name) && libraryFrame(f));
const libraryFrame = f => /site-packages|dist-packages|\/lib\/python|\/usr\/local\/go\/|\/go\/src\//.test(f.file);

// framesElement lists frames, innermost first; two or more in a row that are native or mere plumbing are folded.
function framesElement(frames) {
  if (!frames.length)
    return h('p', { class: 'faint pad' },
      'No stack was recorded. In PyTorch, _record_memory_history(context="all") records one for every event.');
  const list = h('ol', { class: 'frames' });
  for (let i = 0; i < frames.length;) {
    let n = i;
    while (n < frames.length && dullFrame(frames[n])) n++;
    if (n - i >= 2) {
      const some = frames.slice(i, n), fold = h('li', { class: 'fold' }, h('button', {
        class: 'link', onclick: () => fold.replaceWith(...some.map(frameElement)),
      }, `${n - i} ${some.every(nativeFrame) ? 'native frames' : 'frames of plumbing'}`));
      list.append(fold);
      i = n;
    } else {
      list.append(frameElement(frames[i++]));
    }
  }
  return list;
}

function frameElement(f) {
  const dir = f.file.slice(0, f.file.length - baseName(f.file).length);
  return h('li', { class: libraryFrame(f) || nativeFrame(f) ? 'frame library' : 'frame' },
    h('span', { class: 'fn' }, f.name || '(no name)'),
    h('span', { class: 'path', title: f.file },
      h('span', { class: 'dir' }, shortDir(dir)),
      h('span', {}, baseName(f.file)),
      f.line ? h('span', { class: 'line' }, `:${f.line}`) : null));
}

// shortDir keeps what tells one package from another.
function shortDir(dir) {
  const m = /(?:site|dist)-packages\/(.*)$/.exec(dir);
  if (m) return m[1];
  const parts = dir.split('/');
  return parts.length > 5 ? `…/${parts.slice(-3).join('/')}` : dir;
}

// copyText writes a stack as plain text.
const copyText = frames => frames.map(f => `${f.file}:${f.line}:${f.name}`).join('\n');

function copyButton(text) {
  const b = h('button', { class: 'small', title: 'Copy the stack as text' }, 'Copy');
  b.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(text());
      b.textContent = 'Copied';
    } catch {
      b.textContent = 'Not allowed';
    }
    setTimeout(() => { b.textContent = 'Copy'; }, 1200);
  });
  return b;
}

// callersOf names the functions that called the one of the label, nearest first, without plumbing: "mlp.py:12 forward ‹ …".
function callersOf(s, most) {
  if (!s || !s.frames) return [];
  const own = splitLabel(s.label || '');
  const frames = s.frames.filter(f => !nativeFrame(f));
  const at = frames.findIndex(f => f.name === own.name && f.line === own.line);
  const out = [];
  for (const f of frames.slice(at + 1)) {
    if (plumbing.test(f.name)) continue;
    out.push(`${callName(f)} ${baseName(f.file)}:${f.line}`);
    if (out.length === most) break;
  }
  return out;
}
