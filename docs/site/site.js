// SPDX-License-Identifier: Apache-2.0
// In narrow windows, a bar at the top opens and closes the navigation tree.
document.addEventListener("DOMContentLoaded", () => {
  const bar = document.createElement("div");
  bar.id = "menu-bar";
  bar.innerHTML =
    '<a href="index.html">Tessera</a><button type="button" aria-controls="side-nav" aria-expanded="false">Menu</button>';
  const button = bar.querySelector("button");
  const show = (open) => {
    document.body.classList.toggle("menu-is-open", open);
    button.setAttribute("aria-expanded", String(open));
  };
  button.addEventListener("click", () => show(!document.body.classList.contains("menu-is-open")));
  document.getElementById("doc-content").addEventListener("click", () => show(false));
  document.body.prepend(bar);
});
