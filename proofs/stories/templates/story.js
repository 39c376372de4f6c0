"use strict";
(() => {
  const told = JSON.parse(document.getElementById("told").textContent);
  const last = told.steps.length;
  const $ = (id) => document.getElementById(id);
  const stateAt = (n) => (n === 0 ? told.initial : told.steps[n - 1].state);

  /** An element with its attributes (`class`, `data-…`) and children: elements or text. */
  function make(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  const unseen = (text) => make("span", { class: "unseen" }, text);
  const plural = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

  /** The changes of a call, by what they are about. */
  function bySubject(changes) {
    const subjects = new Map();
    for (const change of changes) {
      const name = change.subject === "pool" ? change.field : change.subject;
      const field = change.subject === "pool" ? "" : `${change.field} `;
      const text = `${field}${change.before} → ${change.after}`;
      subjects.set(name, [...(subjects.get(name) ?? []), text]);
    }
    return subjects;
  }

  function answerOf(step) {
    if (step.result.startsWith("fails")) return "fails";
    if (step.result.startsWith("None") || step.result === "refused") return "refused";
    return step.result.startsWith("new blocks") || step.result === "reset" ? "granted" : "done";
  }

  function drawCall(n) {
    const step = told.steps[n - 1];
    $("call-title").textContent = n === 0 ? "Before the first call" : `Call ${n} of ${last}`;
    $("call").textContent = step ? step.call : "an idle pool";
    $("result").textContent = step ? step.result : `${plural(told.initial.free_queue.length, "block")} free`;
    $("result").dataset.answer = step ? answerOf(step) : "done";
    $("lines").replaceChildren(
      ...(step ? step.lines : []).map((line) =>
        make(
          "li",
          { class: `${line.decides ? "decides" : ""} ${line.fails ? "fails" : ""}` },
          make("span", { class: "stage" }, line.stage),
          make("span", { class: "text" }, line.text),
        ),
      ),
    );
    $("ending").hidden = n !== last;
    const changes = bySubject(step ? step.changes : []);
    $("changes").replaceChildren(
      ...[...changes].flatMap(([name, texts]) => [make("dt", {}, name), make("dd", {}, texts.join(", "))]),
    );
    $("changes").previousElementSibling.hidden = changes.size === 0;
  }

  function drawPool(n, changed, blamed) {
    const state = stateAt(n);
    const used = Math.round(state.usage * 100);
    $("usage").textContent = `${state.free_queue.length} of ${state.blocks.length - 1} free, usage ${used}%`;
    $("blocks").replaceChildren(
      ...state.blocks.map((block) => {
        const references = block.ref_cnt > 0 || block.kind === "held" ? ` ×${block.ref_cnt}` : "";
        const kind = { null: "null block", cached: "cached idle" }[block.kind] ?? block.kind;
        const cell = make(
          "li",
          { class: "block", "data-block": block.block, "data-kind": block.kind, "data-ref": block.ref_cnt },
          make("span", { class: "number" }, unseen("block "), String(block.block)),
          make("span", { class: "kind" }, kind + references),
        );
        if (block.key) cell.append(make("span", { class: "key" }, unseen("key "), block.key));
        cell.append(make("span", { class: "holds" }, block.holds));
        if (block.written !== null) {
          cell.append(make("span", { class: "written" }, `written ${block.written}/${told.config.block_size}`));
        }
        if (block.filled_by) cell.append(make("span", { class: "rest" }, `${block.filled_by} writes the rest`));
        lacking(cell, block);
        return mark(cell, changed.has(`block ${block.block}`), blamed.blocks.includes(block.block));
      }),
    );
    const before = stateAt(Math.max(0, n - 1)).free_queue;
    const queue = state.free_queue.map((b) => {
      const item = make("li", { "data-block": b, "data-kind": state.blocks[b].kind }, String(b));
      return mark(lacking(item, state.blocks[b]), !before.includes(b), blamed.blocks.includes(b));
    });
    $("queue").replaceChildren(...(queue.length ? queue : [make("li", { class: "empty" }, "empty")]));
    const seen = new Set(told.keys.map((key) => key.label));
    for (const key of told.keys) if (!appears(key.label, n)) seen.delete(key.label);
    $("keys-shown").hidden = seen.size === 0;
    $("keys").replaceChildren(
      ...told.keys
        .filter((key) => seen.has(key.label))
        .map((key) => make("div", {}, make("dt", { class: "key" }, key.label), make("dd", {}, key.tokens))),
    );
  }

  /** Whether a key has been given to a block by then. */
  function appears(label, n) {
    for (let i = 0; i <= n; i++) if (stateAt(i).blocks.some((block) => block.key === label)) return true;
    return false;
  }

  /** Shows who writes what a block lacks. */
  function lacking(element, block) {
    if (block.filled_by) element.dataset.rest = block.filled_by;
    return element;
  }

  function mark(element, changed, blamed) {
    if (changed) element.append(unseen(", changed"));
    if (changed) element.classList.add("changed");
    if (blamed) element.classList.add("blamed");
    return element;
  }

  function drawRequests(n, fields, blamed) {
    const { requests, blocks } = stateAt(n);
    const shown = requests.map((request) => drawRequest(request, blocks, fields, blamed));
    $("requests").replaceChildren(...(shown.length ? shown : [make("p", { class: "tag" }, "none yet")]));
  }

  function drawRequest(request, blocks, fields, blamed) {
    const moved = (field) => fields.has(`request ${request.request} ${field}`);
    const counts = make("span", { class: "counts" });
    for (const field of ["prompt", "output", "computed", "in flight", "drafts", "salt", "lora"]) {
      const value = request[field.replace(" ", "_")];
      if (value === 0 && !moved(field)) continue;
      if (counts.childNodes.length) counts.append(" · ");
      counts.append(make("span", moved(field) ? { class: "moved" } : {}, `${field} ${value}`));
    }
    const status = make("span", { class: "status", "data-status": request.status }, request.status);
    if (moved("status")) status.classList.add("changed");
    const title = make("h3", {}, make("span", { class: "name" }, `request ${request.request}`), status, counts);
    const box = make("article", { class: "request", "data-request": request.request }, title, ruler(request, blocks, blamed));
    box.classList.toggle("gone", request.status === "finished");
    box.classList.toggle("accused", blamed.requests.includes(request.request));
    return box;
  }

  /** The tokens of a request, the slots of each block over its entry of the block table. */
  function ruler(request, blocks, blamed) {
    const size = told.config.block_size;
    const slots = request.spans.flatMap((span) =>
      Array.from({ length: span.end - span.start }, (_, i) => slot(request, span, span.start + i)),
    );
    const groups = [];
    for (let i = 0; i * size < slots.length || i < request.table.length; i++) {
      const entry = request.table[i];
      const group = make("div", { class: "cell-group" });
      group.append(make("div", { class: "slots" }, ...slots.slice(i * size, (i + 1) * size)));
      const kind = entry ? entry.kind : "none";
      const cell = make("div", { class: "entry", "data-kind": kind }, entry ? String(entry.block) : "\u00a0");
      if (entry) {
        cell.dataset.block = entry.block;
        lacking(cell, blocks[entry.block]);
      }
      if (entry && kind !== "held") cell.append(make("span", { class: "why" }, kind));
      if (request.table.length) group.append(mark(cell, false, entry && kind !== "null" && blamed.blocks.includes(entry.block)));
      groups.push(group);
    }
    return make("div", { class: "ruler" }, ...groups);
  }

  function slot(request, span, i) {
    const empty = span.kind === "spare" || span.kind === "lookahead";
    const text = empty ? "" : i < request.tokens.length ? String(request.tokens[i]) : "?";
    const what = `token ${i}, ${span.draft ? "draft, " : ""}${span.kind}`;
    return make("span", { class: "slot", "data-kind": span.kind, "data-draft": span.draft, title: what }, text);
  }

  const MEANING = {
    computed: "computed",
    "in flight": "in flight",
    hit: "prefix hit",
    external: "external",
    new: "new in this call",
    lookahead: "lookahead slot",
    spare: "spare slot",
    todo: "to be computed",
  };

  function drawLegend() {
    const spans = Array.from({ length: last + 1 }, (_, n) => stateAt(n).requests.flatMap((r) => r.spans)).flat();
    const kinds = new Set(spans.map((span) => span.kind));
    const items = Object.keys(MEANING)
      .filter((kind) => kinds.has(kind))
      .map((kind) => make("li", {}, make("span", { class: "slot", "data-kind": kind }), MEANING[kind]));
    if (spans.some((span) => span.draft)) {
      items.push(make("li", {}, make("span", { class: "slot", "data-draft": true }, "?"), "draft, not final"));
    }
    $("legend").replaceChildren(...items);
  }

  function summary(n) {
    const step = told.steps[n - 1];
    if (!step) return `Before the first call: ${plural(told.initial.free_queue.length, "block")} free.`;
    const line = step.lines.find((one) => one.decides) ?? step.lines.at(-1);
    const changes = [...bySubject(step.changes)].map(([name, texts]) => `${name}: ${texts.join(", ")}`);
    const { broken } = told;
    const end = broken ? `${broken.statement} falls: ${broken.reason}` : `${told.reached} is reached`;
    const ending = n === last ? ` ${end}.` : "";
    const changed = changes.length ? ` Changed: ${changes.join("; ")}.` : "";
    return `Call ${n} of ${last}: ${step.call}. ${step.result}. ${line.stage}: ${line.text}.${ending}${changed}`;
  }

  let at = -1;
  function show(n) {
    n = Math.min(last, Math.max(0, n));
    if (n === at) return;
    at = n;
    const changes = n === 0 ? [] : told.steps[n - 1].changes;
    const subjects = new Set(changes.map((change) => change.subject));
    const fields = new Set(changes.map((change) => `${change.subject} ${change.field}`));
    const blamed = (n === last && told.broken) || { blocks: [], requests: [] };
    drawCall(n);
    drawPool(n, subjects, blamed);
    drawRequests(n, fields, blamed);
    $("slider").value = n;
    $("slider").setAttribute("aria-valuetext", n === 0 ? "start" : `${n}, ${told.steps[n - 1].call}`);
    $("count").textContent = `${n} / ${last}`;
    $("back").disabled = n === 0;
    $("on").disabled = n === last;
    $("live").textContent = summary(n);
    for (const link of document.querySelectorAll("[data-step]")) {
      const here = Number(link.dataset.step) === n;
      if (here) link.setAttribute("aria-current", "step");
      else link.removeAttribute("aria-current");
      const strip = link.closest(".steps");
      if (here) strip.scrollLeft = link.offsetLeft - strip.offsetLeft - (strip.clientWidth - link.offsetWidth) / 2;
    }
    if (location.hash !== `#${n}`) history.replaceState(null, "", `#${n}`);
  }

  const linked = () => (/^#\d+$/.test(location.hash) ? Number(location.hash.slice(1)) : 0);
  const KEYS = { ArrowLeft: () => at - 1, ArrowRight: () => at + 1, Home: () => 0, End: () => last };
  document.addEventListener("keydown", (event) => {
    const step = KEYS[event.key];
    if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    show(step());
  });
  $("slider").addEventListener("input", () => show(Number($("slider").value)));
  $("back").addEventListener("click", () => show(at - 1));
  $("on").addEventListener("click", () => show(at + 1));
  window.addEventListener("hashchange", () => show(linked()));
  drawLegend();
  show(linked());
})();
