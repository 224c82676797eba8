"use strict";
(() => {
  // No text moves, turns or hides what stands beside it: what is neither a letter, mark, digit, sign, symbol nor space is shown as an
  // escape.
  const escape = c =>
    c === "\r\n" ? "\n" : [...Array(c.length).keys()].map(i => "\\u" + c.charCodeAt(i).toString(16).padStart(4, "0")).join("");
  const shown = s => s.replace(/\r\n|[^\p{L}\p{M}\p{N}\p{P}\p{S}\p{Zs}\n\t]/gu, escape);
  const D = JSON.parse(document.getElementById("data").textContent, (_, v) => typeof v === "string" ? shown(v) : v);
  const $ = id => document.getElementById(id);
  // el makes an element; strings become text, so nothing that a test printed is ever markup.
  const el = (tag, props, ...kids) => {
    const e = document.createElement(tag);
    for (const [k, v] of Object.entries(props || {}))
      k === "class" ? (e.className = v) : k.startsWith("on") ? (e[k] = v) : e.setAttribute(k, v);
    e.append(...kids.flat().filter(x => x !== null && x !== undefined && x !== ""));
    return e;
  };
  const svg = (tag, props, ...kids) => {
    const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [k, v] of Object.entries(props || {})) e.setAttribute(k, v);
    e.append(...kids);
    return e;
  };
  const plural = (n, what) => n + " " + what + (n === 1 ? "" : "s");
  const span = s =>
    s < 0.0995
      ? Math.round(s * 1000) + " ms"
      : s < 9.95
        ? s.toFixed(1) + " s"
        : s < 60
          ? Math.round(s) + " s"
          : s < 3600
            ? Math.floor(s / 60) + " min " + Math.floor(s % 60) + " s"
            : Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " min";
  const bytes = n =>
    n < 1024
      ? n + " B"
      : n < 1 << 20
        ? (n / 1024).toFixed(1) + " KiB"
        : n < 1 << 30
          ? (n / (1 << 20)).toFixed(0) + " MiB"
          : (n / (1 << 30)).toFixed(2) + " GiB";
  const words = { success: "passed", ignored: "ignored", timeout: "timed out", fail: "failed" };
  const worst = ["fail", "timeout", "ignored", "success"];
  const byOutcome = Object.fromEntries(worst.map(o => [o, 0]));
  D.tests.forEach((t, i) => { t.index = i; byOutcome[t.outcome]++; });
  const tools = new Set(D.tests.map(t => t.tool)).size;
  const severalTools = tools > 1;
  // The overview counts a test once, by its worst outcome under any tool; the table has a row for each run.
  const worstOf = new Map();
  for (const t of D.tests) {
    const key = JSON.stringify([D.headers[t.header].target, t.name]), was = worstOf.get(key);
    if (was === undefined || worst.indexOf(t.outcome) < worst.indexOf(was)) worstOf.set(key, t.outcome);
  }
  const byTest = Object.fromEntries(worst.map(o => [o, 0]));
  worstOf.forEach(o => byTest[o]++);
  const notRun = Math.max(0, D.summary.planned - D.tests.length);
  const draws = []; // what depends on colours

  // Theme: the system's, until the reader says otherwise.
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const setTheme = on => { root.classList.toggle("dark", on); draws.forEach(f => f()); };
  setTheme(dark.matches);
  dark.addEventListener("change", e => setTheme(e.matches));
  $("theme").onclick = () => setTheme(!root.classList.contains("dark"));

  overview();
  const findings = findingList();
  const tests = testTable();
  timeline();
  $("foot").textContent = "Written " + new Date(D.written).toLocaleString() + ". This file needs no network.";
  $("nav-findings").textContent = D.findings.length;
  $("nav-tests").textContent = worstOf.size;
  document.addEventListener("keydown", e => {
    if (e.target.tagName === "INPUT") { if (e.key === "Escape") { e.target.value = ""; e.target.oninput(); e.target.blur(); } return; }
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "/") { e.preventDefault(); $("find-search").focus(); }
    if (e.key === "t") $("theme").click();
  });
  const follow = () => {
    const m = /^#([ft])-(\d+)$/.exec(location.hash);
    if (m) (m[1] === "t" ? tests.show : findings.show)(+m[2]);
  };
  addEventListener("hashchange", follow);
  follow();

  function overview() {
    const h = D.headers[0], s = D.summary;
    document.title = D.title + " · tenon memcheck";
    $("title").textContent = D.title;
    const gpus = [...new Set(D.headers.flatMap(h => h.gpus || []).filter(Boolean))];
    const facts = [
      h.checker.toLowerCase() + " " + [...new Set(D.headers.flatMap(h => h.tools))].join(", "),
      D.headers.length > 1
        ? plural(D.headers.length, D.headers.some(h => h.shard.split > 1) ? "shard" : "run")
        : plural((h.gpus || []).length, "worker"),
      gpus.length ? "GPU " + gpus.join(", ") : "",
      h.limit_seconds ? "limit " + span(h.limit_seconds) : "",
      h.strict ? "strict" : "",
      D.headers.length === 1 && h.shard.split > 1 ? "shard " + h.shard.rank + " of " + h.shard.split : "",
      [...new Set(D.headers.map(h => h.host).filter(Boolean))].slice(0, 3).join(", "), new Date(h.began).toLocaleString()];
    $("facts").append(...facts.filter(Boolean).map(f => el("span", {}, f)));
    const v = $("verdict");
    const hang = byTest.timeout && !h.nohang;
    const [kind, text] = byTest.fail || s.findings ? ["fail", byTest.fail ? byTest.fail + " failed" : plural(s.findings, "finding")] :
      hang ? ["timeout", byTest.timeout + " timed out"] : notRun || (s.missing || []).length ? ["timeout", "Incomplete"] :
      D.tests.length === 0 ? ["timeout", "No tests"] : ["success", "All passed"];
    v.classList.add(kind);
    v.textContent = text;
    for (const m of s.missing || []) $("missing").append(el("div", { class: "banner" }, "Missing: " + m));
    if (s.interrupted) $("missing").append(el("div", { class: "banner" }, "The run was interrupted; this is what was known then."));
    if (s.stopped) $("missing").append(el("div", { class: "banner" }, "The run stopped at its first " + s.stopped + "."));
    const parts = [
      ...worst.map(o => [o, byTest[o], words[o]]),
      ["rest", notRun, severalTools ? "of " + s.planned + " runs missing" : "not run"]
    ].filter(p => p[1] > 0);
    $("bar").setAttribute("aria-label", parts.map(p => p[1] + " " + p[2]).join(", "));
    for (const [o, n, word] of parts) {
      const i = el("i", { class: o, title: n + " " + word });
      i.style.flexGrow = n;
      $("bar").append(i);
      $("legend").append(
        el("button", {
            onclick: () => {
              if (o !== "rest") tests.only(o);
              location.hash = "#tests";
            }
          },
          el("span", { class: "dot " + o }),
          n + " " + word));
    }
    const cpu = D.tests.reduce((a, t) => a + (t.cpu || 0), 0), memory = D.tests.reduce((a, t) => Math.max(a, t.memory || 0), 0);
    const reports = D.findings.reduce((a, f) => a + f.total, 0);
    const tile = (name, value, note) => el("div", {}, el("dt", {}, name), el("dd", {}, value, note ? el("small", {}, " " + note) : ""));
    $("tiles").append(tile("Tests run", worstOf.size + "", severalTools ? "under " + tools + " tools" : notRun ? "of " + s.planned : ""),
      tile("Distinct findings", D.findings.length + "", reports ? "in " + plural(reports, "report") : ""),
      tile("Time", span(s.seconds)), tile("Processor time", span(cpu)));
    if (memory) $("tiles").append(tile("Most host memory", bytes(memory)));
    if (s.kernels) $("tiles").append(tile("Kernels checked", s.kernels.toLocaleString()));
    if (s.skipped) $("tiles").append(tile("Skipped", s.skipped + ""));
    if (s.unverified) $("tiles").append(tile("Without a report", s.unverified + ""));
  }

  function chips(box, names, picked, redraw) {
    for (const [key, label] of names) {
      const b = el("button", { class: "chip", "aria-pressed": "false" }, label);
      b.onclick = () => { picked.has(key) ? picked.delete(key) : picked.add(key); redraw(); };
      b.update = () => b.setAttribute("aria-pressed", picked.has(key));
      box.append(b);
    }
    return () => [...box.children].forEach(b => b.update());
  }

  function findingList() {
    const picked = new Set();
    const classes = new Map();
    D.findings.forEach(f => classes.set(f.class, (classes.get(f.class) || 0) + 1));
    const text = D.findings.map(f =>
      JSON.stringify([
        f.class,
        f.message,
        f.kernel,
        f.place,
        f.site,
        f.details,
        f.device,
        f.stack,
        f.allocation,
        f.library,
        f.tests.slice(0, 200).map(i => D.tests[i].name)
      ]).toLowerCase());
    const order = D.findings
      .map((f, i) => i)
      .sort((a, b) => rank(D.findings[a]) - rank(D.findings[b]) || D.findings[b].tests.length - D.findings[a].tests.length || a - b);
    // Leaks do no harm by themselves, and a failed call often only says that a kernel had failed before.
    function rank(f) { return f.library ? 3 : f.severity !== "error" ? 2 : f.class === "api-error" || f.class === "leak" ? 1 : 0; }
    let limit = 100;
    const update = classes.size > 1 ? chips($("classes"), [...classes].map(([c, n]) => [c, c + " " + n]), picked, draw) : () => {};
    $("find-search").oninput = draw;
    if (D.findings.length < 2) $("find-search").hidden = true;
    function draw() {
      update();
      const q = $("find-search").value.trim().toLowerCase();
      const list = order.filter(i => (!picked.size || picked.has(D.findings[i].class)) && (!q || text[i].includes(q)));
      const box = $("find-list");
      box.replaceChildren(...list.slice(0, limit).map(card));
      if (list.length > limit)
        box.append(
          el("button", {
              class: "more",
              onclick: () => {
                limit += 200;
                draw();
              }
            },
            "Show more of " + list.length));
      if (!list.length)
        box.append(
          el("p", { class: "none" },
            D.findings.length ? "No finding matches." : D.tests.length ? "The checker found nothing." : "No test ran."));
    }
    draw();
    return { show: i => {
      if (!$("f-" + i)) { picked.clear(); $("find-search").value = ""; limit = Math.max(limit, order.indexOf(i) + 1); draw(); }
      const e = $("f-" + i);
      if (e) { e.scrollIntoView(); e.classList.add("flash"); }
    } };
  }

  function card(i) {
    const f = D.findings[i];
    const kind = f.library ? "ignored" : f.severity === "error" ? "fail" : "timeout";
    const where = [];
    if (f.kernel) where.push(el("b", { class: "mono" }, f.kernel));
    if (f.place && f.place !== f.kernel) where.push(where.length ? " at " : "", el("code", {}, f.place));
    if (f.site && f.site !== f.place) where.push(where.length ? ", called from " : "", el("code", {}, f.site));
    if (f.library) where.push(where.length ? " · " : "", "in code of " + f.library);
    const body = el("div", { class: "body" });
    if (f.source)
      body.append(
        el("pre", { class: "source" },
          f.source.map(l => el("div", l.here ? { class: "here" } : {}, el("i", {}, l.n + ""), l.text))));
    const right = el("div", {});
    const map = picture(f);
    if (map) right.append(map);
    const known = el("dl", { class: "known" });
    const fact = (name, value) => value && known.append(el("dt", {}, name), el("dd", { class: "mono" }, value));
    fact("Address", f.address);
    fact(
      "Access",
      [f.access, f.size ? plural(f.size, "byte") : "", f.space ? "of " + f.space + " memory" : ""]
        .filter(Boolean)
        .join(", ")
        .replace(", of", " of"));
    if (f.thread) fact("Thread", "(" + f.thread.join(", ") + ")" + (f.block ? " of block (" + f.block.join(", ") + ")" : ""));
    if (f.allocation) {
      if (f.allocation.size || f.allocation.address)
        fact(
          "Allocation",
          [f.allocation.size ? plural(f.allocation.size, "byte") : "", f.allocation.address ? "at " + f.allocation.address : ""]
            .filter(Boolean)
            .join(" "));
      fact("Relation", f.allocation.relation);
    }
    fact("Tool", f.tool);
    if (known.children.length) right.append(known);
    if (right.children.length) body.append(right);
    const seen = plural(f.tests.length, "test") + (f.total > 1 ? " · " + plural(f.total, "report") : "");
    const names = f.tests.slice(0, 12).map(t => el("a", { href: "#t-" + t, class: "mono" }, D.tests[t].name));
    if (f.tests.length > 12) names.push(el("span", {}, "and " + (f.tests.length - 12) + " more"));
    const a = f.allocation || {};
    // What the facts beside the source say already is not said again.
    const extra = (f.details || []).filter(
      d =>
        !(a.relation && d.includes(a.relation)) && !(f.address && /^(Access to 0x[0-9a-f]+ is out of bounds|Address 0x[0-9a-f]+)$/.test(d))
    );
    return el("article", { class: "card " + (f.library ? "library" : f.severity), id: "f-" + i },
      el("div", { class: "head" },
        el("span", { class: "badge " + kind }, f.class),
        el("h3", {}, f.message),
        el("span", { class: "seen" }, seen)),
      where.length ? el("p", { class: "where" }, where) : "",
      body.children.length ? body : "",
      extra.length
        ? el("ul", { class: "details" },
            extra.map(d => el("li", {}, d)))
        : "",
      stack("Kernel stack", (f.device || []).length > 1 ? f.device : null),
      stack("Other access", f.other, true),
      stack("Allocated at", a.stack, true),
      stack("Freed at", a.freed, true),
      stack("Host stack", f.stack),
      el("div", { class: "in" }, el("span", {}, "Found in"), names));
  }

  function stack(title, frames, open) {
    if (!frames || !frames.length) return "";
    const d = el("details", { class: "stack" },
      el("summary", {}, title + " (" + plural(frames.length, "frame") + ")"),
      el("ol", { class: "mono" },
        frames.map(f => {
          const dim = /^lib(cuda|cudart|c\.so|c-|pthread|torch|c10|python)|^\/usr\/lib|^python/.test(f.module || "") && !f.line;
          const place = f.file ? f.file + (f.line ? ":" + f.line : "") : f.offset && f.function ? "+" + f.offset : "";
          return el("li", dim ? { class: "dim" } : {},
            f.function || f.file
              ? [
                  f.function || "",
                  f.function && place ? " " : "",
                  place ? el("span", { class: f.file ? "" : "module" }, place) : "",
                  f.module ? el("span", { class: "module" }, "  " + f.module) : ""]
              : f.text);
        })));
    if (open) d.open = true;
    return d;
  }

  // picture draws the allocation and where the access lies.
  function picture(f) {
    const a = f.allocation;
    if (!a || !a.address || !a.size || !f.address || !f.access) return null;
    const size = Number(a.size), at = Number(BigInt(f.address) - BigInt(a.address)), n = f.size || 1;
    if (!(size > 0) || Math.abs(at) > 1e15) return null;
    // The gap between access and allocation is drawn to scale up to a point, and the access is always wide enough to see.
    const W = 440, left = 24, right = W - 24, lo = Math.min(0, at), hi = Math.max(size, at + n);
    const whole = hi - lo, scale = (right - left) / whole;
    let ax = left + (0 - lo) * scale, aw = size * scale, x = left + (at - lo) * scale, w = Math.max(6, n * scale);
    const outside = at >= size || at + n <= 0;
    if (outside && aw < 120) { aw = 120; ax = at >= size ? left : right - aw; x = at >= size ? right - w : left; }
    if (x + w > right + 6) x = right + 6 - w;
    if (at >= size) x = Math.max(x, ax + aw + 3);
    if (at + n <= 0) x = Math.min(x, ax - w - 3);
    const freed = f.class === "use-after-free";
    const bytesAway = d => (d === 0 ? "right " : plural(d, "byte") + " ");
    const label =
      at >= size
        ? bytesAway(at - size) + (at > size ? "past" : "behind") + " the end"
        : at + n <= 0
          ? (at + n === 0 ? "right " : plural(-at, "byte") + " ") + "before the start"
          : "at +" + at;
    const lx = Math.min(Math.max(x + w / 2, left + 4), right - 4),
      anchor = lx > W * 0.66 ? "end" : lx < W * 0.33 ? "start" : "middle";
    const box = svg("rect", {
      x: ax,
      y: 30,
      width: aw,
      height: 22,
      rx: 3,
      fill: freed ? "none" : "var(--success-bg)",
      stroke: freed ? "var(--faint)" : "var(--success)",
      "stroke-dasharray": freed ? "4 3" : "none"
    });
    const t = (props, s) => {
      const e = svg("text", props);
      e.textContent = s;
      return e;
    };
    return svg("svg", { class: "map", viewBox: "0 0 " + W + " 72", role: "img", "aria-label": "The access is " + label },
      box,
      svg("rect", { x: x, y: 26, width: w, height: 30, rx: 2, fill: "var(--fail)" }),
      t({ x: lx, y: 18, class: "red", "text-anchor": anchor }, (f.access ? f.access + " of " : "") + plural(n, "byte") + ", " + label),
      t({ x: ax + 2, y: 68 }, "+0"),
      t({ x: ax + aw - 2, y: 68, "text-anchor": "end" }, "+" + size),
      aw > 190 ? t({ x: ax + aw / 2, y: 45, "text-anchor": "middle" }, freed ? "freed, " + plural(size, "byte") : plural(size, "byte")) : ""
    );
  }

  function testTable() {
    const picked = new Set(), open = new Set();
    let key = "outcome", down = false, limit = 200;
    const longest = D.tests.reduce((a, t) => Math.max(a, t.seconds), 1e-9);
    const anyMemory = D.tests.some(t => t.memory),
      anyGPU = D.tests.some(t => t.gpu);
    const cols = [
      ["outcome", "Outcome", t => worst.indexOf(t.outcome)],
      ["name", "Test", t => t.name],
      ["findings", "Findings", t => -(t.findings || []).length],
      ["seconds", "Time", t => -t.seconds],
      anyMemory && ["memory", "Memory", t => -(t.memory || 0)],
      anyGPU && ["gpu", "GPU", t => t.gpu || ""]
    ].filter(Boolean);
    const heads = cols.map(([k, title]) => {
      const num = k === "seconds" || k === "memory";
      return el("th", {
          class: (num ? "num" : "") + (k === "memory" || k === "gpu" || k === "findings" ? " hide" : ""),
          scope: "col",
          onclick: () => {
            down = key === k && !down;
            key = k;
            draw();
          }
        },
        title);
    });
    $("test-table").querySelector("thead").append(el("tr", {}, heads));
    const update = chips($("outcomes"), worst.filter(o => byOutcome[o]).map(o => [o, words[o] + " " + byOutcome[o]]), picked, draw);
    $("test-search").oninput = draw;
    $("more").onclick = () => { limit += 1000; draw(); };
    let shown = [];
    function draw() {
      update();
      heads.forEach((h, i) =>
        cols[i][0] === key ? h.setAttribute("aria-sort", down ? "descending" : "ascending") : h.removeAttribute("aria-sort"));
      const q = $("test-search").value.trim().toLowerCase();
      const by = cols.find(c => c[0] === key)[2];
      shown = D.tests.filter(t => (!picked.size || picked.has(t.outcome)) && (!q || t.name.toLowerCase().includes(q)));
      shown.sort((a, b) => {
        const x = by(a),
          y = by(b);
        return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1) || (a.name < b.name ? -1 : a.name > b.name ? 1 : a.index - b.index);
      });
      $("test-table")
        .querySelector("tbody")
        .replaceChildren(...shown.slice(0, limit).flatMap(row));
      $("more").hidden = shown.length <= limit;
      $("more").textContent = "Show more of " + shown.length;
    }
    function row(t) {
      const bar = el("i", {});
      bar.style.width = Math.max(1, (72 * t.seconds) / longest) + "px";
      const cells = {
        outcome: el("td", {}, el("span", { class: "badge " + t.outcome }, t.skipped ? "skipped" : words[t.outcome])),
        name: el("td", { class: "name mono" },
          t.name,
          severalTools ? " [" + t.tool + "]" : "",
          t.outcome === "success" ? (t.verified || t.skipped ? "" : el("small", {}, "no report of the checker")) : el("small", {}, t.reason)
        ),
        findings: el("td", { class: "kinds hide" },
          (t.findings || [])
            .slice(0, 3)
            .map(([f, n]) => el("a", { href: "#f-" + f, onclick: e => e.stopPropagation() }, D.findings[f].class, n > 1 ? " ×" + n : "")),
          (t.findings || []).length > 3 ? "…" : ""),
        seconds: el("td", { class: "num took" }, span(t.seconds), bar),
        memory: el("td", { class: "num hide" }, t.memory ? bytes(t.memory) : "–"),
        gpu: el("td", { class: "hide mono" }, t.gpu || "")
      };
      const tr = el("tr", { class: "test", id: "t-" + t.index, tabindex: "0" },
        cols.map(c => cells[c[0]]));
      tr.onclick = () => {
        open.has(t.index) ? open.delete(t.index) : open.add(t.index);
        draw();
      };
      tr.onkeydown = e => {
        if (e.key === "Enter") {
          tr.onclick();
          const again = $("t-" + t.index);
          if (again) again.focus();
        }
      };
      return open.has(t.index) ? [tr, el("tr", { class: "open" }, el("td", { colspan: cols.length }, detail(t)))] : [tr];
    }
    function detail(t) {
      const known = el("dl", { class: "known" });
      const fact = (name, value) => value && known.append(el("dt", {}, name), el("dd", {}, value));
      const h = D.headers[t.header];
      fact("Outcome", words[t.outcome] + (t.reason ? ": " + t.reason : ""));
      fact(
        "Ran",
        "from "
          + span(t.start)
          + " on, for "
          + span(t.seconds)
          + (t.cpu ? ", " + span(t.cpu) + " of processor time" : "")
          + ", worker "
          + t.worker
          + (t.gpu ? ", GPU " + t.gpu : ""));
      if (D.headers.length > 1)
        fact("Where", (h.shard.split > 1 ? "shard " + h.shard.rank + " of " + h.shard.split : h.target) + (h.host ? " on " + h.host : ""));
      fact("Printed", t.printed ? bytes(t.printed) : "");
      if ((t.findings || []).length)
        fact(
          "Findings",
          el("span", {},
            t.findings.map(([f, n], i) => [i ? ", " : "", el("a", { href: "#f-" + f }, D.findings[f].message), n > 1 ? " ×" + n : ""])));
      const print = (name, s) =>
        s
        && el("details", { class: "print", open: "" },
          el("summary", {}, name + (t.printed > s.length ? " (its end)" : "")),
          el("pre", {}, s));
      return [known, print("Standard output", t.stdout), print("Standard error", t.stderr)];
    }
    draw();
    return {
      only: o => { picked.clear(); picked.add(o); draw(); },
      show: i => {
        open.add(i);
        if (!shown.includes(D.tests[i])) { picked.clear(); $("test-search").value = ""; draw(); }
        limit = Math.max(limit, shown.indexOf(D.tests[i]) + 1);
        draw();
        const e = $("t-" + i);
        if (e) { e.scrollIntoView({ block: "center" }); e.classList.add("flash"); }
      },
    };
  }

  function timeline() {
    if (!D.tests.length) { $("timeline").hidden = true; return; }
    const lanes = new Map();
    D.tests.forEach(t => { const k = t.header + "/" + t.worker; lanes.has(k) ? lanes.get(k).push(t) : lanes.set(k, [t]); });
    const keys = [...lanes.keys()].sort((a, b) => { const [h, w] = a.split("/"), [i, v] = b.split("/"); return h - i || w - v; });
    const end = D.tests.reduce((a, t) => Math.max(a, t.start + t.seconds), 1e-9);
    const canvas = $("lanes"), tip = $("tip"), high = keys.length > 24 ? 10 : 20, foot = 22, side = 92;
    canvas.style.height = keys.length * (high + 3) + foot + "px";
    const at = s => side + (canvas.clientWidth - side - 2) * s / end;
    function draw() {
      const ratio = devicePixelRatio || 1,
        w = canvas.clientWidth,
        h = canvas.clientHeight,
        style = getComputedStyle(root),
        colour = n => style.getPropertyValue("--" + n);
      canvas.width = w * ratio;
      canvas.height = h * ratio;
      const c = canvas.getContext("2d");
      c.scale(ratio, ratio);
      c.font = "12px system-ui, sans-serif";
      c.fillStyle = colour("soft");
      let step = 10 ** Math.floor(Math.log10(end / 6));
      step *= end / step > 30 ? 5 : end / step > 14 ? 2 : 1;
      for (let s = 0; s <= end; s += step) {
        c.fillStyle = colour("line");
        c.fillRect(at(s), 0, 1, h - foot + 4);
        c.fillStyle = colour("faint");
        if (at(s) < w - 40) c.fillText(s ? span(s) : "0", at(s) + 3, h - 5);
      }
      keys.forEach((k, i) => {
        const y = i * (high + 3), [head, worker] = k.split("/");
        c.fillStyle = colour("soft");
        if (high > 12 || i % 4 === 0)
          c.fillText(
            D.headers.length === 1
              ? "worker " + worker
              : D.headers[head].shard.split > 1
                ? "shard " + D.headers[head].shard.rank + "." + worker
                : "run " + head + "." + worker,
            0,
            y + high / 2 + 4);
        for (const t of lanes.get(k)) {
          c.fillStyle = colour(t.outcome);
          c.globalAlpha = t.outcome === "success" ? .55 : 1;
          c.fillRect(at(t.start), y, Math.max(1, at(t.start + t.seconds) - at(t.start) - .6), high);
        }
        c.globalAlpha = 1;
      });
    }
    function hit(e) {
      const r = canvas.getBoundingClientRect(), x = e.clientX - r.left, k = keys[Math.floor((e.clientY - r.top) / (high + 3))];
      return k && lanes.get(k).find(t => x >= at(t.start) - 1 && x <= Math.max(at(t.start + t.seconds), at(t.start) + 2));
    }
    canvas.onmousemove = e => {
      const t = hit(e);
      tip.hidden = !t;
      if (!t) return;
      tip.textContent =
        t.name
        + (severalTools ? " [" + t.tool + "]" : "")
        + ", "
        + words[t.outcome]
        + ", "
        + span(t.seconds)
        + (t.gpu ? ", GPU " + t.gpu : "");
      const box = canvas.parentElement.getBoundingClientRect();
      tip.style.left = Math.min(e.clientX - box.left + 12, box.width - tip.offsetWidth - 8) + "px";
      tip.style.top = e.clientY - box.top + 16 + "px";
    };
    canvas.onmouseleave = () => { tip.hidden = true; };
    canvas.onclick = e => { const t = hit(e); if (t) location.hash = "#t-" + t.index; };
    new ResizeObserver(draw).observe(canvas);
    draws.push(draw);
  }
})();
