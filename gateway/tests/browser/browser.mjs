// A headless Chromium whose pages must neither complain nor break the policy of contents.

import fs from "node:fs";
import { createRequire } from "node:module";

import { chromium } from "playwright-core";

const AXE = fs.readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export class Browser {
  static async start(executablePath) {
    const browser = new Browser();
    browser.chromium = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
    browser.complaints = [];
    return browser;
  }

  /** A new page of its own profile; what it complains about is kept. */
  async page(options = {}, { allow = [] } = {}) {
    const context = await this.chromium.newContext({ viewport: { width: 1400, height: 900 }, ...options });
    return this.tab(context, { allow });
  }

  async tab(context, { allow = [] } = {}) {
    const page = await context.newPage();
    page.allowed = allow;
    const complain = (text) => page.allowed.some((known) => text.includes(known)) || this.complaints.push(`${page.url()}: ${text}`);
    page.on("console", (message) => {
      if (!["error", "warning"].includes(message.type())) return;
      complain(`${message.text()} ${message.location().url}`);
    });
    page.on("pageerror", (error) => complain(error.stack ?? String(error)));
    page.on("request", (request) => {
      const { hostname, protocol } = new URL(request.url());
      if (protocol.startsWith("http") && hostname !== "127.0.0.1") complain(`asks elsewhere: ${request.url()}`);
    });
    await page.addInitScript(() => {
      document.addEventListener("securitypolicyviolation", (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
    });
    return page;
  }

  /** What is wrong with the page for people with disabilities, one line each. */
  async audit(page) {
    // The page's own policy admits no foreign script; the protocol's evaluation is not subject to it.
    await page.evaluate(AXE);
    const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
    return violations.flatMap((found) => found.nodes.slice(0, 3).map((node) => `${found.id}: ${node.target.join(" ")}: ${node.failureSummary.replaceAll("\n", " ")}`));
  }

  stop() {
    return this.chromium.close();
  }
}
