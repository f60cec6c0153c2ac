/** Builds the pages into the Python package, which serves them at /ui/. */
import { defineConfig } from "vite";

export default defineConfig({
  base: "/ui/",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/dagmaster/ui/static",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0, // the content security policy allows no data: scripts or styles
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 1200,
  },
  server: {
    proxy: Object.fromEntries(["/api", "/tiles", "/stac", "/files"].map((path) => [path, "http://127.0.0.1:8000"])),
  },
});
