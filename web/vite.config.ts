import { defineConfig } from "vite";

// The hub serves pages under /ui/ and files under /assets/, under a policy that allows no script but its own files.
export default defineConfig({
  base: "/",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    emptyOutDir: true,
    reportCompressedSize: false,
    license: false,
  },
});
