#!/usr/bin/env python3
"""Writes the Grafana dashboards of the chart; with --check, says whether they are what would be written.

Every replica of the gateway exports its view of the whole cluster. So what is said of nodes, devices, workloads and triggers is
`max by (its labels)` over replicas before anything is added up; only a replica's own traffic is shown by `instance`.
"""

import json
import string
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "helm/keda-gpu-gateway/dashboards"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

NODE, DEVICE, MODEL = "node", "node, gpu_uuid", "model"
WORKLOAD = "namespace, kind, workload"
TRIGGER = "namespace, scaledobject, trigger, metric"
IN_WORKLOAD = '{namespace="$namespace", workload="$workload"}'
IN_OBJECT = '{namespace="$namespace", scaledobject="$scaledobject"}'


def of(labels, series, where=""):
    """What any replica says of something, once."""
    return f"max by ({labels}) (gpu_gateway_{series}{where})"


def rate(labels, counter, where=""):
    """How fast a counter that every replica keeps grows, a second."""
    return f"max by ({labels}) (rate(gpu_gateway_{counter}{where}[$__rate_interval]))"


def own(labels, counter):
    """How fast all replicas together count of their own traffic."""
    return f"sum by ({labels}) (rate(gpu_gateway_{counter}[$__rate_interval]))"


# --- Panels ---


def panel(kind, title, queries, unit, width, height, help, **more):
    """`queries` is an expression, or a list of (expression, legend)."""
    if isinstance(queries, str):
        queries = [(queries, "__auto")]
    targets = [
        {"refId": ref, "datasource": SOURCE, "expr": expr, "legendFormat": legend}
        for ref, (expr, legend) in zip(string.ascii_uppercase, queries)
    ]
    defaults = {"unit": unit, **more.pop("defaults", {})}
    return {
        "type": kind,
        "title": title,
        "description": help,
        "datasource": SOURCE,
        "gridPos": {"w": width, "h": height},
        "fieldConfig": {"defaults": defaults, "overrides": more.pop("overrides", [])},
        "options": more.pop("options", {}),
        "targets": targets,
        **more,
    }


def steps(*colors):
    """Thresholds: a color, then pairs of a value and the color from there on."""
    first, *rest = colors
    return {"mode": "absolute", "steps": [{"color": first, "value": None}, *({"color": c, "value": v} for v, c in rest)]}


def stat(title, expr, unit="short", width=4, help="", thresholds=None):
    defaults = {"thresholds": thresholds or steps("text")}
    options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
    return panel("stat", title, expr, unit, width, 4, help, defaults=defaults, options=options)


def graph(title, queries, unit="short", width=12, help="", stacked=False, stepped=False, most=None, dashed=None):
    custom = {"fillOpacity": 10, "showPoints": "never", "spanNulls": False}
    if stacked:
        custom |= {"stacking": {"mode": "normal"}, "fillOpacity": 40}
    if stepped:
        custom |= {"lineInterpolation": "stepAfter"}
    defaults = {"custom": custom, "min": 0, **({"max": most} if most else {})}
    line = {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 8]}}
    overrides = [{"matcher": {"id": "byName", "options": dashed}, "properties": [line]}] if dashed else []
    options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    return panel("timeseries", title, queries, unit, width, 8, help, defaults=defaults, overrides=overrides, options=options)


def states(title, expr, legend, on, off, width=24, help=""):
    """0 and 1 over time; `on` and `off` are a word and a color each."""
    mappings = [
        {"type": "value", "options": {str(value): {"text": text, "color": color} for value, (text, color) in enumerate((off, on))}}
    ]
    options = {"showValue": "never", "legend": {"displayMode": "list", "placement": "bottom"}}
    return panel(
        "state-timeline", title, [(expr, legend)], "short", width, 6, help, defaults={"mappings": mappings}, options=options
    )


def table(title, expr, unit="short", width=12, help="", name="Value"):
    """One row a series, largest first."""
    columns = {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": {"Value": name}}}
    made = panel(
        "table",
        title,
        expr,
        unit,
        width,
        8,
        help,
        options={"sortBy": [{"displayName": name, "desc": True}]},
        transformations=[columns],
    )
    for target in made["targets"]:
        target |= {"format": "table", "instant": True}
    return made


def row(title):
    return {"type": "row", "title": title, "collapsed": False, "gridPos": {"w": 24, "h": 1}, "panels": []}


# --- Dashboards ---


def variable(name, query):
    return {
        "name": name,
        "label": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
    }


def event(name, expr, text, color):
    return {
        "name": name,
        "datasource": SOURCE,
        "enable": True,
        "expr": expr,
        "titleFormat": name,
        "textFormat": text,
        "iconColor": color,
        "step": "30s",
    }


def dashboard(uid, title, about, panels, variables=(), events=()):
    x = y = tallest = 0
    for number, each in enumerate(panels, start=1):
        place = each["gridPos"]
        if x + place["w"] > 24:
            x, y, tallest = 0, y + tallest, 0
        each["id"] = number
        place |= {"x": x, "y": y}
        x, tallest = x + place["w"], max(tallest, place["h"])
    source = {"name": "datasource", "label": "datasource", "type": "datasource", "query": "prometheus"}
    others = [
        ("gpu-gateway-fleet", "Fleet"),
        ("gpu-gateway-workload", "Workload"),
        ("gpu-gateway-scaler", "Scaler health"),
        ("gpu-gateway-energy", "Energy and idle"),
    ]
    return {
        "uid": uid,
        "title": f"GPU gateway / {title}",
        "description": about,
        "tags": ["gpu", "keda"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "",
        "links": [
            {"title": name, "type": "link", "url": f"/d/{other}", "keepTime": True} for other, name in others if other != uid
        ],
        "templating": {"list": [source, *variables]},
        "annotations": {"list": list(events)},
        "panels": panels,
    }


GOOD_AT_ONE = steps("red", (1, "green"))
BAD_ABOVE_ZERO = steps("green", (1, "red"))
# increase() does not see the first, because it makes the series.
SINCE_START = "Since the oldest gateway replica started."


def fleet():
    return dashboard(
        "gpu-gateway-fleet",
        "Fleet",
        "Every GPU of the cluster: how many, how busy, how well.",
        [
            stat("Nodes", f"count({of(NODE, 'node_devices')})"),
            stat("GPUs and MIG instances", f"sum({of(NODE, 'node_devices')})"),
            stat("Free", f"sum({of(MODEL, 'gpus_free')})", help="Nobody holds them, and they are fresh and well."),
            stat(
                "Silent nodes", "count(min by (node) (gpu_gateway_node_age_seconds) > 60) or vector(0)", thresholds=BAD_ABOVE_ZERO
            ),
            stat("Lost GPUs", f"sum({of(DEVICE, 'device_lost')})", thresholds=BAD_ABOVE_ZERO),
            stat("Claimed by two nodes", "max(gpu_gateway_device_conflicts)", thresholds=BAD_ABOVE_ZERO),
            row("Load"),
            graph("Utilisation by GPU", [(of(DEVICE, "device_utilization_ratio"), "{{node}} {{gpu_uuid}}")], "percentunit", most=1),
            graph(
                "Mean utilisation by node",
                [(f"avg by (node) ({of(DEVICE, 'device_utilization_ratio')})", "{{node}}")],
                "percentunit",
                most=1,
            ),
            graph("Memory in use", [(of(DEVICE, "device_memory_used_bytes"), "{{node}} {{gpu_uuid}}")], "bytes"),
            graph("Free GPUs by model", [(of(MODEL, "gpus_free"), "{{model}}")], stepped=True),
            graph(
                "Load that no holder has",
                [(of(DEVICE, "device_unattributed_ratio") + " > 0", "{{node}} {{gpu_uuid}}")],
                "percentunit",
                most=1,
                help="Processes outside pods, or pods whose share is not known.",
            ),
            graph(
                "Containers whose part is a guess, or that were not given the GPU",
                [
                    (of(NODE, "node_estimated_holders") + " > 0", "{{node}} guessed"),
                    (of(NODE, "node_undeclared_holders") + " > 0", "{{node}} undeclared"),
                ],
                stepped=True,
            ),
            row("Health"),
            graph("Temperature", [(of(DEVICE, "device_temperature_celsius"), "{{node}} {{gpu_uuid}}")], "celsius"),
            graph(
                "Held below the clock",
                [(of(DEVICE, "device_throttled_ratio"), "{{node}} {{gpu_uuid}}")],
                "percentunit",
                most=1,
                help="By power, heat or a slower neighbour: share of time.",
            ),
            table("XID errors", of(DEVICE + ", xid", "device_xid_errors_total") + " > 0", help=SINCE_START, name="errors"),
            table(
                "Uncorrected ECC errors",
                of(DEVICE, "device_ecc_uncorrected_errors_total") + " > 0",
                help=SINCE_START,
                name="errors",
            ),
            table("The driver asks for", of("node, gpu_uuid, action", "device_recovery_action") + " > 0", name="asked for"),
            table("Readings that fail", of(DEVICE, "device_failed_readings") + " > 0", name="metrics"),
            graph("Time since a node's last word", [("min by (node) (gpu_gateway_node_age_seconds)", "{{node}}")], "s", width=24),
        ],
    )


def workload():
    value, target = (of(TRIGGER, f"trigger_{what}", IN_OBJECT) for what in ("value", "target"))
    replicas = of("namespace, scaledobject", "trigger_replicas", IN_OBJECT)
    more = f"delta({replicas}[1m:15s])"
    engines = lambda what: of(WORKLOAD, f"workload_{what}", IN_WORKLOAD)
    return dashboard(
        "gpu-gateway-workload",
        "Workload",
        "One ScaledObject: what is asked of it, what its engines do, which pods are ready, and what was decided.",
        [
            stat("Replicas ordered", replicas),
            stat("Pods ready", engines("pods_ready")),
            stat("Pods without a place", engines("pods_unscheduled"), thresholds=BAD_ABOVE_ZERO),
            stat("Requests waiting", engines("requests_waiting")),
            stat(
                "Engines not read",
                engines("engine_pods_unread"),
                thresholds=BAD_ABOVE_ZERO,
                help="What engines say below is without these pods.",
            ),
            stat(
                "Asleep and deaf",
                f"min by (namespace, scaledobject) ({of(TRIGGER, 'trigger_asleep_and_deaf', IN_OBJECT)})",
                thresholds=BAD_ABOVE_ZERO,
            ),
            row("Requests"),
            graph(
                "Queue",
                [
                    (engines("requests_waiting"), "waiting"),
                    (engines("requests_running"), "running"),
                    (of(TRIGGER, "trigger_demand", IN_OBJECT), "demand while no pod is ready ({{metric}})"),
                ],
            ),
            graph("Tokens", [(engines("tokens_per_second"), "tokens a second")], "short"),
            graph("Time to the first token", [(engines("time_to_first_token_seconds"), "mean over pods")], "s"),
            graph("Requests finished", [(engines("requests_per_second"), "requests a second")], "reqps"),
            row("Pods"),
            graph(
                "Replicas and ready pods",
                [(replicas, "ordered"), (engines("pods_ready"), "ready"), (engines("pods_unscheduled"), "without a place")],
                stepped=True,
                dashed="ordered",
                help="Marks are scale events.",
            ),
            graph(
                "Pods by what is known of them",
                [(of(TRIGGER + ", state", "trigger_pods", IN_OBJECT), "{{state}} ({{metric}})")],
                stepped=True,
            ),
            row("Decision"),
            graph(
                "Value against target",
                [(f"{value} / on ({TRIGGER}) {target}", "replicas that {{metric}} wants"), (replicas, "ordered")],
                dashed="ordered",
                help="Value by target is what the HPA would order under AverageValue, before its tolerance, limits and policies.",
            ),
            graph("Value", [(value, "{{metric}}"), (target, "{{metric}} target of a replica")]),
            states(
                "Active",
                of(TRIGGER, "trigger_active", IN_OBJECT),
                "{{metric}}",
                ("active", "green"),
                ("inactive", "text"),
                width=12,
            ),
            states(
                "Has a value", of(TRIGGER, "trigger_up", IN_OBJECT), "{{metric}}", ("value", "green"), ("error", "red"), width=12
            ),
            row("Cost of a start"),
            graph(
                "Time to start", [(of(WORKLOAD + ", step, quantile", "startup_seconds", IN_WORKLOAD), "{{step}} {{quantile}}")], "s"
            ),
            graph("KV cache in use", [(engines("kv_cache_usage_ratio"), "mean over pods")], "percentunit", most=1),
        ],
        variables=[
            variable("namespace", "label_values(gpu_gateway_scaledobject_info, namespace)"),
            variable("scaledobject", 'label_values(gpu_gateway_scaledobject_info{namespace="$namespace"}, scaledobject)'),
            variable(
                "workload",
                'label_values(gpu_gateway_scaledobject_info{namespace="$namespace", scaledobject="$scaledobject"}, workload)',
            ),
        ],
        events=[
            event("Scaled out", f"{more} > 0", "{{scaledobject}}", "green"),
            event("Scaled in", f"{more} < 0", "{{scaledobject}}", "orange"),
        ],
    )


def scaler():
    seconds = "sum by (le, method) (rate(gpu_gateway_rpc_duration_seconds_bucket[$__rate_interval]))"
    return dashboard(
        "gpu-gateway-scaler",
        "Scaler health",
        "Whether KEDA gets answers, how fast, and what the gateway hears.",
        [
            stat("Replicas ready", "sum(gpu_gateway_ready)", thresholds=GOOD_AT_ONE),
            stat("Agent streams", "sum(gpu_gateway_agent_sessions)"),
            stat("Triggers without a value", f"count({of(TRIGGER, 'trigger_up')} == 0) or vector(0)", thresholds=BAD_ABOVE_ZERO),
            stat("Asleep and deaf", f"sum({of(TRIGGER, 'trigger_asleep_and_deaf')})", thresholds=BAD_ABOVE_ZERO),
            stat("Directory age", "max(gpu_gateway_directory_age_seconds)", "s", thresholds=steps("green", (60, "red"))),
            stat(
                "Certificate ends in",
                "min(gpu_gateway_certificate_expiry_timestamp_seconds - time())",
                "s",
                thresholds=steps("red", (604800, "green")),
            ),
            row("KEDA"),
            graph("Calls", [(own("method, code", "rpc_duration_seconds_count"), "{{method}} {{code}}")], "reqps", stacked=True),
            graph(
                "Time to answer",
                [
                    (f"histogram_quantile(0.5, {seconds})", "{{method}} median"),
                    (f"histogram_quantile(0.99, {seconds})", "{{method}} 99th percentile"),
                ],
                "s",
            ),
            graph("Streams open", [("sum by (instance, method) (gpu_gateway_rpc_streams)", "{{instance}} {{method}}")]),
            graph(
                "Activations an hour",
                [
                    (
                        "max by (namespace, scaledobject, trigger, metric) (increase(gpu_gateway_trigger_activations_total[1h])) > 0",
                        "{{namespace}}/{{scaledobject}} {{metric}}",
                    )
                ],
            ),
            graph(
                "Decisions that changed, an hour",
                [
                    (
                        "max by (namespace, scaledobject) (increase(gpu_gateway_trigger_changes_total[1h])) > 0",
                        "{{namespace}}/{{scaledobject}}",
                    )
                ],
            ),
            states(
                "Triggers with a value",
                of(TRIGGER, "trigger_up"),
                "{{namespace}}/{{scaledobject}} {{metric}}",
                ("value", "green"),
                ("error", "red"),
                width=12,
            ),
            row("Agents"),
            graph("Streams by replica", [("sum by (instance) (gpu_gateway_agent_sessions)", "{{instance}}")]),
            graph(
                "Messages",
                [("sum by (instance) (rate(gpu_gateway_uplink_messages_total[$__rate_interval]))", "{{instance}}")],
                "mps",
            ),
            graph(
                "Messages and elements refused, messages slowed",
                [
                    (own("what", "uplink_refused_total"), "refused: {{what}}"),
                    ("sum(rate(gpu_gateway_uplink_slowed_total[$__rate_interval]))", "slowed"),
                ],
                "mps",
            ),
            graph(
                "Pods without readings",
                [
                    (
                        of(TRIGGER + ", state", "trigger_pods", '{state="missing"}') + " > 0",
                        "{{namespace}}/{{scaledobject}} {{metric}}",
                    )
                ],
                stepped=True,
            ),
            row("Demand"),
            graph("Looks at pages of demand", [(own("result", "demand_polls_total"), "{{result}}")], "reqps"),
            graph("Demand of what is at zero", [(of(TRIGGER, "trigger_demand"), "{{namespace}}/{{scaledobject}} {{metric}}")]),
            row("The process"),
            graph("Connections", [("sum by (instance, port) (gpu_gateway_connections)", "{{instance}} {{port}}")]),
            graph(
                "Turned away",
                [
                    (own("port, why", "connections_refused_total"), "{{port}} {{why}}"),
                    (own("port, reason", "peers_refused_total"), "{{port}} {{reason}}"),
                    (own("part", "calls_shed_total"), "{{part}} too busy"),
                ],
                "cps",
            ),
            table("Panics of the day", "sum by (part, instance) (increase(gpu_gateway_panics_total[1d])) > 0", name="panics"),
            table("Versions", "count by (version) (gpu_gateway_build_info)", name="replicas"),
        ],
    )


def energy():
    watts = rate(WORKLOAD, "workload_energy_joules_total")
    day = lambda what: f"max by ({WORKLOAD}) (increase(gpu_gateway_workload_{what}_total[1d])) / 3600"
    idle = of(DEVICE + ", namespace, pod", "device_idle_seconds")
    return dashboard(
        "gpu-gateway-energy",
        "Energy and idle",
        "Who uses the power, who holds GPUs without using them, and what scaling to zero saves.",
        [
            stat("Power of all GPUs", f"sum({of(DEVICE, 'device_power_watts')})", "watt"),
            stat("Of workloads", f"sum({watts})", "watt"),
            stat("Energy of the day", "sum(max by (node) (increase(gpu_gateway_node_energy_joules_total[1d])))", "joule"),
            stat(
                "Energy of nobody, of the day",
                "sum(max by (node) (increase(gpu_gateway_node_energy_unattributed_joules_total[1d])))",
                "joule",
            ),
            stat(
                "GPUs held and idle",
                f"count({idle} > 600) or vector(0)",
                help="For more than ten minutes.",
                thresholds=steps("green", (1, "orange")),
            ),
            stat("Free", f"sum({of(MODEL, 'gpus_free')})"),
            row("Energy"),
            graph("Power by workload", [(watts, "{{namespace}}/{{workload}}")], "watt", stacked=True),
            graph("Power by node", [(f"sum by (node) ({of(DEVICE, 'device_power_watts')})", "{{node}}")], "watt", stacked=True),
            table(
                "Energy by workload, of the day",
                f"max by ({WORKLOAD}) (increase(gpu_gateway_workload_energy_joules_total[1d]))",
                "joule",
                name="energy",
            ),
            graph(
                "Power that no workload has, by node",
                [(rate(NODE, "node_energy_unattributed_joules_total"), "{{node}}")],
                "watt",
                stacked=True,
            ),
            row("Use"),
            table("GPU hours held, of the day", day("gpu_held_seconds"), "h", name="held"),
            table("GPU hours busy, of the day", day("gpu_busy_seconds"), "h", name="busy"),
            graph(
                "Busy share of what is held",
                [
                    (
                        f"{rate(WORKLOAD, 'workload_gpu_busy_seconds_total')} / on ({WORKLOAD}) ({rate(WORKLOAD, 'workload_gpu_held_seconds_total')} > 0)",
                        "{{namespace}}/{{workload}}",
                    )
                ],
                "percentunit",
                most=1,
            ),
            table("GPU hours not held thanks to scaling to zero, of the day", day("gpu_not_held_seconds"), "h", name="not held"),
            row("Idle"),
            table("Held and idle now", f"{idle} > 0", "s", width=24, name="idle for"),
        ],
    )


def main():
    stale = []
    for made in (fleet(), workload(), scaler(), energy()):
        file = FOLDER / f"{made['uid'].removeprefix('gpu-gateway-')}.json"
        text = json.dumps(made, indent=2, ensure_ascii=False) + "\n"
        if "--check" not in sys.argv:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            stale.append(file.name)
    if stale:
        sys.exit(f"stale: {', '.join(stale)}; run deploy/dashboards.py")


if __name__ == "__main__":
    main()
