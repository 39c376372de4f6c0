"use strict";
/* The whole story is in the page: this shows one part at a time, and walks through them. */
(() => {
  const parts = [...document.querySelectorAll(".part")];
  const links = [...document.querySelectorAll("[data-step]")];
  const last = parts.length - 1;
  const $ = (id) => document.getElementById(id);

  let at = -1;
  function show(n) {
    n = Math.min(last, Math.max(0, n));
    if (n === at) return;
    at = n;
    parts.forEach((part, i) => (part.hidden = i !== n));
    $("slider").value = n;
    $("slider").setAttribute("aria-valuetext", links[n].dataset.says);
    $("count").textContent = `${n} / ${last}`;
    $("back").disabled = n === 0;
    $("on").disabled = n === last;
    $("live").textContent = parts[n].dataset.summary;
    links.forEach((link, i) => {
      if (i !== n) return link.removeAttribute("aria-current");
      link.setAttribute("aria-current", "step");
      const strip = link.closest(".steps");
      strip.scrollLeft = link.offsetLeft - strip.offsetLeft - (strip.clientWidth - link.offsetWidth) / 2;
    });
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

  document.querySelector(".walk").hidden = false;
  document.documentElement.classList.add("walks");
  parts.forEach((part) => part.removeAttribute("id")); // so that an address with a number scrolls nowhere
  show(linked());
  scrollTo(0, 0);
})();
