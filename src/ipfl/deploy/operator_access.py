"""How operators reach the running server: Flower's connection profile, and the operator token.

The front asks for the token (`ipfl.deploy.server.front`). It is new at each start of the server, and in two
files of mode 0600: `operator.token`, which the front reads, and `flwr/credentials.yaml`, from which
Flower's own command `flwr` takes it. There it is called an OIDC access token, the only kind that `flwr`
sends; nothing of OIDC is used.
"""

from __future__ import annotations

import base64
import json
import secrets

from ipfl.deploy.credentials import write_private_file
from ipfl.deploy.federation_folder import ServerFolder, ServerSettings, write_profile

CREDENTIALS_FILE = "credentials.yaml"


def renew_operator_token(folder: ServerFolder, settings: ServerSettings) -> None:
    """Makes a new token and writes both files; the earlier token is worth nothing from then on."""
    write_profile(folder, settings)
    token = secrets.token_hex(32)
    folder.operator_token.unlink(missing_ok=True)
    write_private_file(folder.operator_token, token.encode() + b"\n")
    account = f"flower.account-auth.127.0.0.1:{settings.operator_port}"
    values = {"authn-type": "oidc", "oidc-access-token": token, "oidc-refresh-token": "none"}
    encoded = {f"{account}.{key}": base64.b64encode(value.encode()).decode() for key, value in values.items()}
    credentials = folder.flower_home / CREDENTIALS_FILE
    credentials.unlink(missing_ok=True)
    write_private_file(credentials, json.dumps(encoded).encode())  # JSON is YAML
