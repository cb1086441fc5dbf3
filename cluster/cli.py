"""The command `remora`: serve, chat, status, rollout, doctor, keys."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from cluster.client_key import key_header
from cluster.usage import UsageError
from configs import ConfigError, RemoraConfig, load

DEFAULT_URL_HOST = "127.0.0.1"


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    args = parser(os.environ).parse_args(argv)
    try:
        return int(args.run(args))
    except (UsageError, ConfigError) as error:
        print(f"remora: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"remora: {error.filename or ''}{': ' if error.filename else ''}{error.strerror or error}", file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:
        return 130


def parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """Flags win over the environment, which wins over the config file."""
    root = argparse.ArgumentParser(prog="remora", description="Sticky chat sessions on Ray.")
    root.add_argument("--version", action="version", version=f"remora {importlib.metadata.version('remora')}")
    commands = root.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="start a cluster and serve a model over HTTP")
    serve.add_argument("--config", default=environ.get("CONFIG"), help="YAML file of settings (env CONFIG)")
    serve.add_argument("--model", default=environ.get("MODEL"), help="hub id, folder or .gguf file (env MODEL)")
    serve.add_argument("--host", default=environ.get("HOST"), help="address to listen on (env HOST)")
    serve.add_argument("--port", default=environ.get("PORT"), help="port to listen on (env PORT)")
    serve.add_argument("--workers", default=environ.get("WORKERS"), help="number of model workers (env WORKERS)")
    serve.add_argument(
        "--set", action="append", default=[], metavar="PATH=VALUE", help="any setting, as in engine.kv_tokens=131072"
    )
    serve.set_defaults(run=_serve)
    url = environ.get("REMORA_URL") or f"http://{_reachable(environ.get('HOST'))}:{environ.get('PORT') or 8000}"
    chat = commands.add_parser("chat", help="chat in the terminal with a server that runs")
    chat.add_argument("--url", default=url, help="the server (env REMORA_URL, or HOST and PORT)")
    chat.add_argument("--system", default="", help="a system message to begin with")
    chat.add_argument("--max-tokens", type=int, default=512, help="longest reply")
    chat.add_argument("--temperature", type=float, default=0.0)
    chat.set_defaults(run=_chat)
    status = commands.add_parser("status", help="workers and sessions of a server that runs")
    status.add_argument("--url", default=url, help="the server (env REMORA_URL, or HOST and PORT)")
    status.set_defaults(run=_status)
    rollout = commands.add_parser("rollout", help="replace every worker of a server that runs, without an error")
    rollout.add_argument("--url", default=url, help="the server (env REMORA_URL, or HOST and PORT)")
    rollout.add_argument("--no-wait", action="store_true", help="return as soon as it has begun")
    rollout.set_defaults(run=_rollout)
    _add_doctor(commands, environ)
    _add_keys(commands)
    return root


def _add_doctor(commands: Any, environ: Mapping[str, str]) -> None:
    doctor = commands.add_parser("doctor", help="what this machine has, and what would serve a model on it")
    doctor.add_argument("models", nargs="*", metavar="MODEL", help="default: what is served")
    doctor.add_argument("--config", default=environ.get("CONFIG"), help="YAML file of settings (env CONFIG)")
    doctor.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="any setting, as for serve")
    doctor.add_argument("--json", action="store_true", help="the report as JSON")
    doctor.set_defaults(run=_doctor, model=environ.get("MODEL"), host=None, port=None, workers=None)


def _add_keys(commands: Any) -> None:
    keys = commands.add_parser("keys", help="API keys of the server").add_subparsers(required=True, metavar="COMMAND")
    new = keys.add_parser("new", help="make a key: it is shown once, and stored nowhere")
    new.add_argument("--tenant", required=True, help="whose sessions it opens")
    new.add_argument("--name", default="", help="what logs call it; default: one with the date")
    new.add_argument("--admin", action="store_true", help="may also read all stats and abort all requests")
    new.set_defaults(run=_new_key)
    check = keys.add_parser("check", help="read a keys file as the server would")
    check.add_argument("file")
    check.set_defaults(run=_check_keys)


def settings(args: argparse.Namespace) -> RemoraConfig:
    """The configuration that `remora serve` was asked for. Raises ConfigError, UsageError, OSError."""
    overrides: dict[str, object] = {}
    for assignment in args.set:
        path, equals, value = assignment.partition("=")
        if not equals or "." not in path:
            raise UsageError(f"--set {assignment}: expected SECTION.NAME=VALUE, as in engine.kv_tokens=131072")
        overrides[path] = _value(assignment, value)
    named = {"model.id": args.model, "ingress.host": args.host}
    overrides.update({path: text for path, text in named.items() if text})
    numbers = {"ingress.port": ("port", args.port), "workers.count": ("workers", args.workers)}
    for path, (name, text) in numbers.items():
        if text:
            overrides[path] = _number(name, text)
    return load(args.config or None, overrides)


def _value(assignment: str, text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        path = assignment.partition("=")[0]  # Not the value: it may be an URL with a password.
        raise UsageError(f"--set {path}: not a YAML value") from error


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{name}: {text!r} is not a whole number") from None


def _reachable(host: str | None) -> str:
    """Where a client finds a server that listens on `host`."""
    return DEFAULT_URL_HOST if not host or host in ("0.0.0.0", "::") else host


# Each command imports what it needs: `remora chat` does not wait for Ray.


def _serve(args: argparse.Namespace) -> int:
    from cluster.cli_serve import serve

    return serve(settings(args))


def _chat(args: argparse.Namespace) -> int:
    from cluster.terminal_chat import chat

    options: dict[str, Any] = {"max_tokens": args.max_tokens, "temperature": args.temperature}
    return chat(args.url, system=args.system, **options, headers=key_header(os.environ))


def _status(args: argparse.Namespace) -> int:
    from cluster.cli_status import show_status

    return show_status(args.url, headers=key_header(os.environ))


def _rollout(args: argparse.Namespace) -> int:
    from cluster.cli_rollout import roll_out

    return roll_out(args.url, wait=not args.no_wait, headers=key_header(os.environ))


def _doctor(args: argparse.Namespace) -> int:
    from cluster.cli_doctor import doctor

    return doctor(settings(args), args.models, as_json=args.json)


def _new_key(args: argparse.Namespace) -> int:
    from cluster.cli_keys import make_key

    return make_key(args.tenant, args.name, admin=args.admin)


def _check_keys(args: argparse.Namespace) -> int:
    from cluster.cli_keys import check_file

    return check_file(args.file)


if __name__ == "__main__":
    sys.exit(main())
