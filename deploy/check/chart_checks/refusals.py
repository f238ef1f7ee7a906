"""Bad values are refused, with a word that helps."""

import yaml

from . import render

LIST = render.ROOT / "deploy/check/bad-values.yaml"


def problems():
    """Which are not."""
    for bad in yaml.safe_load(LIST.read_text()):
        try:
            render.text([bad["values"]])
        except render.Refused as refused:
            said = str(refused).replace("/", ".")
            for word in bad["says"]:
                if word not in said:
                    yield f"{bad['values']}: {word!r} is not in: {refused}"
        else:
            yield f"{bad['values']} is not refused"


def count():
    """How many are tried."""
    return len(yaml.safe_load(LIST.read_text()))
