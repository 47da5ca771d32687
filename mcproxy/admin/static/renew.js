// Refreshes the page every few seconds while it is visible, and no text is selected and nothing in it has the focus.
"use strict";

const PERIOD = 5000;

function age(element) {
  const seconds = Math.max(0, Date.now() / 1000 - Number(element.dataset.since));
  const [value, unit] = seconds < 120 ? [seconds, "s"] : seconds < 7200 ? [seconds / 60, "min"]
    : seconds < 172800 ? [seconds / 3600, "h"] : [seconds / 86400, "d"];
  element.textContent = `${Math.floor(value)} ${unit}`;
  element.title = new Date(Number(element.dataset.since) * 1000).toLocaleString();
}

function dress(root) {
  root.querySelectorAll("time[data-since]").forEach(age);
}

async function renew() {
  const main = document.querySelector("main");
  const busy = document.hidden || main.contains(document.activeElement) || !getSelection().isCollapsed;
  if (busy) return;
  try {
    const response = await fetch(location.href);
    if (!response.ok) return;
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html").querySelector("main");
    dress(fresh);
    main.querySelectorAll("details[open][id]").forEach((open) => { fresh.querySelector(`#${open.id}`)?.setAttribute("open", ""); });
    main.replaceChildren(...fresh.childNodes);
  } catch {
    // The gateway cannot be reached: the last state stays.
  }
}

dress(document);
setInterval(renew, PERIOD);
