"use strict";
// Keyboard access to the clickable elements of the theme, and names for elements that show only an icon.

const CLICKED = [
  ["[x-on\\:click^='sidebarDesktopOpen'], [x-on\\:click^='sidebarMobileOpen']", "Menu"],
  ["[x-on\\:click^='openTheme']", "Colours"],
  ["[x-on\\:click^='showActions']", "Actions"],
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

// Moves the focus into the sheet of filters, which follows the list in the order of the page.
function followFilters() {
  const opener = document.querySelector("[x-on\\:click='filterOpen = true']");
  const sheet = document.getElementById("changelist-filter");
  if (!opener || !sheet) return;
  opener.addEventListener("click", () => setTimeout(() => sheet.querySelector("a")?.focus(), 50));
  sheet.addEventListener("keydown", (event) => event.key === "Escape" && opener.focus());
}

// The slash leads to the search box, except where somebody types.
function focusSearch(event) {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select, [contenteditable]")) return;
  const box = [...document.querySelectorAll(".find-box input[name=q]")].find((input) => input.offsetParent);
  if (!box) return;
  event.preventDefault();
  box.focus();
}

// Without a clipboard (plain http) the text is only selected, and the operator copies it.
async function copy(button) {
  const source = document.getElementById(button.dataset.copies);
  const message = document.getElementById("copied");
  try {
    await navigator.clipboard.writeText(source.textContent);
    message.textContent = "Copied.";
  } catch {
    window.getSelection().selectAllChildren(source);
    message.textContent = "Selected: copy it with the keyboard.";
  }
}

// Reports the width to the server by a cookie. On a phone rows are cards, and a page has 25 of them. A longer list that was
// loaded before the cookie existed is loaded again, once.
function saveWidth() {
  const isNarrow = window.matchMedia("(width < 40rem)").matches;
  const wasNarrow = document.cookie.split("; ").includes("narrow=1");
  if (isNarrow === wasNarrow) return;
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
  // Django's script for multiple selection creates these tooltips after the page has loaded.
  for (const tooltip of document.querySelectorAll(".help-tooltip[aria-label]")) tooltip.setAttribute("role", "img");
}));

document.addEventListener("DOMContentLoaded", () => {
  saveWidth();
  for (const button of document.querySelectorAll("[data-copies]")) button.addEventListener("click", () => copy(button));
  giveNames();
  for (const icon of document.querySelectorAll(".material-symbols-outlined")) icon.setAttribute("aria-hidden", "true");
  for (const [selector, name] of CLICKED) {
    for (const element of document.querySelectorAll(selector)) {
      element.removeAttribute("aria-hidden");
      makeButton(element, name);
    }
  }
  followFilters();
  document.addEventListener("keydown", focusSearch);
});
