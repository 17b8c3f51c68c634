"""The ``papershelf`` command, and :func:`app`, from which every package builds a command of its own."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from papershelf import vendor as vendoring
from papershelf.errors import InputError
from papershelf.paper import Claim, Paper, Scale, find_paper, papers
from papershelf.reproduce import FILE, Result, distribution_version, progress_bar, reproduce

RESULTS = Path("papershelf-results")
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

# --- errors ------------------------------------------------------------------------------------------------------


def fail(command: str, message: str, code: int = 2) -> NoReturn:
    """One line on standard error, and out."""
    line = " ".join(message.split())
    print(f"{command}: error: {line}", file=sys.stderr)
    raise SystemExit(code)


def _received(message: str) -> str:
    """What was typed for the option that Typer complains about, where its message does not say so."""
    option = re.search(r"Invalid value for '(?:\S+ / )?(-{1,2}[\w-]+)'", message)
    for word, following in itertools.pairwise(sys.argv):
        if option and word == option[1] and repr(following) not in message:
            return f", got {following!r}"
    return ""


class Application(typer.Typer):
    """A Typer application that turns expected errors into one line and exit code 2.

    ``PAPERSHELF_DEBUG=1`` shows the traceback instead.
    """

    def __call__(self, *args: Any, **keywords: Any) -> NoReturn:
        command = Path(sys.argv[0]).stem if sys.argv else "papershelf"
        if os.environ.get("PAPERSHELF_DEBUG"):
            raise SystemExit(super().__call__(*args, **keywords))
        try:
            code = super().__call__(*args, standalone_mode=False, **keywords)
        except KeyboardInterrupt:
            fail(command, "interrupted; what was finished is kept", 130)
        except typer.Abort:
            fail(command, "aborted", 130)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(141) from None
        except (ValueError, ImportError, MemoryError, OSError) as error:
            fail(command, str(error) or type(error).__name__)
        except Exception as error:
            # Typer's own complaints about the command line carry this method, in every Typer version.
            describe = getattr(error, "format_message", None)
            if describe is None:
                raise
            fail(command, f"{describe()}{_received(describe())} (try '{command} --help')")
        raise SystemExit(code if isinstance(code, int) else 0)


def _application(help_text: str, shown_version: str) -> Application:
    application = Application(
        help=help_text, no_args_is_help=True, context_settings=_CONTEXT, pretty_exceptions_enable=False
    )

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(shown_version)
            raise typer.Exit

    option = typer.Option(False, "--version", callback=show_version, is_eager=True, help="Print the version and exit.")

    @application.callback()
    def common(wanted: bool = option) -> None:
        pass

    return application


# --- reproduce, as every command has it --------------------------------------------------------------------------

_PASSED_ON = {**_CONTEXT, "ignore_unknown_options": True}
Names = Annotated[list[str] | None, typer.Argument(help="What to measure; everything by default.", show_default=False)]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of every claim.")]
Out = Annotated[Path, typer.Option("--out", help="Results folder.")]
Resume = Annotated[bool, typer.Option("--resume", help="Keep what an earlier run in the folder finished.")]
Long = Annotated[bool, typer.Option("--long", help="Measure at the spec's size: minutes on two cores.")]
Full = Annotated[bool, typer.Option("--full", help="Measure at the paper's scale: data and machines of your own.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object a claim.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 when a measured claim does not hold.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be measured, and the full-scale recipes.")]


def split_options(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Separate names from ``--name value`` or ``--name=value`` pairs that belong to a claim.

    >>> split_options(["C1", "--graph", "karate", "--k=3"])
    (['C1'], {'graph': 'karate', 'k': '3'})
    """
    names: list[str] = []
    options: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            names.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not equals:
            following = next(rest, None)
            if following is None:
                raise InputError(f"option {word} expects a value, got nothing")
            value = following
        options[name] = value
    return names, options


def _line(result: Result) -> str:
    detail = result.error or result.measured
    if result.status == "not measured":
        detail = "needs --long" if result.scale == "long" else f"full scale: {result.recipe}"
    return f"{result.package} {result.id}  {result.status}  {detail}  ({result.seconds:.1f} s)"


def _show_table(results: Sequence[Result]) -> None:
    from rich.console import Console
    from rich.table import Table

    colour = {"held": "green", "did not hold": "red", "error": "yellow", "not measured": "dim"}
    table = Table("claim", "statement", "the paper", "measured here", "")
    for result in results:
        state = f"[{colour[result.status]}]{result.status}[/]"
        row = (f"{result.package} {result.id}", result.statement, result.paper, result.error or result.measured)
        table.add_row(*(text.replace("[", r"\[") for text in row), state)
    Console().print(table)


def run_claims(
    selection: Sequence[tuple[Paper, Claim]],
    out: Path,
    *,
    options: dict[str, str],
    seed: int,
    resume: bool,
    scale: Scale,
    as_json: bool,
    strict: bool,
    dry_run: bool,
) -> int:
    """Measure claims for a command line: prints as it goes, writes results and report, returns the exit code."""
    if dry_run:
        for paper, claim in selection:
            typer.echo(f"{paper.slug} {claim.id}  [{claim.scale}]  {claim.statement}")
            if claim.recipe:
                typer.echo(f"    full scale{f' (needs {claim.needs})' if claim.needs else ''}: {claim.recipe}")
        return 0

    def finished(result: Result) -> None:
        print(result.as_json() if as_json else _line(result), flush=True)

    for note in dict.fromkeys(paper.note for paper, _ in selection if paper.note and not as_json):
        print(note)
    with progress_bar() as progress:
        results = reproduce(
            selection,
            out,
            scale=scale,
            seed=seed,
            resume=resume,
            options=options,
            progress=progress,
            finished=finished,
        )
    from papershelf.report import write_report

    report = write_report(out)
    if not as_json:
        if sys.stdout.isatty():
            _show_table(results)
        measured = [result for result in results if result.holds is not None]
        held = sum(result.status == "held" for result in measured)
        print(f"{held} of {len(measured)} measured claims held; results {out / FILE}, report {report}")
    failed = any(result.error for result in results)
    missed = strict and any(result.status == "did not hold" for result in results)
    return int(failed or missed)


def _scale(long: bool, full: bool) -> Scale:
    return "full" if full else "long" if long else "quick"


def _claims_of(paper: Paper, ids: Sequence[str]) -> list[tuple[Paper, Claim]]:
    if not ids or [name.lower() for name in ids] == ["all"]:
        return [(paper, claim) for claim in paper.claims]
    return [(paper, paper.claim(name)) for name in ids]


# --- vendor, as every command has it -----------------------------------------------------------------------------

Check = Annotated[bool, typer.Option("--check", help="Tell unchanged, modified here and outdated upstream apart.")]
Update = Annotated[bool, typer.Option("--update", help="Bring the folder's files to the installed versions.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files, also edited ones.")]


def _vendor_folder(words: Sequence[str | Path | None]) -> Path:
    given = [word for word in words if word is not None]
    if len(given) != 1:
        raise InputError(f"--check and --update expect one folder, got {len(given)} words")
    return Path(given[0])


def vendor_command(what: str | None, folder: Path | None, check: bool, update: bool, force: bool) -> int:
    """Copy, check or update vendored files for a command line; returns the exit code."""
    if check or update:
        target = _vendor_folder([what, folder])
        if update:
            for path in vendoring.update(target, force):
                typer.echo(f"updated {path}")
        statuses = vendoring.check(target)
        for status in statuses:
            typer.echo(f"{status.path}  {status.package}:{status.method} {status.version}  {status.state}")
        return int(any(status.state != "unchanged" for status in statuses))
    if what is None or folder is None:
        raise InputError("expected a method and a folder, for example: papershelf vendor oim:oracles my_project/")
    paper, method = vendoring.find_method(what)
    for path in vendoring.vendor(paper, method, folder, force):
        typer.echo(path)
    if method.requires:
        typer.echo(f"the files need: {', '.join(method.requires)}")
    return 0


# --- info --------------------------------------------------------------------------------------------------------


def show_info(paper: Paper) -> None:
    """Print a paper's citation, claims and methods."""
    typer.echo(f"{paper.slug} {distribution_version(paper)}: {paper.summary}\n")
    typer.echo(f"{paper.title}. {', '.join(paper.authors)}. {paper.venue}, {paper.year}.")
    if paper.note:
        typer.echo(paper.note)
    typer.echo("\nClaims")
    for claim in paper.claims:
        typer.echo(f"  {claim.id}  [{claim.scale}]  {claim.statement}")
    typer.echo(f"\nMethods (papershelf vendor {paper.slug}:NAME FOLDER)")
    for method in paper.methods:
        typer.echo(f"  {method.name}  {method.summary}  ({', '.join(method.files)})")
    typer.echo(f"\n{paper.bibtex()}")


def app(paper: Paper) -> Application:
    """The command of one package with ``info``, ``reproduce`` and ``vendor``; the package adds its own commands."""
    note = f"\n\n{paper.note}" if paper.note else ""
    application = _application(f"{paper.summary}{note}", f"{paper.slug} {distribution_version(paper)}")

    @application.command()
    def info() -> None:
        """The paper, its claims and the methods that can be copied out."""
        show_info(paper)

    @application.command("reproduce", context_settings=_PASSED_ON)
    def reproduce_command(
        claims: Names = None,
        seed: Seed = 0,
        out: Out = RESULTS,
        resume: Resume = False,
        long: Long = False,
        full: Full = False,
        as_json: Json = False,
        strict: Strict = False,
        dry_run: DryRun = False,
    ) -> None:
        """Measure the paper's claims on this machine. Claims that take options accept them as --name value."""
        ids, options = split_options(claims or [])
        code = run_claims(
            _claims_of(paper, ids),
            out,
            options=options,
            seed=seed,
            resume=resume,
            scale=_scale(long, full),
            as_json=as_json,
            strict=strict,
            dry_run=dry_run,
        )
        raise typer.Exit(code)

    @application.command("vendor")
    def vendor_method(
        method: Annotated[str | None, typer.Argument(help="Method; see info.", show_default=False)] = None,
        folder: Annotated[Path | None, typer.Argument(help="Where to copy it.", show_default=False)] = None,
        check: Check = False,
        update: Update = False,
        force: Force = False,
    ) -> None:
        """Copy a method's source files into a project of yours; check or update such copies."""
        what = method if check or update or method is None else f"{paper.slug}:{method}"
        raise typer.Exit(vendor_command(what, folder, check, update, force))

    return application


# --- papershelf --------------------------------------------------------------------------------------------------

main = _application(
    "Nineteen papers as working methods: list them, measure their claims, copy a method out.",
    f"papershelf {version('papershelf')}",
)


@main.command("list")
def list_papers() -> None:
    """The papers that are installed."""
    shelf = papers()
    if not shelf:
        typer.echo("no paper is installed; for example: pip install papershelf-oim")
    for slug, paper in shelf.items():
        typer.echo(f"{slug} {distribution_version(paper)}  {paper.summary}")


@main.command()
def info(name: Annotated[str, typer.Argument(help="Name of an installed paper's package.")]) -> None:
    """A paper, its claims and the methods that can be copied out."""
    show_info(find_paper(name))


@main.command("reproduce", context_settings=_PASSED_ON)
def reproduce_papers(
    names: Names = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Claim to measure, C1 or oim:C1; may be repeated.")
    ] = None,
    seed: Seed = 0,
    out: Out = RESULTS,
    resume: Resume = False,
    long: Long = False,
    full: Full = False,
    as_json: Json = False,
    strict: Strict = False,
    dry_run: DryRun = False,
) -> None:
    """Measure the claims of installed papers on this machine, and write an HTML report."""
    packages, options = split_options(names or [])
    chosen = [find_paper(name) for name in packages] or list(papers().values())
    if not chosen:
        raise InputError("no paper is installed; for example: pip install papershelf-oim")
    code = run_claims(
        _only(chosen, only or []),
        out,
        options=options,
        seed=seed,
        resume=resume,
        scale=_scale(long, full),
        as_json=as_json,
        strict=strict,
        dry_run=dry_run,
    )
    raise typer.Exit(code)


def _only(chosen: Sequence[Paper], only: Sequence[str]) -> list[tuple[Paper, Claim]]:
    if not only:
        return [(paper, claim) for paper in chosen for claim in paper.claims]
    selection = []
    for wanted in only:
        package, colon, claim_id = wanted.rpartition(":")
        among = [find_paper(package)] if colon else chosen
        selection += [(paper, paper.claim(claim_id)) for paper in among]
    return selection


@main.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Results folder of a reproduce run.")] = RESULTS,
) -> None:
    """Write the HTML report of a results folder again."""
    from papershelf.report import write_report

    typer.echo(write_report(folder))


@main.command("vendor")
def vendor_any(
    what: Annotated[str | None, typer.Argument(help="package:method.", show_default=False)] = None,
    folder: Annotated[Path | None, typer.Argument(help="Where to copy it.", show_default=False)] = None,
    check: Check = False,
    update: Update = False,
    force: Force = False,
) -> None:
    """Copy a method's source files into a project of yours; check or update such copies."""
    raise typer.Exit(vendor_command(what, folder, check, update, force))


@main.command()
def models(
    download: Annotated[bool, typer.Option("--download", help="Fetch and prepare both models now.")] = False,
) -> None:
    """The embedded models that packages use by default."""
    from papershelf import models as embedded

    if download:
        embedded.language_model()
        embedded.sentence_encoder()
    for model in embedded.EMBEDDED:
        typer.echo(f"{model.name}  {model.purpose}  ({model.requirement}, {model.licence})")
