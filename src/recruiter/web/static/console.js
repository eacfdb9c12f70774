// What a page does beyond being read: it stays live, ticks, copies and remembers. Everything works without it but that.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const content = () => $("content");

  // -- times: in the viewer's zone, ticking, with the exact one on hover --------------------------------------------
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const offset = new Intl.DateTimeFormat("en", { timeZoneName: "shortOffset" }).formatToParts().find((p) => p.type === "timeZoneName");
  const day = new Intl.DateTimeFormat("sv", { dateStyle: "short" });
  const clock = new Intl.DateTimeFormat("sv", { timeStyle: "medium" });

  function lasting(seconds) {
    seconds = Math.max(0, seconds);
    if (seconds < 1) return seconds < 0.0001 ? "<0.1ms" : seconds < 0.0005 ? "<1ms" : `${Math.round(seconds * 1000)}ms`;
    if (seconds < 60) return seconds < 10 && seconds % 1 ? `${seconds.toFixed(1)}s` : `${Math.floor(seconds)}s`;
    const whole = Math.floor(seconds);
    const parts = [[Math.floor(whole / 86400), "d"], [Math.floor(whole / 3600) % 24, "h"], [Math.floor(whole / 60) % 60, "m"], [whole % 60, "s"]];
    const first = parts.findIndex(([value]) => value);
    return parts.slice(first, first + 2).filter(([value]) => value).map(([value, unit]) => `${value}${unit}`).join(" ");
  }

  function tell(element) {
    const moment = new Date(element.dateTime);
    if (isNaN(moment)) return;
    const seconds = (Date.now() - moment) / 1000;
    const kind = element.dataset.rel;
    const today = day.format(moment) === day.format(new Date());
    const round = (value) => (Math.abs(value) < 60 ? Math.round(value) : value);
    const text = kind === "ago" ? (seconds >= 0 ? `${seconds < 1 ? "now" : lasting(round(seconds)) + " ago"}` : `in ${lasting(round(-seconds))}`)
      : kind === "for" ? lasting(round(seconds))
      : today ? clock.format(moment) : `${day.format(moment)} ${clock.format(moment)}`;
    if (element.textContent !== text) element.textContent = text;
    if (!element.dataset.told) {
      element.title = `${kind === "for" ? "since " : ""}${day.format(moment)} ${clock.format(moment)} ${zone}; ${element.dateTime}`;
      element.dataset.told = "1";
    }
  }

  // The ruler above the ribbons of the schedules: 00:00, 06:00, 12:00 and 18:00 on the viewer's own clock.
  function hours(ruler) {
    const now = new Date(ruler.dataset.hours), at = (hour) => new Date(now).setHours(hour, 0, 0, 0);
    const place = (hour) => (at(hour) - now) / 864000;
    let hour = now.getHours() - (now.getHours() % 6) + 6;
    if (place(hour) < 4) hour += 6;
    for (const mark of ruler.children) {
      mark.setAttribute("x", `${place(hour)}%`);
      mark.textContent = place(hour) > 96 ? "" : clock.format(at(hour)).slice(0, 5);
      hour += 6;
    }
  }
  const tick = (root) => {
    root.querySelectorAll("time[data-rel]").forEach(tell);
    root.querySelectorAll("[data-hours]").forEach(hours);
    root.querySelectorAll("[data-zone]").forEach((ribbon) => { const same = ribbon.dataset.zone === zone; if (ribbon.hasAttribute("hidden") !== same) ribbon.toggleAttribute("hidden", same); });
  };

  // -- liveness ----------------------------------------------------------------------------------------------------
  let stream = null, held = null, hidden = null, page = "", version = 0;
  let heardAt = new Date(), goodAt = new Date();  // the last event; the time that the page shows
  const SILENT = 30000;  // milliseconds; the console sends something every ten seconds
  const paused = () => $("live").getAttribute("aria-pressed") === "false";

  function say(text) {
    $("live-text").textContent = text;
    $("live").classList.toggle("off", text === "lost");
  }

  function trouble(text) {
    $("lost").textContent = `${text} What you see is from ${clock.format(goodAt)}.`;
    $("lost").hidden = false;
    say("lost");
  }

  // `age`: seconds since MongoDB was read.
  const good = (age) => { goodAt = new Date(Date.now() - (age || 0) * 1000); };

  function well() {
    $("lost").hidden = true;
    say("live");
  }

  function connect() {
    if (stream) stream.close();
    stream = null;
    held = null;
    const place = content() && content().dataset.live;
    if (!place) { $("live").hidden = true; return; }
    if (paused() || document.hidden) return;
    stream = new EventSource(place);
    heardAt = new Date();
    const on = (name, act) => stream.addEventListener(name, (event) => { heardAt = new Date(); act(event); });
    const lost = (event) => { const { text, age } = JSON.parse(event.data); if (age !== null) good(age); trouble(text + "."); };
    on("content", (event) => { good(); well(); page = event.data; version = Number(event.lastEventId); show(page); });
    // A patch makes the page from the one before: texts, and pairs of place and length in it.
    on("patch", (event) => {
      if (Number(event.lastEventId) !== version + 1) { connect(); return; }
      version += 1;
      page = JSON.parse(event.data).map((part) => (typeof part === "string" ? part : page.slice(part[0], part[0] + part[1]))).join("");
      good(); well(); show(page);
    });
    on("beat", (event) => { const { age } = JSON.parse(event.data); if (age !== null) { good(age); well(); } });
    on("gone", lost);
    on("trouble", lost);
    stream.addEventListener("error", () => trouble(stream && stream.readyState === EventSource.CLOSED ? "The stream was refused: reload the page." : "The stream is lost; trying again."));
  }

  // Nothing moves while somebody has text selected: the latest is kept until they are done.
  const selecting = () => { const chosen = getSelection(); return chosen && !chosen.isCollapsed && content().contains(chosen.anchorNode); };

  // The log of a job that runs stays at its end, unless somebody has scrolled up to read.
  const log = () => document.querySelector(".log[data-follow]");
  const atEnd = (list) => list && list.scrollTop + list.clientHeight >= list.scrollHeight - 24;
  const follow = (list) => { if (list) list.scrollTop = list.scrollHeight; };

  function show(html) {
    if (selecting()) { held = html; return; }
    held = null;
    const following = !log() || atEnd(log());
    const fresh = new DOMParser().parseFromString(html, "text/html").getElementById("content");
    if (!fresh || fresh.dataset.live !== content().dataset.live) return;
    keepRows(fresh);
    Idiomorph.morph(content(), fresh, { morphStyle: "outerHTML", ignoreActiveValue: true, callbacks: {
      beforeNodeMorphed: (old, fresh) => {
        if (old.nodeType !== 1) return true;
        if (old.hasAttribute("data-keep") || old.matches("input, select, textarea")) return false;
        return !(old.matches("time") && fresh.matches && fresh.matches("time") && old.dateTime === fresh.dateTime);
      },
      beforeAttributeUpdated: (name, node) => !((name === "open" && node.matches("details")) || name === "data-told" || ((name === "style" || name === "data-scale") && node.matches(".flow-graph svg")) || (name === "hidden" && node.matches(".hours, .copy"))),
      beforeNodeRemoved: (old) => !(old.nodeType === 1 && old.matches(".suggestions")),
      afterNodeMorphed: (old) => { if (old.nodeType === 1 && old.matches("time")) { delete old.dataset.told; tell(old); } },
    } });
    // A link that has become another one must do what it says now.
    htmx.process(content());
    tick(content());
    reveal();
    if (following) follow(log());
    document.dispatchEvent(new Event("recruiter:content"));
  }
  document.addEventListener("selectionchange", () => { if (held && !selecting()) show(held); });

  // A list that somebody reads does not jump: rows change where they are, and new ones are only counted.
  function keepRows(fresh) {
    const old = $("rows"), rows = fresh.querySelector("#rows");
    if (!old || !rows) return;
    const coming = new Map([...rows.querySelectorAll("tr[data-row]")].map((row) => [row.id, row]));
    const known = [...old.querySelectorAll("tr[data-row]")];
    const body = document.createElement("tbody");
    body.id = "rows";
    for (const row of known) {
      const now = coming.get(row.id) || row.cloneNode(true);
      now.classList.toggle("gone", !coming.has(row.id));
      body.append(now);
      const inside = row.nextElementSibling;
      if (inside && inside.id === "inside") body.append(rows.querySelector("#inside") || inside.cloneNode(true));
      coming.delete(row.id);
    }
    rows.replaceWith(body);
    const badge = $("new");
    badge.hidden = !coming.size;
    if (coming.size && !badge.firstChild) {
      const link = document.createElement("a");
      link.href = location.href;
      badge.append(link);
    }
    if (badge.firstChild) badge.firstChild.textContent = `${coming.size} new`;
  }

  // -- the graph of a flow: fitted into its frame when it is opened, then as large as the viewer likes ----------------
  const graph = () => document.querySelector(".flow-graph svg");
  function zoom(step) {
    const svg = graph(), frame = svg.parentElement, { width, height } = svg.viewBox.baseVal;
    const whole = Math.min(1, (frame.clientWidth - 12) / width, step === null ? 1 : (innerHeight * 0.7 - 12) / height);
    const scale = step ? Math.min(3, Math.max(0.05, Number(svg.dataset.scale || 1) * 1.25 ** step)) : Math.max(step === null ? 0.6 : 0.02, whole);
    svg.dataset.scale = scale;
    svg.style.width = `${width * scale}px`; svg.style.height = `${height * scale}px`;
  }
  function fit() {
    if (!graph()) return;
    document.querySelector(".zoom").hidden = false;
    if (!graph().dataset.scale) zoom(null);
  }
  document.addEventListener("wheel", (event) => {
    if (!event.ctrlKey || !event.target.closest(".flow-graph")) return;
    event.preventDefault(); zoom(event.deltaY < 0 ? 1 : -1);
  }, { passive: false });

  // A sentence that says something else is read to those who cannot see it; one with other numbers is not.
  let last = null;
  function announce() {
    const words = document.querySelector("#sentence .words");
    const gist = words && words.textContent.replace(/[\d][\d.,:]*\w*/g, "#").replace(/#( #)+/g, "#");
    if (last !== null && gist && gist !== last) $("said").textContent = words.textContent;
    last = gist;
  }
  document.addEventListener("recruiter:content", announce);

  // -- small things --------------------------------------------------------------------------------------------------
  function counts() {
    const from = $("counts");
    if (!from) return;
    for (const each of from.querySelectorAll("data")) {
      const place = document.querySelector(`[data-count="${each.dataset.of}"]`);
      if (place) { place.textContent = each.textContent; place.title = `${Number(each.value).toLocaleString()} jobs${each.textContent.endsWith("+") ? " or more" : ""}`; }
    }
  }

  function reveal() {
    document.querySelectorAll("button.copy[hidden]").forEach((button) => { button.hidden = !navigator.clipboard; });
    if ($("all")) $("all").hidden = false;
    fit();
    choose();
  }

  function choose() {
    const chosen = document.querySelectorAll("#rows input:checked").length;
    if ($("how-many")) $("how-many").textContent = chosen ? `${chosen} chosen` : "";
  }

  // Whoever closes the panel is where they were before it opened. The page may have changed meanwhile.
  let opener = null;
  const waits = (event, is) => { const target = event.detail.target; if (target?.matches("#panel, #content")) target.classList.toggle("loading", is); };
  document.addEventListener("htmx:afterRequest", (event) => waits(event, false));
  for (const failure of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) document.addEventListener(failure, (event) => {
    if (!event.detail.target?.matches("#panel, #content")) return;
    $("lost").textContent = "The console did not answer. Look whether anything was done before you try again.";
    $("lost").hidden = false;
  });
  document.addEventListener("htmx:beforeRequest", (event) => {
    waits(event, true);
    const from = event.detail.elt;
    if (event.detail.target?.id === "panel" && !from.closest("#panel")) opener = from;
  });
  function shut() {
    $("panel").replaceChildren();
    const same = opener && (opener.isConnected ? opener : [...document.querySelectorAll("a.button")].find((each) => each.href === opener.href));
    if (same) same.focus();
    opener = null;
  }

  document.addEventListener("click", (event) => {
    const target = event.target.closest("[data-copy], [data-copy-from], [data-close], [data-limit], [data-skip], [data-zoom]");
    if (!target) return;
    if (target.matches("[data-zoom]")) { zoom(Number(target.dataset.zoom)); return; }
    if (target.matches("[data-skip]")) { event.preventDefault(); $("main").focus(); }
    else if (target.matches("[data-close]")) {
      const panel = target.closest("#panel");
      if (panel && content().dataset.live) { event.preventDefault(); shut(); }
    } else if (target.matches("[data-limit]")) {
      event.preventDefault();
      const form = $("set").elements, given = new URL(target.href).searchParams;
      for (const name of ["name", "at_once", "count", "per"]) form.namedItem(name).value = given.get(name) || "";
      form.namedItem("at_once").focus();
    } else {
      const text = target.dataset.copyFrom ? document.querySelector(target.dataset.copyFrom).textContent : target.dataset.copy;
      const before = target.textContent;
      navigator.clipboard.writeText(text).then(() => { target.textContent = "copied"; setTimeout(() => { target.textContent = before; }, 1200); });
    }
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("#all, .pick input")) setTimeout(choose);
    if (event.target.id === "all") document.querySelectorAll("#rows input[type=checkbox]").forEach((box) => { box.checked = event.target.checked; });
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea") || event.ctrlKey || event.metaKey || event.altKey;
    if (event.key === "/" && !typing) { event.preventDefault(); document.querySelector(".search input").focus(); }
    if (event.key === "p" && !typing && !$("live").hidden) $("live").click();
    if (event.key === "Escape" && $("panel") && $("panel").firstElementChild) shut();
  });

  // -- completion: the last word of a search box ---------------------------------------------------------------------
  function completes(input) {
    const list = document.createElement("ul");
    list.className = "suggestions"; list.id = `${input.id || "search"}-suggestions`; list.hidden = true;
    list.setAttribute("role", "listbox"); list.setAttribute("aria-label", "Suggestions");
    input.parentElement.append(list);
    for (const [name, value] of [["role", "combobox"], ["aria-autocomplete", "list"], ["aria-expanded", "false"], ["aria-controls", list.id]]) input.setAttribute(name, value);
    let asked = 0, chosen = -1, waiting = null;
    const close = () => { list.hidden = true; chosen = -1; input.setAttribute("aria-expanded", "false"); input.removeAttribute("aria-activedescendant"); };
    const take = (text) => {
      input.value = input.value.replace(/\S*$/, "") + text + (text.endsWith(":") ? "" : " ");
      close(); input.focus();
      if (text.endsWith(":")) ask();
    };
    const mark = (place) => {
      chosen = place;
      [...list.children].forEach((item, at) => item.setAttribute("aria-selected", String(at === chosen)));
      if (chosen >= 0) { input.setAttribute("aria-activedescendant", list.children[chosen].id); list.children[chosen].scrollIntoView({ block: "nearest" }); }
    };
    async function ask() {
      const mine = ++asked, text = input.value;
      if (!/\S$/.test(text)) return close();
      const answer = await fetch(`complete?q=${encodeURIComponent(text)}`).catch(() => null);
      const found = answer && answer.ok ? await answer.json() : [];
      if (mine !== asked || document.activeElement !== input) return;
      list.replaceChildren(...found.map((each, at) => { const item = document.createElement("li"); item.id = `${list.id}-${at}`; item.setAttribute("role", "option"); item.textContent = each; return item; }));
      if (!found.length || found.every((each) => text.endsWith(each))) return close();
      list.hidden = false; input.setAttribute("aria-expanded", "true"); mark(-1);
    }
    input.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(ask, 120); });
    input.addEventListener("blur", () => setTimeout(close, 150));
    list.addEventListener("mousedown", (event) => { event.preventDefault(); const item = event.target.closest("li"); if (item) take(item.textContent); });
    input.addEventListener("keydown", (event) => {
      if (list.hidden) return;
      if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); mark((chosen + (event.key === "ArrowDown" ? 1 : list.children.length)) % list.children.length); }
      else if (event.key === "Escape") { event.stopPropagation(); close(); }
      else if ((event.key === "Enter" || event.key === "Tab") && chosen >= 0) { event.preventDefault(); take(list.children[chosen].textContent); }
    });
  }
  const completing = () => document.querySelectorAll("input[data-complete]:not([role])").forEach(completes);

  $("theme").hidden = false;
  $("theme").addEventListener("click", () => {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    document.cookie = `recruiter_theme=${dark ? "light" : "dark"}; path=${new URL(document.baseURI).pathname}; max-age=31536000; samesite=strict`;
    document.dispatchEvent(new Event("recruiter:theme"));
  });
  $("live").hidden = false;
  $("live").addEventListener("click", () => {
    const pause = !paused();
    $("live").setAttribute("aria-pressed", String(!pause));
    connect();
    if (pause) { well(); say("paused"); }
  });

  // Nobody looking, nothing read: a page in the background lets go of its stream after a while.
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hidden);
    if (document.hidden) hidden = setTimeout(() => { if (stream) stream.close(); stream = null; }, 15000);
    else if (!stream) connect();
  });
  addEventListener("pagehide", () => { if (stream) stream.close(); stream = null; });
  addEventListener("pageshow", (event) => { if (event.persisted) connect(); });

  document.addEventListener("htmx:afterSettle", (event) => {
    tick(document);
    reveal();
    if (event.target.id === "counts") counts();
    if (event.target.id === "panel" && event.target.firstElementChild) {
      const first = event.target.querySelector("input:not([type=hidden]), .button");
      if (first) first.focus();
    }
    if (event.target.id === "content" || event.detail.target?.id === "content") { connect(); counts(); follow(log()); document.dispatchEvent(new Event("recruiter:content")); }
  });

  completing();
  announce();
  document.addEventListener("recruiter:content", completing);
  $("zone").textContent = `${zone}${offset && !["GMT", "GMT+0", "UTC"].includes(offset.value) ? ` (${offset.value.replace("GMT", "UTC")})` : ""}`;
  tick(document);
  reveal();
  follow(log());
  setInterval(() => {
    tick(document);
    if (stream && Date.now() - heardAt > SILENT) trouble("The console does not answer.");
  }, 1000);
  connect();
})();
