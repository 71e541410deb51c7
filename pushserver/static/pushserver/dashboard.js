// What the dashboard says about its own refreshing: whether it works, and what has changed.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const board = document.getElementById("board");
  const stale = document.getElementById("stale");
  const asOf = () => document.getElementById("as-of");
  const verdict = () => document.getElementById("verdict").textContent;
  let told = verdict();

  function failed() {
    document.getElementById("stale-since").textContent = asOf().textContent;
    stale.hidden = false;
    board.classList.add("old");
  }

  function refreshed() {
    stale.hidden = true;
    board.classList.remove("old");
    // For screen readers, and only when it is news: the board as a whole changes all the time.
    if (verdict() !== told) {
      told = verdict();
      document.getElementById("announced").textContent = told;
    }
  }

  for (const event of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) {
    board.addEventListener(event, failed);
  }
  board.addEventListener("htmx:afterSwap", refreshed);

  // Nobody looks: nobody asks. Who comes back sees at once what is the case.
  board.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden) event.preventDefault();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) htmx.trigger(board, "refresh");
  });
});
