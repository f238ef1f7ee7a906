"""What must hold between the objects of a render, and between them and the programs."""

from . import release, trust, wiring

RULES = (
    wiring.flags_are_known, wiring.ports_fit, wiring.selectors_match, trust.only_the_right_ones_come_in, wiring.mounts_exist, trust.rights_are_those_of_the_code,
    release.images_are_the_releases, trust.accounts_have_what_they_need, trust.privileges_are_few, wiring.shutdown_fits, wiring.both_sides_agree,
    trust.certificate_has_every_name, trust.keda_is_told, wiring.labels_are_there,
)  # fmt: skip


def problems(it, except_for=()):
    """Everything that does not hold in a render; rules named in `except_for` are left out."""
    for rule in RULES:
        for problem in rule(it) if rule.__name__ not in except_for else ():
            yield f"{rule.__name__}: {problem}"
