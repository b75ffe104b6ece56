"""Tokens for Amazon MSK with IAM: ``token_provider = "streamfl_connectors.msk_iam:token"``."""

from __future__ import annotations

import os
from importlib.util import find_spec

from streamfl.contract.role import ConfigurationError

__all__ = ["token"]


def token() -> tuple[str, float]:
    """A token signed with the credentials that AWS's own tools would use here, and when it expires.

    The region comes from AWS_REGION or AWS_DEFAULT_REGION. Credentials come from the environment, a profile,
    or the role of the container or machine. Signing needs no network; getting a role's credentials may.
    """
    if find_spec("aws_msk_iam_sasl_signer") is None:
        raise ConfigurationError(
            "the package 'aws-msk-iam-sasl-signer-python' is missing: pip install 'streamfl[msk-iam]'"
        )
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise ConfigurationError("set AWS_REGION to the region of the MSK cluster")
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

    try:
        text, milliseconds = MSKAuthTokenProvider.generate_auth_token(region)
    except AttributeError as error:
        # The signer raises it if there are no credentials.
        raise ConfigurationError(
            "no AWS credentials are found: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and its secret"
        ) from error
    return text, milliseconds / 1000
