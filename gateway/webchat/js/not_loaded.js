// Says so when a part of the page did not come (the network changed, the server went away): without it nothing here works.
// Not a module: it must be there when the modules are not.
addEventListener(
  "error",
  ({ target }) => {
    if (target.localName !== "script") return;
    const tell = () => {
      const banner = document.getElementById("banner");
      banner.dataset.state = "lost";
      banner.textContent = "A part of this page did not come. Reload it to go on.";
    };
    if (document.readyState === "loading") addEventListener("DOMContentLoaded", tell);
    else tell();
  },
  true,
);
