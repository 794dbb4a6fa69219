// Runs before the first paint, so that a chosen theme never flashes in the wrong colours. Not a module: those are deferred.
(() => {
  try {
    const theme = localStorage.getItem("headrace.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage may be forbidden; then the system's preference holds.
  }
})();
