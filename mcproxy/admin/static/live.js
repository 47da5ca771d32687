// Shows calls and events as they pass, the newest first, and no more of them than a person can look through.
"use strict";

const KEPT = 300;
const rows = document.getElementById("passing");
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

function add(passing) {
  const row = document.createElement("tr");
  const took = passing.seconds === null ? "" : `${(passing.seconds * 1000).toFixed(passing.seconds < 0.1 ? 1 : 0)} ms`;
  const ill = passing.seconds !== null && !["ok", "needs input"].includes(passing.outcome);
  row.append(
    cell(new Date(passing.time * 1000).toLocaleTimeString()), cell(passing.kind), cell(passing.subject),
    cell(passing.outcome, ill ? "ill" : ""), cell(passing.principal), cell(took, "n"),
  );
  row.hidden = !matches(row);
  rows.prepend(row);
  while (rows.children.length > KEPT) rows.lastChild.remove();
}

const events = new EventSource("/ui/live/events");
events.onopen = () => { state.textContent = "Watching."; };
events.onerror = () => { state.textContent = "The gateway is away; trying again."; };
events.onmessage = (event) => {
  if (pause.getAttribute("aria-pressed") === "false") add(JSON.parse(event.data));
};
pause.onclick = () => {
  const paused = pause.getAttribute("aria-pressed") === "false";
  pause.setAttribute("aria-pressed", String(paused));
  state.textContent = paused ? "Paused: what passes now is not kept." : "Watching.";
};
only.oninput = () => { for (const row of rows.children) row.hidden = !matches(row); };
