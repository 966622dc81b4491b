"""``twophp serve``: uvicorn with the short-cut of ``twophp.uvicorn``."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import click

from twophp.cli.lazy import UNUSABLE
from twophp.cli.output import examples
from twophp.core.errors import ConfigError

PROTOCOL: Final = "twophp.uvicorn:Protocol"
_NOT_OFFERED: Final = {
    "http": PROTOCOL,
    "http2": False,
    "h11_max_incomplete_event_size": None,
    "interface": "auto",
    "reload": False,
    "reload_dirs": (),
    "reload_includes": (),
    "reload_excludes": (),
    "reload_delay": 0.25,
}
"""The values of uvicorn's options that have no meaning here: a service is not reloaded."""
_OURS: Final = frozenset({"app", "version"})


class _Serve(click.Command):
    """A command with uvicorn's own options, as the installed version has them: they are loaded when it is used."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """See click."""
        ours, hidden = super().get_params(ctx), _NOT_OFFERED.keys() | _OURS
        return [*ours, *(param for param in _uvicorn().params if param.name not in hidden)]


def _uvicorn() -> click.Command:
    try:
        from uvicorn.main import main  # noqa: PLC0415 - Of twophp[serve]; the rest of the command line does without.

        from twophp.uvicorn import Protocol  # noqa: F401, PLC0415
    except ImportError as error:
        raise ConfigError("this needs the extra twophp[serve]", code="missing_extra") from error
    return main


@click.command(
    cls=_Serve,
    context_settings={"auto_envvar_prefix": "UVICORN"},
    short_help="Serve an application with uvicorn and answer two-phase requests below ASGI.",
    epilog=examples(
        "serve shop.main:app",
        "serve shop.main:create_app --factory --host 0.0.0.0 --port 443 --ssl-certfile cert.pem --ssl-keyfile key.pem",
        "serve shop.main:app --uds /run/shop.sock --workers 4 --root-path /shop",
    ),
)
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--bypass-middleware",
    is_flag=True,
    envvar="TWOPHP_BYPASS_MIDDLEWARE",
    help="Answer Phase 1 and replays without the middleware that stands around TwoPhaseMiddleware."
    " Without this flag such an application is not served.",
)
@click.pass_context
def serve(ctx: click.Context, /, app: str, *, bypass_middleware: bool, **options: Any) -> None:
    """Serve an application with uvicorn and answer two-phase requests below ASGI.

    The application has TwoPhaseMiddleware around it, as it would for any server. Phase 1, replays, refusals and status
    reads are answered by the protocol that reads them; everything else, and the application itself, is served as
    uvicorn serves it. Answers are the same, byte for byte: it is `uvicorn --http twophp.uvicorn:Protocol MODULE:APP`.

    Middleware around TwoPhaseMiddleware would not see those requests. So the server does not start with such middleware
    and names it: put it behind TwoPhaseMiddleware (what is added last is outermost), serve with plain uvicorn, or say
    --bypass-middleware. Then Phase 1 and replays go without it; what runs the application goes through it.

    Every option but --bypass-middleware is uvicorn's, and so are its UVICORN_... variables.
    """
    if bypass_middleware:
        os.environ["TWOPHP_BYPASS_MIDDLEWARE"] = "1"  # Workers are processes of their own.
    command = _uvicorn()
    known = {param.name for param in command.params}
    said = {"app": app, **options, **{name: value for name, value in _NOT_OFFERED.items() if name in known}}
    assert command.callback is not None
    try:
        _check_before_workers(said)
        command.callback(**said)
    except SystemExit as end:
        if end.code:
            ctx.exit(UNUSABLE)  # Uvicorn has said why.


def _check_before_workers(said: dict[str, Any]) -> None:
    """One process refuses by itself. Of several, the first one does not: it would end as if all were well."""
    from uvicorn.config import Config  # noqa: PLC0415

    from twophp.uvicorn import short_cut_of  # noqa: PLC0415

    if Config(said["app"], workers=said["workers"], env_file=said["env_file"], log_config=None).workers == 1:
        return
    sys.path.insert(0, said["app_dir"] or "")
    config = Config(
        said["app"], http=PROTOCOL, factory=said["factory"], proxy_headers=False, lifespan="off", log_config=None
    )
    config.load()
    short_cut_of(config)
