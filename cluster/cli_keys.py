"""`remora keys`: making keys, and checking the file they are written into."""

from __future__ import annotations

import time
from collections import Counter

from configs.keys import KEYS_VARIABLE, fingerprint, new_key, read_keys_file
from configs.load import check_name


def make_key(tenant: str, name: str, *, admin: bool) -> int:
    """Print a fresh key, and what is to be kept of it. Raises ConfigError for a name that cannot be one."""
    name = name or time.strftime("key-%Y%m%d")
    check_name(tenant, "--tenant")
    check_name(name, "--name")
    key = new_key()
    sha256 = fingerprint(key.encode())
    flag = ", admin: true" if admin else ""
    print(f"The key. It is shown once and stored nowhere:\n\n  {key}\n")
    print("A line for `keys:` in the keys file (`auth.keys_file`); a running server takes it up by itself:\n")
    print(f'  - {{name: "{name}", tenant: "{tenant}", sha256: "{sha256}"{flag}}}\n')
    print(f"Or an entry for the variable {KEYS_VARIABLE}, read when the server starts:\n")
    print(f"  {tenant}:{sha256}{':admin' if admin else ''}")
    return 0


def check_file(path: str) -> int:
    """Raises ConfigError, OSError."""
    file = read_keys_file(path)
    counts = Counter(entry.tenant for entry in file.keys)
    for tenant in sorted({*counts, *file.tenants}):
        limits = file.tenants.get(tenant)
        print(f"{tenant:<24}{counts[tenant]:>4} keys  {limits or 'no limits of its own'}")
    return 0
