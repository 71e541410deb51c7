// Refreshing of the dashboard: a warning when it fails, an announcement of a new verdict, and the state in the tab.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const board = document.getElementById("board");
  const stale = document.getElementById("stale");
  const asOf = () => document.getElementById("as-of");
  const verdict = () => document.getElementById("verdict").textContent;
  let announced = verdict();

  // The title and icon of the tab show the state, for people who work in another tab.
  const title = document.title;
  const colours = { good: "008236", doubt: "ca3500", bad: "c10007", quiet: "6a7282" };
  const signs = {
    good: "<path d='M4 8.5l2.5 2.5L12 5.5'/>",
    doubt: "<path d='M8 4v5M8 11.5v.5'/>",
    bad: "<path d='M5 5l6 6M11 5l-6 6'/>",
    quiet: "<path d='M5 8h6'/>",
  };

  function showInTab() {
    const state = document.querySelector(".verdict").dataset;
    document.title = state.word ? `${state.word}: ${title}` : title;
    const icon = document.querySelector("link[rel='icon']");
    icon.href =
      "data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16' fill='none' stroke='white' " +
      `stroke-width='2'><rect width='16' height='16' rx='4' stroke='none' fill='%23${colours[state.family]}'/>` +
      `${signs[state.family]}</svg>`;
    icon.dataset.family = state.family;
  }
  showInTab();

  function failed() {
    document.getElementById("stale-since").textContent = asOf().textContent;
    stale.hidden = false;
    board.classList.add("old");
  }

  function refreshed() {
    stale.hidden = true;
    board.classList.remove("old");
    showInTab();
    // For screen readers, and only when it changes: the board as a whole changes at each refresh.
    if (verdict() !== announced) {
      announced = verdict();
      document.getElementById("announced").textContent = announced;
    }
  }

  for (const event of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) {
    board.addEventListener(event, failed);
  }
  board.addEventListener("htmx:afterSwap", refreshed);

  // What somebody has unfolded stays so. htmx sets the focus before, and what is folded takes none.
  let unfolded = [];
  let focused = "";
  board.addEventListener("htmx:beforeSwap", () => {
    unfolded = [...board.querySelectorAll("details[open]")].map(({ id }) => id);
    focused = board.contains(document.activeElement) ? document.activeElement.id : "";
  });
  board.addEventListener("htmx:afterSwap", () => {
    for (const id of unfolded) document.getElementById(id)?.setAttribute("open", "");
    if (focused) document.getElementById(focused)?.focus();
  });

  // A link that is replaced while somebody presses it would not be followed. The next refresh is seconds away.
  let isPressed = false;
  board.addEventListener("pointerdown", () => { isPressed = true; });
  for (const event of ["pointerup", "pointercancel"]) {
    document.addEventListener(event, () => { isPressed = false; });
  }
  board.addEventListener("htmx:beforeSwap", (event) => {
    if (isPressed) event.detail.shouldSwap = false;
  });

  // A hidden page does not refresh. It refreshes at once when it is shown again.
  board.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden) event.preventDefault();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) htmx.trigger(board, "refresh");
  });
});
