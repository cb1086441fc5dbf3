"""Deploy Remora on the Ray cluster that this runs on, and leave it running. Made for `ray job submit`:

    ray job submit --working-dir . -- python deploy/deploy.py --config deploy/cluster.yaml
    ray job submit --working-dir . -- python deploy/deploy.py --down

The job succeeds once every worker is ready. It fails when the application cannot start, with the cause in its log and
nothing left behind, and when one of that name is there already, which is left as it is.
"""

# ruff: noqa: E402, T201 - the path and the environment come first; a command line prints

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # A checkout; an installed wheel is found anyway.

from cluster import environment

environment.prepare()  # Ray reads it when it is imported.

import ray
from ray import serve

from actors.model.errors import ModelError
from cluster.app import build_app
from cluster.cli import settings
from cluster.cli_serve import await_workers
from cluster.located import APP_NAME, model_name, with_vocabulary
from cluster.ray_errors import cause_of
from cluster.usage import UsageError
from configs import ConfigError, RemoraConfig


class Failed(Exception):
    """Why the job fails, in one line."""


def main() -> int:
    args = arguments()
    ray.init(address="auto", log_to_driver=False)
    try:
        if args.down:
            print(down(args.name))
        else:
            print(up(settings(args), args.name, args.route_prefix))
    except (Failed, ConfigError, ModelError, UsageError, OSError) as error:
        print(f"deploy: {error}", file=sys.stderr)
        return 1
    return 0


def up(config: RemoraConfig, name: str, route_prefix: str) -> str:
    if name in serve.status().applications:
        raise Failed(f"{name} is deployed already: end it with --down, or give another --name and --route-prefix")
    application = build_app(with_vocabulary(config))
    # What of this is set by whoever starts Serve first in a cluster stays.
    serve.start(proxy_location="EveryNode", http_options={"host": config.ingress.host, "port": config.ingress.port})
    try:
        serve.run(application, name=name, route_prefix=route_prefix)
        workers = await_workers(config, name)
    except RuntimeError as error:
        serve.delete(name)
        raise Failed(cause_of(error)) from error
    return f"{name}: {model_name(config)} on {len(workers)} worker(s), path {route_prefix}"


def down(name: str) -> str:
    """End requests with reason `shutdown`, then workers and store. Sessions stay on the disk."""
    if name not in serve.status().applications:
        raise Failed(f"{name} is not deployed")
    serve.delete(name)
    return f"{name} has ended"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Deploy Remora on this Ray cluster and leave it running.")
    parser.add_argument("--name", default=APP_NAME, help="of the Serve application; one for each model")
    parser.add_argument("--route-prefix", default="/", help="the path it answers under, as in /small")
    parser.add_argument("--down", action="store_true", help="end the application instead")
    parser.add_argument("--config", help="YAML file of settings")
    parser.add_argument("--model", help="hub id, folder or .gguf file")
    parser.add_argument("--workers", help="number of model workers")
    parser.add_argument("--host", help="address that Serve's proxies listen on")
    parser.add_argument("--port", help="port that Serve's proxies listen on")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="any other setting")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
