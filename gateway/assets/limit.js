// What holds a workload back, in one sentence. Pure.

import { count, number } from "./format.js";

/** `now` has the names of a timeline entry; `before` is how long the queue was a minute ago. */
export function limit(now, before) {
  const queue = now.requestsWaiting;
  const known = queue !== null && queue !== undefined;
  const grows = known && before !== null && before !== undefined && queue > before + 1;
  const isWaiting = known && queue > 0;
  const subject = grows ? `The queue grows (${number(queue)} waiting)` : `${count(queue ?? 0, "request")} wait${queue === 1 ? "s" : ""}`;
  const starting = now.coverage?.starting ?? 0;
  const missing = now.coverage?.missing ?? 0;
  const stuck = now.coverage?.stuck ?? 0;
  const late = `${count(stuck, "pod")} stuck: not Ready for longer than coldStartTimeout.`;
  // Another trigger of the same ScaledObject may.
  if (now.deaf) return ["bad", `Asleep, and this trigger cannot wake it: ${now.deaf}.`];
  if (now.status && now.status !== "OK") {
    const error = "KEDA gets an error instead of a value, so the number of replicas stays as it is.";
    return ["bad", stuck > 0 ? `${late} ${error}` : error];
  }
  if (now.unscheduled > 0) {
    const free = now.gpusFree === 0 ? "no GPU is free in the cluster" : `${count(now.gpusFree ?? 0, "GPU")} free, but not for these pods`;
    const pods = `${count(now.unscheduled, "pod")} wait${now.unscheduled === 1 ? "s" : ""} for a place: ${free}`;
    return ["warn", isWaiting ? `${subject} while ${pods}. More replicas will not help until there is room.` : `${pods}.`];
  }
  if (stuck > 0) return ["warn", isWaiting ? `${subject}; ${late}` : late];
  if (starting > 0) {
    return ["note", isWaiting ? `${subject} while ${count(starting, "pod")} start${starting === 1 ? "s" : ""}.` : `${count(starting, "pod")} starting.`];
  }
  if (missing > 0) return ["warn", `${count(missing, "ready pod")} without a fresh reading: nothing moves that they could undo.`];
  if (now.clampedBy === "maxReplicaCount") {
    return ["warn", `${isWaiting ? `${subject} and the` : "The"} HPA would order more than maxReplicaCount allows.`];
  }
  if (isWaiting && now.desired !== null && now.desired === now.replicas) {
    return grows
      ? ["warn", `${subject} although all ${count(now.ready ?? 0, "pod")} are ready and the HPA orders no more: the target may be too high, or another metric tells more.`]
      : ["note", `${subject}; all ${count(now.ready ?? 0, "pod")} are ready.`];
  }
  if (isWaiting) return ["note", `${subject}; the HPA orders ${number(now.desired)} instead of ${number(now.replicas)}.`];
  return ["good", "Nothing waits."];
}
