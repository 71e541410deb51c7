"use strict";
// What the theme draws to be clicked, a keyboard reaches as well, and what it says with an icon alone gets a name.

const CLICKED = [
  ["[x-on\\:click^='sidebarDesktopOpen'], [x-on\\:click^='sidebarMobileOpen']", "Menu"],
  ["[x-on\\:click^='openTheme']", "Colours"],
  ["[x-on\\:click^='openUserLinks'], [x-on\\:click^='switchTheme'], [x-on\\:click^='adminTheme'], [x-on\\:click='filterOpen = true']", ""],
];

function makeButton(element, name) {
  element.setAttribute("role", "button");
  element.tabIndex = 0;
  if (name) element.setAttribute("aria-label", name);
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    element.click();
  });
}

// The sheet of filters lies behind the list in the order of the page.
function followFilters() {
  const opener = document.querySelector("[x-on\\:click='filterOpen = true']");
  const sheet = document.getElementById("changelist-filter");
  if (!opener || !sheet) return;
  opener.addEventListener("click", () => setTimeout(() => sheet.querySelector("a")?.focus(), 50));
  sheet.addEventListener("keydown", (event) => event.key === "Escape" && opener.focus());
}

// On a phone rows are cards: the server sends pages of 25 of them. A list that came before it knew is loaded again, once.
function tellWidth() {
  const isNarrow = window.matchMedia("(width < 40rem)").matches;
  const wasTold = document.cookie.split("; ").includes("narrow=1");
  if (isNarrow === wasTold) return;
  document.cookie = `narrow=1; path=/; samesite=strict; max-age=${isNarrow ? 31536000 : 0}`;
  if (isNarrow && document.querySelectorAll("#result_list .data-row").length > 25) window.location.reload();
}

function giveNames() {
  document.getElementById("searchbar-submit")?.setAttribute("aria-label", "Search");
  for (const field of document.querySelectorAll("#result_list td[data-label] :is(input, select):not([type=hidden], .action-select)")) {
    field.setAttribute("aria-label", field.closest("td").dataset.label);
  }
}

window.addEventListener("load", () => setTimeout(() => {
  // Drawn by Django's script for choosing several, once everything is loaded.
  for (const tooltip of document.querySelectorAll(".help-tooltip[aria-label]")) tooltip.setAttribute("role", "img");
}));

document.addEventListener("DOMContentLoaded", () => {
  tellWidth();
  giveNames();
  for (const icon of document.querySelectorAll(".material-symbols-outlined")) icon.setAttribute("aria-hidden", "true");
  for (const [selector, name] of CLICKED) {
    for (const element of document.querySelectorAll(selector)) {
      element.removeAttribute("aria-hidden");
      makeButton(element, name);
    }
  }
  followFilters();
});
