"""Options with which kafka-python logs in to the same cluster, made from librdkafka's options."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streamfl.contract.role import ConfigurationError
from streamfl_connectors.tokens import ENDPOINT_OPTIONS, PROVIDER

__all__ = ["FILES", "entrance", "tls_context"]

# The files of a login that a client of the library reads once, when it is made.
FILES = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.crl.location")

# librdkafka's options of the login, and kafka-python's names for them.
LOGIN = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    **{name.replace("_", "."): name for name in (*ENDPOINT_OPTIONS, PROVIDER)},
}


def entrance(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of kafka-python. ConfigurationError if the certificates or keys cannot be used."""
    dotted = {name.replace("_", "."): value for name, value in options.items()}
    found = {LOGIN[name]: value for name, value in dotted.items() if name in LOGIN}
    if isinstance(protocol := found.get("security_protocol"), str):
        found["security_protocol"] = protocol.upper()
        if found["security_protocol"].endswith("SSL"):
            try:
                found["ssl_context"] = tls_context(dotted, _Renewing)
                found["ssl_context"].options_given = dotted
            except (OSError, ValueError) as error:
                raise ConfigurationError(f"bus.options for certificates and keys: {error}") from error
    return found


class _Renewing(ssl.SSLContext):
    """Reads its files anew for each connection, as kafka-python does where it has files: a certificate that
    was renewed counts without a restart."""

    options_given: Mapping[str, Any]

    def wrap_socket(self, *arguments: Any, **named: Any) -> ssl.SSLSocket:
        return tls_context(self.options_given).wrap_socket(*arguments, **named)


def tls_context(options: Mapping[str, Any], kind: type[ssl.SSLContext] = ssl.SSLContext) -> ssl.SSLContext:
    """The context of a connection; OSError or ValueError if certificates and keys cannot be used."""
    context = kind(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = options.get("ssl.endpoint.identification.algorithm", "https") != "none"
    if str(options.get("enable.ssl.certificate.verification", True)).lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    location, content = options.get("ssl.ca.location"), options.get("ssl.ca.pem")
    if content is not None:
        context.load_verify_locations(cadata=content)
    elif location is None or location == "probe":
        context.load_default_certs()
    elif Path(location).is_dir():
        context.load_verify_locations(capath=location)
    else:
        context.load_verify_locations(cafile=location)
    if (revoked := options.get("ssl.crl.location")) is not None:
        context.load_verify_locations(cafile=revoked)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    # Without a password OpenSSL would ask for it at the terminal.
    password = options.get("ssl.key.password") or ""
    if (certificate := options.get("ssl.certificate.location")) is not None:
        context.load_cert_chain(certificate, options.get("ssl.key.location"), password)
    elif (certificate := options.get("ssl.certificate.pem")) is not None:
        # Python reads a certificate only from a file.
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(f"{certificate}\n{options.get('ssl.key.pem', '')}\n")
            file.flush()
            context.load_cert_chain(file.name, password=password)
    return context
