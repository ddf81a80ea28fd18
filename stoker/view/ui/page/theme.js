// A plain script, not a module: it runs before the first paint, so that the page never flashes in the wrong theme.
"use strict";

{
  const KEY = "stoker.theme";
  const read = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // a browser that keeps nothing follows the system
    }
  };
  const apply = (theme) => {
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    window.dispatchEvent(new Event("themechange"));
  };

  window.stokerTheme = {
    now: () => document.documentElement.dataset.theme ?? "auto",
    set(theme) {
      try {
        localStorage.setItem(KEY, theme);
      } catch {
        // kept until the page is closed
      }
      apply(theme);
    },
  };
  apply(read());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => apply(window.stokerTheme.now()));
}
