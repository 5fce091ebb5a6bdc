"""``rollmill completion``: what a shell needs to complete verbs, options, settings and names of settings files.

The script holds all of it, so that a completion starts no Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from rollmill.cli.arguments import arguments_of
from rollmill.cli.tree import VERBS, all_verbs
from rollmill.core.config.schema import Key, keys_of
from rollmill.core.config.shipped import shipped_names
from rollmill.core.config.types import choices
from rollmill.core.imports import import_object
from rollmill.envs.make import NAMED
from rollmill.envs.settings import EnvSettings

_HEAD = {"bash": "", "zsh": "autoload -U +X compinit bashcompinit && compinit -u && bashcompinit\n"}
_SCRIPT = """\
# Completion of rollmill for @SHELL@, made by `rollmill completion @SHELL@`.
@HEAD@_rollmill() {
    local line word before previous name part list rest head stop found base last
    line=${COMP_LINE:0:$COMP_POINT}
    word=${line##*[[:space:]]}
    before=${line%"$word"}
    for part in $before; do  # which verb it is, and the word before this one
        previous=$part
        case "@NAMES@" in *" ${name:+$name/}$part "*) name=${name:+$name/}$part ;; esac
    done
    case "$name" in
@VERBS@
    esac
    case "$name $previous" in
        *" -f" | *" --config") list="@FILES@" ;;
@VALUES@
    esac
    COMPREPLY=()
    base=
    if [ -n "$BASH_VERSION" ]; then base=${word%"${word##*[=:]}"}; fi  # bash takes these for ends of words
    for part in $list; do
        case "$part" in "$word"*) ;; *) continue ;; esac
        case "$word$part" in -*) if [ -z "$word" ]; then continue; fi ;; esac
        rest=${part#"$word"}
        head=${rest%%[.=]*}  # settings are completed block by block
        stop=${rest#"$head"}
        found=$word$head${stop:0:1}
        if [ -z "$stop" ]; then found="$found "; fi
        if [ "$found" != "$last" ]; then COMPREPLY+=("${found#"$base"}"); fi
        last=$found
    done
}
complete -o default -o nospace -F _rollmill rollmill
"""


def completion(shell: Literal["bash", "zsh"], /) -> int:
    """Print the completion script of a shell: ``rollmill completion bash > ~/.rollmill-completion``.

    Source that file in ``~/.bashrc`` or ``~/.zshrc``, and write it again after an update.

    Args:
        shell: The shell.
    """
    names = " ".join("/".join(name) for name, _ in all_verbs())
    parts = {"SHELL": shell, "HEAD": _HEAD[shell], "NAMES": f" {names} ", "FILES": " ".join(shipped_names())}
    parts |= {"VERBS": "\n".join(_verbs()), "VALUES": "\n".join(_values())}
    script = _SCRIPT
    for name, text in parts.items():
        script = script.replace(f"@{name}@", text)
    print(script, end="")
    return 0


def _verbs() -> Iterator[str]:
    """Yield a case for every verb: what may stand behind it."""
    yield f'        "") list="{" ".join([*VERBS, "help"])}" ;;'
    for name, verb in all_verbs():
        words = list(verb.verbs)
        for argument in arguments_of(verb.load()) if verb.target else ():
            words += argument.choices if argument.is_word else argument.flags
        words += _settings(import_object(f"rollmill.{verb.settings}", "verb")) if verb.settings else ()
        yield f'        {"/".join(name)}) list="{" ".join([*words, "--help"])}" ;;'


def _values() -> Iterator[str]:
    """Yield a case for every option that has a choice of values."""
    for name, verb in all_verbs():
        for argument in arguments_of(verb.load()) if verb.target else ():
            if argument.choices and not argument.is_word:
                yield f'        "{"/".join(name)} {argument.flag}") list="{" ".join(argument.choices)}" ;;'


def _settings(cls: Any, prefix: str = "") -> Iterator[str]:
    """Yield ``key=`` of every setting, or ``key=value`` for all its values where these are known."""
    for name, key in keys_of(cls).items():
        if key.block is None:
            yield from (f"{prefix}{name}={value}" for value in _values_of(key))
            continue
        shorthand = getattr(key.block, "__shorthand__", None)
        if shorthand is not None:
            yield from (f"{prefix}{name}={value}" for value in _values_of(keys_of(key.block)[shorthand]))
        yield from _settings(key.block, f"{prefix}{name}.")


def _values_of(key: Key) -> Sequence[Any]:
    """Return the values that a key can be set to; an empty text where that is not known."""
    if key is keys_of(EnvSettings)["id"]:
        return tuple(NAMED)
    return ("true", "false") if key.type is bool else choices(key.type) or ("",)
