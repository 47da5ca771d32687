// Shows calls and events as they happen, newest first, at most KEPT of them.
"use strict";

const KEPT = 300;
const rows = document.getElementById("entries");
const state = document.getElementById("state");
const pause = document.getElementById("pause");
const only = document.getElementById("only");

const matches = (row) => row.textContent.toLowerCase().includes(only.value.toLowerCase());

function cell(text, name) {
  const element = document.createElement("td");
  element.textContent = text;
  if (name) element.className = name;
  return element;
}

function add(entry) {
  const row = document.createElement("tr");
  const duration = entry.seconds === null ? "" : `${(entry.seconds * 1000).toFixed(entry.seconds < 0.1 ? 1 : 0)} ms`;
  const failed = entry.seconds !== null && !["ok", "needs input"].includes(entry.outcome);
  row.append(
    cell(new Date(entry.time * 1000).toLocaleTimeString()), cell(entry.kind), cell(entry.subject),
    cell(entry.outcome, failed ? "ill" : ""), cell(entry.principal), cell(duration, "n"),
  );
  row.hidden = !matches(row);
  rows.prepend(row);
  while (rows.children.length > KEPT) rows.lastChild.remove();
}

const events = new EventSource("/ui/live/events");
events.onopen = () => { state.textContent = "Watching."; };
events.onerror = () => { state.textContent = "Connection lost; reconnecting."; };
events.onmessage = (event) => {
  if (pause.getAttribute("aria-pressed") === "false") add(JSON.parse(event.data));
};
pause.onclick = () => {
  const paused = pause.getAttribute("aria-pressed") === "false";
  pause.setAttribute("aria-pressed", String(paused));
  state.textContent = paused ? "Paused: new calls and events are dropped." : "Watching.";
};
only.oninput = () => { for (const row of rows.children) row.hidden = !matches(row); };
