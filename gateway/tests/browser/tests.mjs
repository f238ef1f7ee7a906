// What the dashboard must do, one sentence each.

import assert from "node:assert/strict";
import fs from "node:fs";
import net from "node:net";

import { directory, nodes } from "./cluster.mjs";
import { eventually, gpu } from "./stage.mjs";

/** Tests put answers of their own in its place. */
const NO_LEDGER = "/api/v1/ledger";
const PAGES = ["fleet", "workloads", "workload/ai/chat", "workload/ai/fresh", "workload/ai/broken", "agents", "energy"];

const FIGURES = { gpuSecondsHeld: 43_200, gpuSecondsBusy: 21_600, gpuSecondsNotHeld: 3_600, joules: 5_400_000, joulesDynamic: 4e6, joulesIdle: 1.4e6, cost: null, gramsCo2e: 42 };
const LEDGER = {
  sinceSeconds: 90_000,
  workloads: [{ namespace: "ai", kind: "Deployment", name: "chat", ...FIGURES }],
  namespaces: [{ namespace: "ai", ...FIGURES }],
  nodes: [{ node: "n1", joules: 5_500_000, joulesAttributed: 5_400_000, joulesUnattributed: 100_000, gpuSecondsHeld: 43_200, gpuSecondsFree: 0 },
    { node: "n2", joules: null, joulesAttributed: null, joulesUnattributed: null, gpuSecondsHeld: 0, gpuSecondsFree: 0 }],
  idle: [
    { namespace: "research", pod: "notebook-0", workload: null, node: "n1", uuid: "GPU-n1-2", model: "H100", idleSeconds: 7_200, memoryUsedMib: 61_440, lastRequestSecondsAgo: null },
    { namespace: "ai", pod: "chat-1", workload: { kind: "Deployment", name: "chat" }, node: "n1", uuid: "GPU-n1-1", model: null, idleSeconds: 300, memoryUsedMib: null, lastRequestSecondsAgo: 310 },
  ],
};

async function small(stage) {
  directory(stage);
  await stage.start();
  for (const [node, said] of Object.entries(nodes)) stage.agent(node, ...said(1));
}

/** Opens a page by its address and waits until it is live. */
async function open(stage, browser, address, options = {}, allow = [NO_LEDGER]) {
  const page = await browser.page(options, { allow });
  await page.goto(`${stage.url}/#/${address}`);
  await isLive(page);
  return page;
}

function isLive(page) {
  return eventually("it is live", async () => (await page.locator("#status").textContent()).startsWith("Live"));
}

function has(page, text) {
  return eventually(`the page has ${JSON.stringify(text)}`, async () => (await page.locator("main").innerText()).includes(text));
}

function label(page, words) {
  const of = async () => {
    const labels = await page.locator("button.gpu").evaluateAll((buttons) => buttons.map((button) => button.textContent));
    return labels.find((known) => words.every((word) => known?.includes(word)));
  };
  return eventually(`a GPU is ${words.join(", ")}`, of);
}

export const tests = {
  async "every page loads, and a reading that is appended to a recording is shown"(stage, browser) {
    await small(stage);
    const page = await open(stage, browser, "fleet");
    await label(page, ["96 %", "GPU 0 on n1", "ai/chat-0"]);
    await label(page, ["GPU 1 on n1", "throttled", "unwell"]);
    await label(page, ["GPU 1 on n3", "lost"]);
    await has(page, "throttled by heat, the driver reported XID 79 (2 times)");
    await label(page, ["GPU 2 on n2", "failed"]);
    await label(page, ["GPU 0 on n3", "free"]);
    const [devices] = nodes.n1(1);
    stage.say("n1", [{ ...devices[0], gpu_utilization: 41 }, ...devices.slice(1)], nodes.n1(1)[1]);
    await label(page, ["41 %", "GPU 0 on n1"]);
    for (const address of PAGES) {
      await page.goto(`${stage.url}/#/${address}`);
      await page.locator("h1").waitFor();
    }
    await page.goto(`${stage.url}/#/workload`);
    await has(page, "ai/vision");
    assert.match(await page.title(), /^Workloads/);
  },

  async "triggers that there is no room for are counted"(stage, browser) {
    const names = Array.from({ length: 2_002 }, (_, at) => `so-${at}`);
    stage.directory([], names.map((name) => ({ namespace: "ai", name, target: { name }, triggers: [{ type: "external-push", metadata: {} }] })));
    await stage.start();
    const page = await open(stage, browser, "workloads");
    await eventually("it says so", async () => (await page.locator("main > p.warn").textContent()).startsWith("2 more triggers are not in this list"));
  },

  async "what this gateway's ledger counted is on the energy page"(stage, browser) {
    await small(stage);
    const page = await open(stage, browser, "energy", {}, []);
    await has(page, "ai/chat");
    await has(page, "research/notebook-0");
  },

  async "a hot GPU leads to the explanation of its workload"(stage, browser) {
    await small(stage);
    const page = await open(stage, browser, "fleet");
    await label(page, ["96 %", "GPU 0 on n1"]);
    await page.locator("#order").selectOption("hot");
    await page.getByRole("button", { name: /GPU 0 on n1/ }).first().click();
    await page.getByRole("link", { name: "Why this many replicas: chat" }).click();
    await has(page, "KEDA is told");
    await has(page, "The decision on one axis");
    await has(page, "GPU 0 on n1");
    await has(page, "▲ throttled");
    assert.match(await page.title(), /ai\/chat/);
  },

  async "a queue that grows while pods wait for a GPU reads unlike one that grows while all are ready"(stage, browser) {
    await small(stage);
    const page = await open(stage, browser, "workload/ai/chat");
    stage.say("n1", ...nodes.n1(9));
    await has(page, "19 requests wait; the HPA orders");
    assert.equal(await page.locator(".chart g rect.place").count(), 0, "nobody waits for a place");
    directory(stage, 2);
    await has(page, "while 2 pods wait for a place: 1 GPU free, but not for these pods");
    await has(page, "ordered 2 → 4");
    await has(page, "Insufficient nvidia.com/gpu");
    await eventually("the waiting is in the chart", () => page.locator(".chart g rect.place").count());
    const log = fs.readFileSync(stage.file("gateway.log"), "utf8");
    assert.match(log, /INFO decision: decision changed scaled_object=ai\/chat .*desired=\d+ replicas=4 ready=2 unscheduled=2 .*reason=/);
  },

  async "a workload that its trigger cannot wake, and one with a stuck pod, do not read as well"(stage, browser) {
    await small(stage);
    const page = await open(stage, browser, "workload/ai/batch");
    await has(page, "Asleep, and this trigger cannot wake it: no demandEndpoint.");
    await page.goto(`${stage.url}/#/workload/ai/late`);
    await has(page, "1 pod stuck: not Ready for longer than coldStartTimeout.");
    await page.goto(`${stage.url}/#/workloads`);
    await has(page, "Asleep, and this trigger cannot wake it: no demandEndpoint.");
    await has(page, "1 pod stuck: not Ready for longer than coldStartTimeout.");
  },

  async "no page has an accessibility fault, light or dark"(stage, browser) {
    directory(stage, 1);
    await stage.start();
    for (const [node, said] of Object.entries(nodes)) stage.agent(node, ...said(1));
    for (const colorScheme of ["light", "dark"]) {
      const page = await open(stage, browser, "fleet", { colorScheme });
      for (const address of PAGES) {
        await page.goto(`${stage.url}/#/${address}`);
        await page.locator("h1").waitFor();
        if (address === "fleet") await page.locator("button.gpu").nth(1).click();
        if (address.startsWith("workload/")) await has(page, "Changes, newest first");
        assert.deepEqual(await browser.audit(page), [], `${address}, ${colorScheme}`);
      }
    }
  },

  async "the theme is chosen and kept"(stage, browser) {
    await small(stage);
    const page = await open(stage, browser, "fleet", { colorScheme: "light" });
    const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await ground();
    await page.getByRole("button", { name: "Theme: auto" }).click();
    await page.getByRole("button", { name: "Theme: light" }).click();
    assert.notEqual(await ground(), light);
    await page.reload();
    assert.notEqual(await ground(), light);
  },

  async "hostile names are text and nothing else"(stage, browser) {
    const evil = '<img src=x onerror="document.title=1">"\'&amp;\u202e\u2028\u2029';
    stage.directory([], []);
    await stage.start();
    const model = { name: "<script>document.title='x'</script>", reason: "<b>bold</b>" };
    stage.agent("node-<b>1", [gpu(`GPU-${evil}`, 0, 50, [{ namespace: "<i>ai</i>", pod: evil }], model)]);
    const page = await open(stage, browser, "fleet", {}, [NO_LEDGER]);
    await eventually("the GPU is there", () => page.locator("button.gpu").count());
    await page.locator("button.gpu").first().click();
    await has(page, "<script>document.title='x'</script>");
    await has(page, "<img src=x onerror");
    await page.goto(`${stage.url}/#/agents`);
    await has(page, "node-<b>1");
    for (const address of [`workload/${encodeURIComponent(evil)}/${encodeURIComponent("../x")}`, "workload/%E0%A4%A/x", "<b>nothing</b>"]) {
      page.allowed.push("/explain", "/timeline");
      await page.goto(`${stage.url}/#/${address}`);
      await page.locator("h1").waitFor();
    }
    const planted = await page.evaluate(() => [document.querySelectorAll("main img, main script, main b, main i").length, document.title]);
    assert.equal(planted[0], 0);
    assert.notEqual(planted[1], "1");
    assert.notEqual(planted[1], "x");
  },

  async "an empty cluster says on every page what to do next"(stage, browser) {
    stage.directory([], []);
    await stage.start();
    const page = await open(stage, browser, "fleet");
    await has(page, "gpu-agent doctor");
    await page.goto(`${stage.url}/#/workloads`);
    await has(page, "external-push");
    await page.goto(`${stage.url}/#/agents`);
    await has(page, "gpu-agent run");
    await page.goto(`${stage.url}/#/energy`);
    await eventually("the ledger, or that there is none", async () => /Not available|Idle/.test(await page.locator("main").innerText()));
    page.allowed.push("/explain", "/timeline");
    await page.goto(`${stage.url}/#/workload/ai/none`);
    await has(page, "There is no ScaledObject ai/none");
    assert.equal(await page.locator(".verdict:visible").count(), 0, "no empty card");
    assert.deepEqual(await browser.audit(page), []);
  },

  async "a gateway that restarts is missed, said so, and found again"(stage, browser) {
    await small(stage);
    const page = await open(stage, browser, "fleet", {}, [NO_LEDGER, "ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE"]);
    await label(page, ["96 %", "GPU 0 on n1"]);
    await stage.kill(stage.gateway);
    await eventually("it says so", async () => (await page.locator("#status").textContent()).startsWith("Connection lost"));
    await label(page, ["96 %", "GPU 0 on n1"]);
    await stage.start();
    await isLive(page);
    await label(page, ["96 %", "GPU 0 on n1"]);
  },

  async "the ledger's figures have units, and what is not known is no zero"(stage, browser) {
    await small(stage);
    const page = await open(stage, browser, "fleet");
    await page.route("**/api/v1/ledger", (route) => route.fulfill({ json: LEDGER }));
    await page.goto(`${stage.url}/#/energy`);
    await has(page, "1.5 kWh");
    for (const text of ["research/notebook-0", "no workload", "2.0 h", "60 GiB", "not known", "ai/chat (Deployment)", "12 GPU-h", "42 g", "1.53 kWh (without 1 node where it is not known) in all"]) await has(page, text);
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      assert.deepEqual(await browser.audit(page), []);
    }
    await page.goto(`${stage.url}/#/workloads`);
    await has(page, "1 idle for");
    assert.deepEqual(await browser.audit(page), []);
    await page.route("**/api/v1/ledger", (route) => route.fulfill({ json: { ...LEDGER, nodes: LEDGER.nodes.slice(1) } }));
    await page.goto(`${stage.url}/#/energy`);
    await has(page, "– in all, – of it nobody's");
  },

  async "many tabs are served, and one that does not read delays nobody"(stage, browser) {
    await small(stage);
    const { port } = new URL(stage.url);
    const slow = net.connect(Number(port), "127.0.0.1");
    slow.write("GET /api/v1/events HTTP/1.1\r\nHost: x\r\n\r\n");
    slow.pause();
    const pages = await Promise.all(Array.from({ length: 12 }, () => open(stage, browser, "fleet")));
    await Promise.all(pages.map((page) => label(page, ["96 %", "GPU 0 on n1"])));
    stage.say("n1", nodes.n1(1)[0].map((device) => ({ ...device, gpu_utilization: 12 })));
    await Promise.all(pages.map((page) => label(page, ["12 %", "GPU 0 on n1"])));
    slow.destroy();
  },

  async "the keyboard alone leads from the top of the page to an explanation"(stage, browser) {
    await small(stage);
    const page = await open(stage, browser, "fleet");
    await label(page, ["96 %", "GPU 0 on n1"]);
    const focused = () => page.evaluate(() => document.activeElement.getAttribute("aria-label") ?? document.activeElement.textContent);
    const reach = async (key, what) => {
      for (let steps = 0; steps < 40; steps += 1) {
        await page.keyboard.press(key);
        if (what.test(await focused())) return;
      }
      assert.fail(`${key} does not lead to ${what}, but to ${await focused()}`);
    };
    await page.keyboard.press("Tab");
    assert.match(await focused(), /Skip to the content/);
    await reach("Tab", /GPU 0 on n1/);
    await page.keyboard.press("ArrowRight");
    assert.match(await focused(), /GPU 1 on n1/);
    await page.keyboard.press("ArrowDown");
    assert.match(await focused(), /GPU 1 on n2/);
    await page.keyboard.press("Home");
    await page.keyboard.press("Enter");
    await reach("Tab", /Why this many replicas/);
    await page.keyboard.press("Enter");
    await has(page, "KEDA is told");
    await reach("Tab", /Timeline; arrow keys/);
    await page.keyboard.press("Home");
    const slider = page.getByRole("slider");
    await eventually("it stands at the oldest moment", async () => (await slider.getAttribute("aria-valuenow")) === "0");
    assert.match(await slider.getAttribute("aria-valuetext"), /ordered/);
  },

  async "a phone shows every page without scrolling sideways"(stage, browser) {
    await small(stage);
    const page = await open(stage, browser, "fleet", { viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true });
    await label(page, ["96 %", "GPU 0 on n1"]);
    for (const address of PAGES) {
      await page.goto(`${stage.url}/#/${address}`);
      await page.locator("h1").waitFor();
      if (address.startsWith("workload/")) await has(page, "Changes, newest first");
      const [wide, window_] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
      assert(wide <= window_, `${address} is ${wide} px wide`);
    }
  },

  async "a token is asked for, a wrong one refused, a right one kept for the tab"(stage, browser) {
    directory(stage);
    fs.writeFileSync(stage.file("token"), "a-token-of-some-length\n");
    await stage.start(["--http-token-file", stage.file("token")]);
    stage.agent("n1", ...nodes.n1(1));
    const page = await browser.page({}, { allow: [NO_LEDGER, "401"] });
    await page.goto(stage.url);
    await page.getByLabel("Token").fill("wrong-token-of-some-length");
    await page.keyboard.press("Enter");
    await has(page, "That is not the gateway's token.");
    assert.deepEqual(await browser.audit(page), []);
    await page.getByLabel("Token").fill("a-token-of-some-length");
    await page.keyboard.press("Enter");
    await label(page, ["96 %", "GPU 0 on n1"]);
    await page.reload();
    await label(page, ["96 %", "GPU 0 on n1"]);
    await page.goto(`${stage.url}/#/workload/ai/chat`);
    await has(page, "KEDA is told");
    fs.writeFileSync(stage.file("token"), "another-token-of-some-length\n");
    await page.getByLabel("Token").fill("another-token-of-some-length", { timeout: 60_000 });
    await page.keyboard.press("Enter");
    await has(page, "KEDA is told");
  },

  async "2,000 GPUs are shown, filtered and followed"(stage, browser) {
    stage.directory([], []);
    await stage.start();
    const row = (node) => Array.from({ length: 125 }, (_, at) => gpu(`GPU-${node}-${at}`, at, (at * 7 + node) % 100, at % 9 ? [{ namespace: "ai", pod: `p-${node}-${at}` }] : []));
    for (let node = 0; node < 16; node += 1) stage.agent(`n${node}`, row(node));
    const page = await open(stage, browser, "fleet");
    await eventually("all are there", async () => (await page.locator("button.gpu").count()) === 2000);
    stage.say("n3", row(3).map((device) => ({ ...device, gpu_utilization: 77 })));
    await eventually("they are followed", async () => (await page.locator("button.gpu .v").allTextContents()).filter((text) => text === "77").length >= 125);
    await page.getByLabel("Show").fill("p-5-17");
    await eventually("one node is left", async () => (await page.locator("section.node:visible").count()) === 1);
    const bytes = await page.evaluate(async () => {
      const answer = await fetch("/api/v1/events");
      const reader = answer.body.getReader();
      const sizes = [];
      while (sizes.length < 2) sizes.push((await reader.read()).value.length);
      await reader.cancel();
      return sizes;
    });
    assert(bytes.every((size) => size < 2_000_000), String(bytes));
  },
};
