// A small cluster with something of everything: three nodes, six workloads, a queue that grows.

import { gpu } from "./stage.mjs";

const SCALER = { scalerAddress: "gpu-gateway.gpu-scaler:6000" };

function trigger(metadata) {
  return { type: "external-push", metadata: { ...SCALER, ...metadata } };
}

/** `{ namespace: "ai", pod: "vllm-0" }` and more of the kind. */
export function pod(name, more = {}) {
  return { namespace: "ai", pod: name, ...more };
}

function scaled(name, replicas, pods, metadata, more = {}) {
  const workload = { namespace: "ai", kind: "Deployment", name, replicas, pods };
  const object = { namespace: "ai", name, target: { kind: "Deployment", name }, minReplicas: 0, maxReplicas: 8, triggers: [trigger(metadata)], ...more };
  return [workload, object];
}

const READY = { ready: true, readyForSeconds: 600 };
const NO_PLACE = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.";

/** The directory; `stuck` pods of `ai/chat` wait for a GPU. */
export function directory(stage, stuck = 0) {
  const waiting = Array.from({ length: stuck }, (_, at) => ({ name: `chat-${2 + at}`, ready: false, unscheduled: NO_PLACE }));
  const parts = [
    scaled("chat", 2 + stuck, [{ name: "chat-0", node: "n1", ...READY }, { name: "chat-1", node: "n1", ...READY }, ...waiting],
      { metricType: "requests_waiting", targetValue: "5" }),
    scaled("vision", 1, [{ name: "vision-0", node: "n2", ...READY }], { metricType: "gpu_utilization", targetValue: "70" }),
    scaled("batch", 0, [], { metricType: "gpu_utilization", targetValue: "70" }),
    scaled("fresh", 2, [{ name: "fresh-0", node: "n2", ...READY }, { name: "fresh-1", node: "n3", ready: false }], { metricType: "gpu_utilization", targetValue: "60" }),
    scaled("late", 1, [{ name: "late-0", node: "n2", ready: false, ageSeconds: 7200, unreadyForSeconds: 7200 }], { metricType: "gpu_utilization", targetValue: "60" }),
    scaled("broken", 1, [], { agregation: "max" }),
  ];
  stage.directory(parts.map(([workload]) => workload), parts.map(([, object]) => object));
}

function engine(name, waiting, running) {
  return { namespace: "ai", pod: name, metrics: { requests_waiting: waiting, requests_running: running, token_throughput: running * 40, time_to_first_token_ms: 120 + waiting * 30, kv_cache_usage: 40 } };
}

/** What the nodes say; `waiting` requests queue in each pod of `ai/chat`. */
export const nodes = {
  n1: (waiting) => [
    [gpu("GPU-n1-0", 0, 96, [pod("chat-0")]), gpu("GPU-n1-1", 1, 91, [pod("chat-1")], { throttled_percent: 22, throttled_by: { heat: 22 }, temperature: 88, xid: { 79: 2 } }), gpu("GPU-n1-2", 2, 3, [{ ...pod("notebook-0"), namespace: "research" }])],
    [engine("chat-0", waiting, 8), engine("chat-1", waiting + 1, 8)],
  ],
  n2: () => [[gpu("GPU-n2-0", 0, 35, [pod("vision-0")]), gpu("GPU-n2-1", 1, 48, [pod("fresh-0", { share: 0.5 }), { ...pod("guest"), share: 0.5 }]), gpu("GPU-n2-2", 2, null, [])], []],
  n3: () => [[gpu("GPU-n3-0", 0, 0, [], { memory_used_mib: 4 }), gpu("GPU-n3-1", 1, 0, [], { memory_used_mib: 4, lost: true })], []],
};
