"""Rendered objects against Kubernetes' schemas, and kinds of others against the small schemas in deploy/check/crds."""

import json

import jsonschema
import kubernetes_validate
import yaml

from . import render

CRDS = render.ROOT / "deploy/check/crds"


def crds():
    """The schemas of kinds that are not Kubernetes' own, by apiVersion and kind."""
    found = {}
    for path in CRDS.glob("*.json"):
        schema = json.loads(path.read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        kind = schema["properties"]["kind"]["const"]
        found[schema["properties"]["apiVersion"]["const"], kind] = jsonschema.Draft202012Validator(schema)
    return found


def problems(documents, version, known):
    """What is wrong with the objects, for a version of Kubernetes."""
    short = ".".join(version.lstrip("v").split(".")[:2])
    for document in documents:
        name = f"{document['kind']} {document['metadata']['name']}"
        custom = known.get((document["apiVersion"], document["kind"]))
        if custom:
            for error in custom.iter_errors(document):
                yield f"{name}: {error.json_path}: {error.message}"
            continue
        try:
            kubernetes_validate.validate(document, short, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            yield f"{name}: {error}"


def schema_problems():
    """What is wrong with values.schema.json itself: it must know every value and no other."""
    schema = json.loads((render.CHART / "values.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)

    nulls = yaml.safe_load((render.VALUES / "nulls.yaml").read_text())

    def walk(values, node, path, left_out):
        known = node.get("properties")
        if known is None:
            return
        if node.get("additionalProperties") is not False:
            yield f"values.schema.json: {path or '/'} takes any key"
        for key in sorted(set(values) ^ (set(known) - {"global"})):
            yield f"values.schema.json: {path}/{key} is in {'values.yaml' if key in values else 'the schema'} only"
        for key, child in values.items():
            # Or a template meets a value that is not there.
            if (key in node.get("required", [])) is (key in left_out and left_out[key] is None):
                yield f"values.schema.json: {path}/{key} is either required, or null in deploy/check/values/nulls.yaml"
            # An empty map is given by its user.
            if isinstance(child, dict) and child and key in known:
                yield from walk(child, known[key], f"{path}/{key}", left_out.get(key) or {})

    yield from walk(yaml.safe_load((render.CHART / "values.yaml").read_text()), schema, "", nulls)
