// Search a built site as its search page does, by the site's own script: node search.js SITE QUERY
// It prints the pages that are found, the best first.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [site, query] = process.argv.slice(2);
const page = vm.createContext({
  query,
  document: { getElementById: () => null },
  SPHINX_HIGHLIGHT_ENABLED: false,
  _ready: () => {}, // begins a search when the page is loaded
  _: (text) => text, // translates
});
page.window = page;
for (const file of ["_static/language_data.js", "_static/searchtools.js", "searchindex.js"])
  vm.runInContext(fs.readFileSync(path.join(site, file), "utf8"), page);
const found = vm.runInContext("Search._performSearch(...Search._parseQuery(query))", page);
const pages = found.reverse().map(([name]) => name);
console.log([...new Set(pages)].join("\n"));
