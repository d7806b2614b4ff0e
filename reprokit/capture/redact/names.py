"""Names that give a secret away: of keys, options, variables and files.

They are read by their last words, since in this trade most tokens are no secrets: `pad_token`, `max_tokens` and
`token_drop_rate` stay.
"""

from __future__ import annotations

import re
from fnmatch import translate
from itertools import product
from os.path import basename

from reprokit.capture.redact.markers import is_marker

SECRET_FILES = (  # nothing but credentials: left out whole rather than cleaned
    *(".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".pypirc", ".npmrc", ".yarnrc.yml", ".htpasswd"),
    *(".git-credentials", ".pgpass", ".my.cnf", ".s3cfg", ".boto", ".dockercfg", ".vault-token", "kaggle.json"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.ppk"),
    *("*.kdbx", "*.ovpn", "kubeconfig", "*.kubeconfig", "*.tfstate", "*.tfvars"),
    *("credentials", "credentials.*", "*_credentials.json", "*-credentials.json", "*service*account*.json"),
    *("client_secret*.json", "secrets", "secrets.*", "*.secrets.*", ".secrets", "*secrets.toml"),
)
SECRET_PLACES = (".aws/config", ".docker/config.json", ".kube/config", "huggingface/token", "gcloud/*", ".ssh/*")
TEMPLATES = (".env.example", ".env.sample", ".env.template", ".env.dist")  # which variables there are, not their values
_CODE = (".py", ".pyi", ".pyx", ".ipynb", ".md", ".rst", ".c", ".cc", ".cpp", ".h", ".cu", ".go", ".js", ".ts", ".rs")
SHORTEST_TOKEN = 6  # under the name `token`: below it are words such as "cls" and "mean", never a credential

_STRONG = r"passwd|password|passphrase|secrets?|credentials?|(?:api|access|private|secret|auth)_?key(?:_id)?"
_STRONG_NAME = re.compile(rf"(?:^|_)(?:{_STRONG}|cookie|authorization)$|(?:password|passwd|secret|apikey)$|_pwd$")
_TOKEN_NAME = re.compile(r"(?:^|_)(?:token|(?:db|database|smtp|mail|redis|mysql|user|login|ftp|key)_?pass|wandb_key)$")
_VOCABULARY = re.compile(  # a model's tokens, and counts of them
    r"(?:^|_)(?:bos|eos|pad|mask|cls|class|unk|sep|special|image|video|audio|start|end|stop|prefix|suffix|decoder|"
    r"additional|max|min|num|n|per|first|last|drop|keep|register|query|dist|distillation|newline|dummy|null)_token$"
)
_MORE = re.compile(r"_?\d+$|_(?:prod|production|dev|test|staging|plain|text|raw|value|default|old|new)$")
_SECRET_FILE = re.compile("|".join(map(translate, SECRET_FILES)))
_SECRET_PLACE = re.compile("|".join(translate(f"*/{place}") for place in SECRET_PLACES))

STRONG_TEXT = _STRONG.replace("_?", "[_-]?").replace("_id", "[_-]id")  # as part of a longer pattern
STRONG_NEEDLES = (
    *("passwd", "password", "passphrase", "secret", "credential"),
    *map("".join, product(("api", "access", "private", "auth"), ("", "_", "-"), ("key",))),
)


def is_secret_name(name: str) -> bool:
    """Whether a key, option or variable is named like a secret."""
    return is_strong_name(name) or is_token_name(name)


def is_strong_name(name: str) -> bool:
    """Whether whatever has this name is a secret, a number too."""
    plain = words(name)
    return bool(_STRONG_NAME.search(plain) or _STRONG_NAME.search(_MORE.sub("", plain)))


def is_token_name(name: str) -> bool:
    """Whether it is one if it looks like one."""
    plain = words(name)
    return bool(_TOKEN_NAME.search(plain) and not _VOCABULARY.search(plain))


def is_secret(name: str, value: object) -> bool:
    """Whether this value under this name is a secret. A number can be a password, but no token."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or not is_secret_name(name):
        return False
    if not value or (isinstance(value, str) and (is_marker(value) or is_variable(value))):
        return False
    if is_strong_name(name):
        return True
    return isinstance(value, str) and len(value) >= SHORTEST_TOKEN and not re.fullmatch(r"[-+\d.,eE]*", value)


def is_variable(value: str) -> bool:
    """`${NAME}`, `$NAME`, `{name}`, `<name>`, or two of them: where a secret would be put, not the secret."""
    return re.fullmatch(r"(?:(?:\$?\{[^{}]*\}|\$\w+|<[^<>]*>):?){1,2}", value) is not None


def is_secret_file(path: str) -> bool:
    """Whether a file's name or place says that there is nothing but credentials in it."""
    name = basename(path).lower()
    if name in TEMPLATES or name.endswith(_CODE):
        return False
    return bool(_SECRET_FILE.match(name) or _SECRET_PLACE.match(f"/{path.lower()}"))


def words(name: str) -> str:
    """`--api-key`, `hub.apiKey` and `API_KEY` as words joined by underscores."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")
