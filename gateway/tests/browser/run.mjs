// The dashboard in a real browser, before a real gateway with real agents.
// node run.mjs BINARIES CHROMIUM [WORD]: runs the tests whose name has WORD.

import assert from "node:assert/strict";

import { Browser } from "./browser.mjs";
import { Stage } from "./stage.mjs";
import { tests } from "./tests.mjs";

const [binaries, executable, word = ""] = process.argv.slice(2);
assert(binaries && executable, "usage: node run.mjs BINARIES CHROMIUM [WORD]");

const browser = await Browser.start(executable);
let failed = 0;
for (const [name, test] of Object.entries(tests).filter(([name]) => name.includes(word))) {
  const stage = new Stage(binaries);
  browser.complaints.length = 0;
  try {
    await test(stage, browser);
    assert.deepEqual(browser.complaints, [], "the browser complains about nothing");
    console.log(`ok      ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}\n${error.stack}\n${stage.logs()}`);
  } finally {
    await Promise.all(browser.chromium.contexts().map((context) => context.close()));
    await stage.stop();
  }
}
await browser.stop();
console.log(failed ? `${failed} failed` : "all well");
process.exitCode = failed ? 1 : 0;
