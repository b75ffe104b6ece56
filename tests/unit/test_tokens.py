"""OAuth tokens: requested in time, kept while valid, and errors are reported."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from streamfl_connectors.kafka.cluster import KafkaCluster
from streamfl_connectors.librdkafka.cluster import LibrdkafkaCluster
from streamfl_connectors.librdkafka.entrance import entrance
from streamfl_connectors.msk_iam import token as msk_token
from streamfl_connectors.tokens import Token, Tokens, take_endpoint, take_provider
from token_issuer import issuing

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable

ENDPOINT = {
    "sasl_oauthbearer_token_endpoint_url": "http://127.0.0.1:1/token",
    "sasl_oauthbearer_client_id": "press-client",
    "sasl_oauthbearer_client_secret": "hush",
}


def own_token() -> tuple[str, float]:
    """The result of a user's own function."""
    return "of my own", 4e9


def broken_token() -> tuple[str, float]:
    """A function that fails."""
    raise RuntimeError("vault is sealed")


def test_a_token_is_asked_for_before_it_ends_and_kept_until_then() -> None:
    """Protects the endpoint from a request for each connection, and a connection from a token that is about
    to expire."""
    now, given = [1000.0], 0

    def fetch() -> Token:
        nonlocal given
        given += 1
        return Token(f"token {given}", now[0] + 100)

    tokens = Tokens(fetch, clock=lambda: now[0])
    assert [tokens.token().text for _ in range(3)] == ["token 1"] * 3
    now[0] += 74
    assert tokens.token().text == "token 1"
    now[0] += 2
    assert tokens.token().text == "token 2"


def test_a_clock_that_is_set_back_keeps_no_token_longer() -> None:
    """Protects a worker whose clock was ahead when it got its token: it would log in with that token for as
    long as the clock was ahead, and the broker refuse it."""
    now = [8200.0]
    tokens = Tokens(lambda: Token(f"token of {now[0]:.0f}", now[0] + 100), clock=lambda: now[0])
    assert tokens.token().text == "token of 8200"
    now[0] = 1000.0
    assert tokens.token().text == "token of 1000"
    now[0] = 1074.0
    assert tokens.token().text == "token of 1000"


def test_an_endpoint_that_is_away_is_not_noticed_while_the_token_is_good() -> None:
    """Protects a worker from every short outage of the single sign-on. Once the token has expired, the outage
    is reported."""
    now: list[float] = [1000.0]
    answers: list[Token | BusUnavailable] = [
        Token("good", 1100.0),
        BusUnavailable("away"),
        BusUnavailable("away"),
    ]

    def fetch() -> Token:
        answer = answers.pop(0)
        if isinstance(answer, BusUnavailable):
            raise answer
        return answer

    tokens = Tokens(fetch, clock=lambda: now[0])
    assert tokens.token().text == "good"
    now[0] = 1090.0
    assert tokens.token().text == "good"
    now[0] = 1101.0
    with pytest.raises(BusUnavailable, match="away"):
        tokens.token()


def test_a_token_that_is_over_already_points_at_the_clocks() -> None:
    """Protects from a search in the broker's log for the effect of a wrong clock."""
    with pytest.raises(ConfigurationError, match="expired 7 s ago: check the clocks"):
        Tokens(lambda: Token("late", 993.0), clock=lambda: 1000.0).token()


def test_the_endpoint_gives_tokens_and_its_refusals_do_not_show_the_secret() -> None:
    """Protects the secret. A wrong secret stops the start; an unreachable endpoint is waited for."""
    with issuing({"press-client": "hush"}) as issuer:
        options: dict[str, Any] = {**ENDPOINT, "sasl_oauthbearer_token_endpoint_url": f"{issuer.url}/token"}
        extended = {**options, "sasl_oauthbearer_extensions": "logicalCluster=lkc-1, identityPoolId=pool-1"}
        tokens = take_endpoint(extended)
        assert tokens is not None
        assert extended == {}
        assert tokens.token().text.count(".") == 2
        assert tokens.extensions == {"logicalCluster": "lkc-1", "identityPoolId": "pool-1"}
        wrong = take_endpoint({**options, "sasl_oauthbearer_client_secret": "not-hush"})
        assert wrong is not None
        with pytest.raises(ConfigurationError, match="401 invalid_client") as refused:
            wrong.token()
        assert "hush" not in str(refused.value)
        issuer.away = True
        away = take_endpoint(options)
        assert away is not None
        with pytest.raises(BusUnavailable, match="503 temporarily_unavailable"):
            away.token()
    nowhere = take_endpoint(dict(ENDPOINT))
    assert nowhere is not None
    with pytest.raises(BusUnavailable, match="refused"):
        nowhere.token()


def test_a_function_of_ones_own_gives_tokens() -> None:
    """Protects clouds with their own logins: a function's name is enough, and its failure is reported, not
    raised."""
    tokens = take_provider({"token_provider": f"{__name__}:own_token"})
    assert tokens is not None
    assert tokens.token() == Token("of my own", 4e9)
    broken = take_provider({"token_provider": f"{__name__}:broken_token"})
    assert broken is not None
    with pytest.raises(BusUnavailable, match="vault is sealed"):
        broken.token()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sasl_mechanism": "OAUTHBEARER"}, "OAUTHBEARER needs sasl_oauthbearer_token_endpoint_url"),
        ({**ENDPOINT, "sasl_mechanism": "PLAIN"}, "only have a meaning with sasl_mechanism = 'OAUTHBEARER'"),
        (
            {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_client_id": "x"},
            "token_endpoint_url is missing",
        ),
        ({**ENDPOINT, "sasl_oauthbearer_client_secret": 271828}, r"^(?!.*271828).*in double quotes"),
        ({**ENDPOINT, "sasl_oauthbearer_token_endpoint_url": "ftp://x"}, "begins with https"),
        ({**ENDPOINT, "sasl_oauthbearer_extensions": "nothing"}, "name=value"),
        ({"sasl_mechanism": "OAUTHBEARER", "token_provider": "nowhere"}, "module:attribute"),
        ({"sasl_mechanism": "OAUTHBEARER", "token_provider": "no_such_module:x"}, "cannot be loaded"),
    ],
)
def test_wrong_settings_for_tokens_name_the_key(options: dict[str, Any], message: str) -> None:
    """Protects the first start with both connectors: missing or wrong keys are named, and no secret is
    shown."""
    with pytest.raises(ConfigurationError, match=message):
        KafkaCluster("kafka://h:1", options)
    dotted = {
        (name if name == "token_provider" else name.replace("_", ".")): value
        for name, value in options.items()
    }
    with pytest.raises(ConfigurationError, match=message):
        LibrdkafkaCluster(["h:1"], dotted)


def test_kafka_pythons_own_option_for_tokens_is_not_for_files() -> None:
    """Protects from an option that only an object can fill."""
    with pytest.raises(ConfigurationError, match="set token_provider"):
        KafkaCluster("kafka://h:1", {"sasl_oauth_token_provider": "x"})


def test_librdkafka_may_get_its_tokens_by_itself() -> None:
    """Protects users of its other token methods: if its own method is named, its options are passed on."""
    dotted = {name.replace("_", "."): value for name, value in ENDPOINT.items()}
    options = {**dotted, "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc"}
    cluster = LibrdkafkaCluster(["h:1"], options)
    assert cluster.tokens is None
    assert cluster.options["sasl.oauthbearer.client.id"] == "press-client"
    assert entrance(options)["sasl_oauthbearer_client_id"] == "press-client"


def test_msk_tokens_are_signed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects workers on Amazon MSK: a token for the region, signed with the environment's credentials,
    without a network. Whether MSK accepts it cannot be tested here.
    """
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.delenv("AWS_REGION", raising=False)
    with pytest.raises(ConfigurationError, match="AWS_REGION"):
        msk_token()
    for name, value in {
        "REGION": "eu-central-1",
        "ACCESS_KEY_ID": "an-id",
        "SECRET_ACCESS_KEY": "hush",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    text, ends = msk_token()
    asked = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    assert asked.startswith("https://kafka.eu-central-1.amazonaws.com/?Action=kafka-cluster%3AConnect")
    assert "an-id" in asked
    assert "hush" not in asked
    assert ends > 1_700_000_000
