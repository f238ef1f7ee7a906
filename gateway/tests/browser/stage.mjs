// Real processes for the browser to look at: a gateway, agents, a directory, recordings.

import { spawn } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import net from "node:net";
import os from "node:os";
import path from "node:path";

const PATIENCE = 60_000;

/** Asks `check` until it gives something, and returns that; fails with the last error. */
export async function eventually(what, check, patience = PATIENCE) {
  const end = Date.now() + patience;
  let last = null;
  while (Date.now() < end) {
    try {
      const answer = await check();
      if (answer) return answer;
    } catch (error) {
      last = error;
    }
    await new Promise((resume) => setTimeout(resume, 100));
  }
  throw new Error(`not so in time: ${what}${last ? `: ${last.message}` : ""}`);
}

async function freePort() {
  const server = net.createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

/** A device as a line of a recording has it. */
export function gpu(uuid, index, utilization, holders, more = {}) {
  const shared = { name: "NVIDIA H100 80GB HBM3", memory_total_mib: 81559, memory_used_mib: 61440, temperature: 58, power_draw: 412 };
  return { uuid, index, ...shared, gpu_utilization: utilization, throttled_percent: 0, ...more,
    holders: holders.map((holder) => ({ container: "main", share: 1, ...holder })) };
}

export class Stage {
  constructor(binaries) {
    this.binaries = binaries;
    this.folder = fs.mkdtempSync(path.join(os.tmpdir(), "dashboard-"));
    this.children = [];
    this.lines = new Map();
  }

  file(name) {
    return path.join(this.folder, name);
  }

  spawn(name, program, args) {
    const log = fs.openSync(this.file(`${name}.log`), "a");
    const child = spawn(path.join(this.binaries, program), args, { stdio: ["ignore", log, log], env: { PATH: process.env.PATH } });
    fs.closeSync(log);
    this.children.push(child);
    return child;
  }

  /** Replaces the directory in one step. */
  directory(workloads, scaledObjects = []) {
    fs.writeFileSync(this.file("new"), JSON.stringify({ workloads, scaledObjects }));
    fs.renameSync(this.file("new"), this.file("directory.yaml"));
  }

  async start(flags = []) {
    if (!this.ports) this.ports = [await freePort(), await freePort(), await freePort()];
    const [keda, agents, http] = this.ports;
    this.url = `http://127.0.0.1:${http}`;
    this.gateway = this.spawn("gateway", "gpu-gateway", ["serve", "--keda-listen", `127.0.0.1:${keda}`, "--agent-listen", `127.0.0.1:${agents}`,
      "--http-listen", `127.0.0.1:${http}`, "--directory", `file:${this.file("directory.yaml")}`, ...flags]);
    await eventually("the gateway lives", async () => (await fetch(`${this.url}/healthz`)).ok);
  }

  async kill(child) {
    if (child.exitCode !== null || child.signalCode !== null) return;
    const gone = once(child, "exit");
    child.kill("SIGTERM");
    const timer = setTimeout(() => child.kill("SIGKILL"), 15_000);
    await gone;
    clearTimeout(timer);
  }

  /** An agent that replays what `say` appends. */
  agent(node, devices, engines = []) {
    this.say(node, devices, engines);
    return this.spawn(`agent-${node}`, "gpu-agent", ["run", "--gateway", `http://127.0.0.1:${this.ports[1]}`, "--node", node,
      "--source", `replay:${this.file(`${node}.jsonl`)}`, "--interval", "500ms", "--engine-interval", "500ms"]);
  }

  /** Appends one line to a node's recording: it is due a little after the one before. */
  say(node, devices, engines = []) {
    const at = (this.lines.get(node) ?? -100) + 100;
    this.lines.set(node, at);
    fs.appendFileSync(this.file(`${node}.jsonl`), `${JSON.stringify({ at_ms: at, devices, engines })}\n`);
  }

  /** An agent with simulated devices. */
  simulate(node, spec) {
    return this.spawn(`agent-${node}`, "gpu-agent", ["run", "--gateway", `http://127.0.0.1:${this.ports[1]}`, "--node", node, "--source", `sim:${spec}`]);
  }

  async stop() {
    await Promise.all(this.children.map((child) => this.kill(child)));
    fs.rmSync(this.folder, { recursive: true, force: true });
  }

  logs() {
    return fs.readdirSync(this.folder).filter((name) => name.endsWith(".log")).map((name) => `--- ${name}\n${fs.readFileSync(this.file(name), "utf8").split("\n").slice(-12).join("\n")}`).join("\n");
  }
}
