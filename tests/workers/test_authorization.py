"""Decisions of the authorization, without a broker, over a real catalogue."""
import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto import responses
from geminga.proto.commands import CONSUME, LOOKUP, PRODUCE, TABLE, T
from geminga.proto.names import parse
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.workers.identity import authorization as authorization_module
from geminga.workers.identity.authentication import OURSELVES, Identity
from geminga.workers.identity.authorization import (
    ACTIONS,
    ADMINISTER,
    GRANTED,
    REPLICATE,
    Authorization,
)
from geminga.workers.identity.options import AuthorizationOptions

TOPIC = parse("persistent://acme/eu/orders")
PARTITION = TOPIC.partition_name(3)
OTHER = parse("persistent://acme/eu/others")
RESOURCES = ("", "acme", "acme/eu", "acme/us", "beta", "beta/eu", TOPIC, PARTITION, OTHER)


@pytest.fixture
def catalogue(tmp_path):
    made = open_catalogue(tmp_path / "catalogue.sqlite")
    yield made
    made.close()


@pytest.fixture
def made(catalogue):
    """made(options): an authorization that decides by the test's catalogue."""
    return lambda **options: Authorization(AuthorizationOptions(enabled=True, super_user_roles=("admin",), **options),
                                           catalogue)


def allowed(authorization, role, *, proxy="", subscription=""):
    """Return {(action, resource)} of everything that the role may do."""
    identity = Identity(role, proxy=proxy)
    return {(action, resource) for action in ACTIONS for resource in RESOURCES
            if authorization.allows(identity, action, resource, subscription if action == CONSUME else "")}


EVERYTHING = set(itertools.product(ACTIONS, RESOURCES))
OF_ACME = {(action, resource) for action, resource in EVERYTHING if resource not in ("", "beta", "beta/eu")}


def test_nobody_may_do_anything_unasked(made):
    assert allowed(made(), "somebody") == set()
    assert allowed(made(), "") == set()


def test_super_users_and_the_broker_itself_may_do_everything(made):
    assert allowed(made(), "admin") == EVERYTHING
    assert all(made().allows(OURSELVES, action, resource) for action, resource in EVERYTHING)


def test_where_it_is_off_everybody_may_do_everything(catalogue):
    authorization = Authorization(AuthorizationOptions(), catalogue)
    assert allowed(authorization, "") == EVERYTHING


def test_administrators_of_a_tenant_may_do_everything_there(made, catalogue):
    catalogue.policies.set("acme", "adminRoles", ["ops"])
    assert allowed(made(), "ops") == OF_ACME


@pytest.mark.parametrize(("scope", "of"),
                         [("acme/eu", {"acme/eu", TOPIC, PARTITION, OTHER}), (str(TOPIC), {TOPIC, PARTITION}),
                                           (str(PARTITION), {PARTITION})])
@pytest.mark.parametrize("action", GRANTED)
def test_a_grant_holds_for_what_it_was_made_for(made, catalogue, scope, of, action):
    """A namespace's grant holds for its topics, a partitioned topic's for its partitions; neither lets a role
    administer.
    """
    catalogue.policies.set(scope, "permissions", {"svc": [action], "other": []})
    expected = {action} | ({LOOKUP} if action in (PRODUCE, CONSUME) else set())
    assert allowed(made(), "svc") == set(itertools.product(expected, of))
    assert allowed(made(), "other") == set()


def test_names_of_replicators_are_for_roles_that_are_configured_and_may_produce(made, catalogue):
    """A grant alone is not enough, nor is being configured alone."""
    catalogue.policies.set("acme", "adminRoles", ["ops"])
    catalogue.policies.set(str(TOPIC), "permissions", {"svc": list(GRANTED), "far": [PRODUCE], "proxy": [PRODUCE]})
    authorization = made(replicator_roles=("far", "proxy", "stranger"))
    roles = "svc", "far", "stranger", "ops", "admin", ""
    may = {(role, resource) for role in roles for resource in (PARTITION, OTHER)
           if authorization.allows(Identity(role), REPLICATE, resource)}
    assert may == {("far", PARTITION), *itertools.product(("ops", "admin"), (PARTITION, OTHER))}
    assert authorization.allows(Identity("far", proxy="proxy"), REPLICATE, TOPIC)
    assert not made(replicator_roles=("far",)).allows(Identity("far", proxy="proxy"), REPLICATE, TOPIC)
    assert "replicator" in authorization.decide(Identity("svc"), REPLICATE, TOPIC).told


def test_replication_cursors_are_for_administrators(made, catalogue):
    """Whoever acknowledges the cursor's entries decides what the other cluster never gets."""
    catalogue.policies.set("acme", "adminRoles", ["ops"])
    catalogue.policies.set("acme/eu", "permissions", {"svc": list(GRANTED)})
    for resource in (TOPIC, "acme/eu"):
        may = {role for role in ("svc", "ops", "admin")
               if made().allows(Identity(role), CONSUME, resource, "pulsar.repl.far")}
        assert may == {"ops", "admin"}
    assert made().allows(Identity("svc"), CONSUME, TOPIC, "pulsar.report")


@pytest.mark.parametrize(("holder", "role", "matches"), [
    ("svc*", "svx", False), ("*svc", "xvc", False),
    ("svc*", "svc-1", True), ("svc*", "svc", True), ("svc*", "my-svc", False), ("*svc", "my-svc", True),
    ("*svc", "svc-1", False),
    ("*", "anybody", True), ("s*c", "svc", False), ("svc", "svc-1", False), ("", "svc", False), ("*vc*", "svc", False)])
def test_wildcards_stand_at_the_end_or_at_the_beginning_of_roles(made, catalogue, holder, role, matches):
    catalogue.policies.set("acme/eu", "permissions", {holder: [PRODUCE]})
    # wildcards that are not switched on are ordinary characters
    assert not made().allows(Identity(role), PRODUCE, TOPIC)
    assert made(wildcards=True).allows(Identity(role), PRODUCE, TOPIC) == matches


def test_a_subscription_may_be_for_certain_roles(made, catalogue):
    catalogue.policies.set("acme", "adminRoles", ["ops"])
    catalogue.policies.set("acme/eu", "permissions", {"svc": [CONSUME], "auditor": [CONSUME]})
    catalogue.policies.set("acme/eu", "subscriptionPermissions", {"audit": ["auditor", "stranger"]})
    may = {(role, subscription) for role in ("svc", "auditor", "stranger", "ops", "admin")
           for subscription in ("audit", "billing", "")
           if made().allows(Identity(role), CONSUME, TOPIC, subscription)}
    assert may == {
        (role, subscription) for role in ("svc", "auditor", "ops", "admin") for subscription in ("audit", "billing", "")
    } - {("svc", "audit")}


def test_subscriptions_may_have_to_begin_with_the_role(made, catalogue):
    catalogue.policies.set("acme", "adminRoles", ["ops"])
    catalogue.policies.set("acme/eu", "permissions", {"svc": [CONSUME]})
    catalogue.policies.set("acme/eu", "subscriptionAuthMode", "Prefix")
    may = {(role, subscription) for role in ("svc", "ops", "admin")
           for subscription in ("svc", "svc-1", "my-svc", "billing")
           if made().allows(Identity(role), CONSUME, TOPIC, subscription)}
    assert may == {("svc", "svc"), ("svc", "svc-1")} | set(itertools.product(("ops", "admin"),
                                                                             ("svc", "svc-1", "my-svc", "billing")))
    refused = made().decide(Identity("svc"), CONSUME, TOPIC, "billing")
    assert "needs to be prefixed by the authentication role, like svc-xxxx" in refused.told
    assert made().allows(Identity("svc"), LOOKUP, TOPIC)


def test_on_behalf_of_others_both_must_be_allowed(made, catalogue):
    catalogue.policies.set("acme/eu", "permissions", {"svc": [PRODUCE], "proxy": [PRODUCE, CONSUME]})
    assert allowed(made(), "svc", proxy="proxy") == allowed(made(), "svc") == allowed(made(), "admin", proxy="svc")
    assert allowed(made(), "svc", proxy="nobody") == allowed(made(), "nobody", proxy="proxy") == set()
    assert "proxy" in made().decide(Identity("svc", proxy="nobody"), PRODUCE, TOPIC).why


def test_what_somebody_may_changes_at_once_and_is_not_asked_anew_before(catalogue, made, monkeypatch):
    authorization, svc = made(), Identity("svc")
    catalogue.namespaces.create("acme/eu")
    for grants, expected in (({"svc": [PRODUCE]}, True), ({"svc": [CONSUME]}, False), ({"svc": [PRODUCE]}, True),
                             (None, False)):
        before = authorization.version()
        catalogue.policies.set("acme/eu", "permissions", grants)
        assert authorization.version() > before
        assert authorization.allows(svc, PRODUCE, TOPIC) == expected
    monkeypatch.setattr(type(catalogue.policies), "of", None)
    before = authorization.version()
    catalogue.topics.create(TOPIC, 0)            # creating a topic changes no right
    assert authorization.version() == before
    assert not authorization.allows(svc, PRODUCE, TOPIC)


def test_why_is_told_in_words(made, catalogue):
    def why(role, action, resource, **more):
        return made(wildcards=True).decide(Identity(role), action, resource, **more).why

    catalogue.policies.set("acme", "adminRoles", ["ops"])
    catalogue.policies.set(str(TOPIC), "permissions", {"svc*": [PRODUCE]})
    assert why("admin", PRODUCE, TOPIC) == "admin is a super user"
    assert why("ops", ADMINISTER, "acme/eu") == "ops is an administrator of tenant acme"
    assert why("svc-1", PRODUCE, PARTITION) == f"produce on {TOPIC} is granted to svc*"
    assert (
        why("svc-1", CONSUME, TOPIC)
        == f"consume on {TOPIC} is not granted to 'svc-1', who is no administrator of tenant acme"
    )
    assert why("svc-1", ADMINISTER, "") == "'svc-1' is no super user"


# -- whatever is granted

ROLES = st.sampled_from(["a", "ab", "b", "admin"])
HOLDERS = st.sampled_from(["a", "ab", "b", "a*", "*b", "*"])
GRANTS = st.dictionaries(st.sampled_from(["acme/eu", "acme/us", str(TOPIC), str(PARTITION), str(OTHER)]),
                         st.dictionaries(HOLDERS, st.lists(st.sampled_from(GRANTED), max_size=3), max_size=3),
                         max_size=4)


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(GRANTS, st.sets(ROLES, max_size=2), ROLES, st.sampled_from(["", "a", "b"]), st.sampled_from(ACTIONS),
       st.sampled_from(RESOURCES), st.booleans())
def test_a_right_that_nobody_granted_is_never_given(catalogue, made, grants, admins, role, proxy, action, resource,
                                                    wildcards):
    """The simplest form of the rule: every allowed action has a grant."""
    catalogue.undo()
    catalogue.policies.set("acme", "adminRoles", sorted(admins - {"admin"}))
    for scope, holders in grants.items():
        catalogue.policies.set(scope, "permissions", holders)

    def has(one):
        if one == "admin":
            return True
        if str(resource).partition("/")[0] != "acme" and resource not in (TOPIC, PARTITION, OTHER):
            return False
        if one in admins:
            return True
        names = {one} if not wildcards else {one, "*"} | {one[:end] + "*" for end in range(len(one) + 1)} | {
            "*" + one[start:] for start in range(len(one) + 1)}
        scopes = {TOPIC: ["acme/eu", TOPIC], PARTITION: ["acme/eu", TOPIC, PARTITION], OTHER: ["acme/eu", OTHER]}.get(
            resource, [resource]
        )
        granted = {what for scope in scopes for holder, some in grants.get(str(scope), {}).items() if holder in names
                   for what in some}
        return action in granted or (action == LOOKUP and bool(granted & {PRODUCE, CONSUME}))

    assert made(wildcards=wildcards).allows(Identity(role, proxy=proxy), action, resource) == (
        has(role) and (not proxy or has(proxy))
    )


# -- commands

def test_a_command_that_names_a_topic_or_namespace_needs_a_right_to_it():
    """Other commands are about something of their own connection, or refused to everybody as END_TXN_ON_PARTITION is.

    A command that is added later needs a right, or this fails.
    """
    named = {kind for kind in TABLE if {"topic", "namespace"} & fields_of(kind).keys()}
    assert {kind for kind, row in TABLE.items() if row.right and row.denial} == named - {T.END_TXN_ON_PARTITION}


@pytest.mark.parametrize("kind", [kind for kind, row in TABLE.items() if row.right], ids=T.Name)
def test_a_command_without_its_right_is_answered_with_its_own_error(kind):
    request = {name: 1 if field.type != field.TYPE_STRING else "x" for name, field in fields_of(kind).items()
               if field.is_required and field.message_type is None}
    command = api.BaseCommand(type=kind, **{TABLE[kind].field: request})
    refused = responses.refusal(command, api.AuthorizationError, "no")
    (_, _), (_, answer) = api.BaseCommand.FromString(refused[8:]).ListFields()
    assert isinstance(answer, TABLE[kind].error) and getattr(answer, TABLE[kind].id_field) == 1
    assert api.AuthorizationError in [value for _, value in answer.ListFields()]


def fields_of(kind: int) -> dict:
    return dict(api.BaseCommand.DESCRIPTOR.fields_by_number[kind].message_type.fields_by_name)


def test_without_super_users_nobody_is_one(catalogue):
    authorization = Authorization(AuthorizationOptions(enabled=True), catalogue)
    assert allowed(authorization, "admin") == allowed(authorization, "") == set()


def test_administering_is_no_action_that_a_grant_could_give(made, catalogue):
    """A grant in the catalogue that names this action gives no right, however it came there."""
    catalogue.policies.set("acme/eu", "permissions", {"svc": [ADMINISTER, PRODUCE]})
    assert {action for action, _ in allowed(made(), "svc")} == {PRODUCE, LOOKUP}


def test_decisions_that_are_remembered_are_bounded(made, catalogue, monkeypatch):
    monkeypatch.setattr(authorization_module, "_DECISIONS_MAX", 10)
    authorization = made()
    for number in range(100):
        assert not authorization.allows(Identity(f"role {number}"), PRODUCE, TOPIC)
        assert authorization.allows(Identity("admin"), PRODUCE, TOPIC)
        assert len(authorization._decided) <= 11


# -- groups

@pytest.mark.parametrize(("scope", "policy", "value"), [
    ("acme/eu", "permissions", {"writers": [PRODUCE]}), (str(TOPIC), "permissions", {"writers": [CONSUME]}),
    ("acme", "adminRoles", ["writers"])])
def test_a_role_has_the_rights_of_its_groups(made, catalogue, scope, policy, value):
    catalogue.policies.set(scope, policy, value)

    def rights(role: str, *groups: str):
        identity = Identity(role, groups=groups)
        return {pair for pair in EVERYTHING if made().allows(identity, *pair)}
    assert rights("joe", "others", "writers") == rights("writers") != set()
    assert rights("joe", "others") == rights("joe") == set()


def test_a_group_may_be_a_super_user_and_one_that_replicates(made, catalogue):
    assert made().allows(Identity("joe", groups=("admin",)), ADMINISTER, "")
    catalogue.policies.set("acme/eu", "permissions", {"joe": [PRODUCE]})
    authorization = made(replicator_roles=("clusters",))
    assert authorization.allows(Identity("joe", groups=("clusters",)), REPLICATE, TOPIC)
    assert not authorization.allows(Identity("joe", groups=("others",)), REPLICATE, TOPIC)


def test_the_same_role_in_other_groups_is_decided_anew(made, catalogue):
    catalogue.policies.set("acme/eu", "permissions", {"writers": [PRODUCE], "w*": [CONSUME]})
    authorization = made(wildcards=True)
    for groups, is_allowed in ((), False), (("writers",), True), ((), False), (("w",), False), (("", "x"), False):
        assert authorization.allows(Identity("joe", groups=groups), PRODUCE, TOPIC) == is_allowed
    assert authorization.allows(Identity("joe", groups=("w",)), CONSUME, TOPIC)


def test_subscriptions_of_a_group(made, catalogue):
    catalogue.policies.set("acme/eu", "permissions", {"joe": [CONSUME]})
    catalogue.policies.set("acme/eu", "subscriptionPermissions", {"billing": ["readers"]})
    assert made().allows(Identity("joe", groups=("readers",)), CONSUME, TOPIC, "billing")
    decision = made().decide(Identity("joe", groups=("others",)), CONSUME, TOPIC, "billing")
    assert not decision.is_allowed and decision.why.endswith("is for other roles than 'joe' with its groups")


def test_a_proxy_needs_the_right_by_its_own_name(made, catalogue):
    """The groups are of the role on whose behalf it asks."""
    catalogue.policies.set("acme/eu", "permissions", {"writers": [PRODUCE]})
    identity = Identity("joe", proxy="proxy", groups=("writers",))
    assert not made().allows(identity, PRODUCE, TOPIC)
    catalogue.policies.set("acme/eu", "permissions", {"writers": [PRODUCE], "proxy": [PRODUCE]})
    assert made().allows(identity, PRODUCE, TOPIC)
