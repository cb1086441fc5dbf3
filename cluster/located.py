"""Where things are, in words that mean the same to every process: the model's vocabulary, the sessions' file."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

from actors.model.source import resolve, served_name
from cluster.store.open import sqlite_path
from cluster.store.urls import is_redis
from configs import RemoraConfig

APP_NAME = "remora"
"""The Serve application of `remora serve`; settings that share something mean this one."""


def model_name(config: RemoraConfig) -> str:
    """As /v1/models has it."""
    if config.model.served_name:
        return config.model.served_name
    return "toy" if config.workers.runner == "toy" else served_name(config.model.id)


def with_vocabulary(config: RemoraConfig) -> RemoraConfig:
    """Find or fetch the model, and say whose token ids the store will hold. Raises ModelError."""
    return replace(config, store=replace(config.store, vocabulary=vocabulary_of(config)))


def vocabulary_of(config: RemoraConfig) -> str:
    """A name for what token ids mean to this model: other weights with the same tokenizer may go on with its
    sessions. Raises ModelError."""
    if config.workers.runner == "toy":
        return "toy"
    folder = resolve(config.model.id, config.model.cache_dir)
    digest = hashlib.blake2b((folder.path / "tokenizer.json").read_bytes(), digest_size=4).hexdigest()
    return f"{model_name(config)} {digest}"


def with_store_file(config: RemoraConfig, application: str = APP_NAME) -> RemoraConfig:
    """Name the sessions' file by its absolute path; without any in the settings, it is one for this vocabulary and
    application. Raises StoreError for an URL that cannot be understood."""
    if is_redis(config.store.url):
        return config
    parts = ["sessions"]
    if config.store.vocabulary:
        parts.append(re.sub("[^A-Za-z0-9]+", "-", config.store.vocabulary))
    if application != APP_NAME:
        parts.append(_escaped(application))
    path = sqlite_path(config.store.url, default_name="-".join(parts))
    return replace(config, store=replace(config.store, url=f"sqlite:{path.absolute()}"))


def of_application(config: RemoraConfig, application: str) -> RemoraConfig:
    """The settings with a namespace of actors, and a prefix in Redis, that no other application of the Ray cluster
    has: however alike their settings, they can neither adopt each other's workers nor own each other's sessions."""
    if application == APP_NAME:
        return config
    namespace = application_namespace(config.cluster.namespace, application)
    prefix = f"{config.store.prefix}:{_escaped(application)}"
    return replace(
        config, cluster=replace(config.cluster, namespace=namespace), store=replace(config.store, prefix=prefix)
    )


def application_namespace(configured: str, application: str) -> str:
    """The namespace of an application's actors."""
    return configured if application == APP_NAME else f"{configured}:{_escaped(application)}"


def _escaped(name: str) -> str:
    """The name in letters, digits, `.`, `-` and `_`; different names stay different."""
    return re.sub("[^A-Za-z0-9.-]", lambda found: f"_{ord(found.group()):02x}", name)
