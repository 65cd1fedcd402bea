"""The parser and the help layout of all commands."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache, partial
from importlib import import_module
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import typer
from typer._click.exceptions import NoArgsIsHelpError  # typer's copy of click has no public name
from typer._click.exceptions import UsageError as Misused
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command, get_group

from orchestrator.cli.commands import (
    ALIASES,
    ENDED_BY_HAND,
    INTERRUPTED,
    PROFILE_KEYS,
    PROGRAM,
    RENAMED,
    RENAMED_OPTIONS,
    commands_below,
    group_text,
    listed_below,
)
from orchestrator.cli.multi_host import accepted_nodes, is_multi_host, is_one_server, on_all, split_hosts
from orchestrator.cli.overrides import name_options, overridden
from orchestrator.core.command_hints import left_running, set_invocation
from orchestrator.core.console import expect_json
from orchestrator.core.errors import DeployError, Interrupted, UsageError
from orchestrator.core.streams import ignore_sigpipe

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter, Parameter
    from typer._click.shell_completion import CompletionItem

# A closed pipe ends a command that has not changed anything yet (`core.streams`), except for these: `down` stops a
# server even without a reader, since GPUs cost money, and `watch` continues after the loss of its terminal or log.
NEVER_ENDED_BY_SIGPIPE: Final = frozenset({"down", "watch"})
_PROFILE: Final = re.compile(r"--profile(?:=(.+))?|-p(?:=?(.+))?")
_QUOTED: Final = re.compile(r"'([^']*)'")
# Minimum similarity of a suggestion: that of `--out` to `--output` is higher, that of `--host` to `--set` lower.
_NEAR: Final = 0.75
_MIN_TYPED: Final = len("--abc")  # shorter ones resemble too many options: `--on` is similar to `--json`
_NODES: Final = "deploy.nodes"  # key of a context: several hosts
_MARK: Final = "\0"  # a word that no user can type
_TYPE: Final = re.compile(r" <.*>$")  # the type after the name of an argument


class ProfileCommand(TyperCommand):
    """A command that also accepts its argument PROFILE as `--profile NAME` or `-p NAME`."""

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        """Parse as click does, with `--profile` as an argument, and several hosts set aside for `invoke`."""
        parameters = {parameter.name for parameter in self.params}
        if "profile" in parameters:
            args = list(_by_location(args))
        expect_json("json" in parameters and "--json" in args)  # before parsing: an error in the words is JSON too
        if "host" in parameters and not ctx.resilient_parsing:
            args = self._take_nodes(ctx, args)
        with _in_our_words(ctx):
            return super().parse_args(ctx, args)

    def _take_nodes(self, ctx: "Context", args: list[str]) -> list[str]:
        """Save several hosts, and the words without them, for `invoke`; return the words to parse."""
        hosts, rest = split_hosts(args)
        if not is_multi_host(hosts):
            return args
        verb = ctx.command_path.partition(" ")[2]
        ctx.meta[_NODES] = accepted_nodes(verb, hosts), verb, tuple(rest)
        return rest

    def invoke(self, ctx: "Context") -> object:
        """Invoke as click does; save the invocation for commands in messages."""
        params = ctx.params
        overrides = overridden(params.get("set_"), revision=params.get("revision"), runtime=params.get("runtime"))
        root, verb = ctx.find_root().command, ctx.command_path.partition(" ")[2]
        host = params.get("host")
        host = host[0] if isinstance(host, list) and host else host or None
        set_own = partial(set_invocation, params.get("profile"), overrides, has_option=partial(has_option, root))
        set_own(host)
        if verb in NEVER_ENDED_BY_SIGPIPE:
            ignore_sigpipe()
        if _NODES in ctx.meta:
            nodes, verb, args = ctx.meta[_NODES]
            if is_one_server(verb, params):
                params["host"] = [node.url for node in nodes]
                set_own(nodes[0].url)
            else:
                on_all(nodes, verb, args, params, location=lambda name: self._location_of(name, args, ctx))
        try:
            return super().invoke(ctx)
        except DeployError as error:
            name_options(error, revision=params.get("revision"), runtime=params.get("runtime"))
            raise
        except KeyboardInterrupt as error:
            if verb in ENDED_BY_HAND:
                raise
            running = left_running(params["target"]) if params.get("target") else "nothing is left running"
            message, hint = INTERRUPTED.get(verb, ("interrupted", running))
            raise Interrupted(message, hint=hint) from error

    def _location_of(self, name: str, args: Sequence[str], ctx: "Context") -> int:
        """Return the index of the word that is this argument, not the value of an option."""
        arguments = {param.name for param in self.params if param.param_type_name == "argument"}
        for index, word in enumerate(args):
            if word == name:
                params, _, _ = self.make_parser(ctx).parse_args([*args[:index], _MARK, *args[index + 1 :]])
                if any(params.get(argument) == _MARK for argument in arguments):
                    return index
        raise ValueError(f"no argument is `{name}`")

    def collect_usage_pieces(self, ctx: "Context") -> list[str]:
        """Return arguments as `NAME`."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write arguments without their type, then options."""
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            records = (param.get_help_record(ctx) for param in self.get_params(ctx) if param.param_type_name == kind)
            if rows := [(_TYPE.sub("", record[0]), record[1]) for record in records if record]:
                with formatter.section(title):
                    formatter.write_dl(rows)


def has_option(root: "Command", words: str, option: str) -> bool:
    """Return whether the command at the start of these words has an option."""
    command: Command | None = root
    for word in words.split():
        if isinstance(command, TyperGroup):
            command = command.commands.get(word)
    return command is not None and any(option in param.opts for param in command.params)


class LazyCommands(Mapping[str, "Command"]):
    """The commands of a group in the order of the table; each is imported at its first use."""

    def __init__(self, group: str) -> None:
        self._words = {word: f"{group} {word}".lstrip() for _, word, _ in commands_below(group)}
        self._load = cache(load_command)

    def __getitem__(self, word: str) -> "Command":
        return self._load(self._words[word])

    def __iter__(self) -> Iterator[str]:
        return iter(self._words)

    def __len__(self) -> int:
        return len(self._words)


def load_command(words: str) -> "Command":
    """Import a command of the table, or create a group."""
    if (text := group_text(words)) is not None:
        group = typer.Typer(name=words, cls=Group, no_args_is_help=True, rich_markup_mode=None, help=f"{text}.")
        return get_group(group)
    module = import_module(f"orchestrator.cli.{words.replace(' ', '.')}")
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(words.rpartition(" ")[2], cls=ProfileCommand)(module.command)
    return get_command(app)


class Group(TyperGroup):
    """A group of commands, listed by section without importing them."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(**attributes)
        self._words = "" if self.name == PROGRAM else self.name or ""
        self.commands = LazyCommands(self._words)  # type: ignore[assignment]  # never modified

    def get_params(self, ctx: "Context") -> "list[Parameter]":
        """Return the parameters without `--install-completion`, which would edit files of the shell."""
        params = [param for param in super().get_params(ctx) if param.name != "install_completion"]
        for param in params:
            if isinstance(param, TyperOption) and param.name == "show_completion":
                param.help = "print the shell completion script"  # typer's help is longer
        return params

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        """Parse as click does, with a hint in each error."""
        with _in_our_words(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: "Context", args: list[str]) -> "tuple[str | None, Command | None, list[str]]":
        """Resolve a command or an alias; for a renamed command, raise an error with the new name."""
        words = f"{self._words} {args[0]}".lstrip()
        if not ctx.resilient_parsing and (now := RENAMED.get(words)):
            raise UsageError(f"no such command `{args[0]}`", hint=f"did you mean `{PROGRAM} {now}`?")
        args = [ALIASES.get(words, args[0]), *args[1:]]
        with _in_our_words(ctx):
            return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: "Context", incomplete: str) -> "list[CompletionItem]":  # noqa: ARG002
        """Complete commands from the table, without importing them."""
        group = TyperGroup(name=self.name, params=self.params)
        for _, word, text in listed_below(self._words):
            group.add_command(TyperCommand(word, help=text))
        return group.shell_complete(group.make_context(self.name, [], resilient_parsing=True), incomplete)

    def format_commands(self, ctx: "Context", formatter: "HelpFormatter") -> None:  # noqa: ARG002
        """Write the commands by section."""
        for section, commands in groupby(listed_below(self._words), key=lambda item: item[0]):
            with formatter.section(section):
                formatter.write_dl([(word, text) for _, word, text in commands])


@contextmanager
def _in_our_words(ctx: "Context") -> Iterator[None]:
    """Turn an error of click into a UsageError with a hint."""
    try:
        yield
    except NoArgsIsHelpError:
        raise
    except Misused as error:
        if ctx.resilient_parsing:
            raise  # while the shell completes a line
        message, _, details = _QUOTED.sub(r"`\1`", error.format_message().rstrip(".")).partition(". ")
        option = getattr(error, "option_name", None) or ""
        renamed = RENAMED_OPTIONS.get(ctx.command_path.partition(" ")[2], {}).get(option)
        possible = list(getattr(error, "possibilities", None) or ()) if len(option) >= _MIN_TYPED else []
        if any(parameter.name == "profile" for parameter in ctx.command.params):
            possible.append("--profile")  # click does not know it: see `ProfileCommand`
        nearest: str = renamed or next(iter(get_close_matches(option, [*possible, *PROFILE_KEYS], cutoff=_NEAR)), "")
        suggestion = f"did you mean `{nearest}`?" if nearest else ""
        help_ = f"`{ctx.command_path} -h` shows arguments and options"
        message = ": ".join(_begun_small(part) for part in message.partition(" (Possible")[0].split(": "))
        if nearest in PROFILE_KEYS and not renamed:
            sets = any("--set" in param.opts for param in ctx.command.params)
            suggestion = f"`--set {PROFILE_KEYS[nearest]}=VALUE`{'' if sets else ', for commands with `--set`'}"
        raise UsageError(message, hint=suggestion or _begun_small(details) or help_) from error


def _begun_small(text: str) -> str:
    return text[:1].lower() + text[1:]


def _by_location(args: Sequence[str]) -> Iterator[str]:
    """Yield the words without `--profile`; its value becomes the argument."""
    words = iter(args)
    for word in words:
        if word == "--":
            yield word
            break
        if (match := _PROFILE.fullmatch(word)) is None:
            yield word
        elif value := match[1] or match[2]:
            yield value
    yield from words
