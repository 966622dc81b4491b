"""The registrar: a logical request is consumed once, with any nonce and any attempt. No HTTP is needed."""

from twophp.core.compensation import CompensationDecision
from twophp.core.registrar import Decision
from twophp.core.registration import Compensation, Registration, RegistrationRequest, State, VerifyStatus
from twophp.core.surface import SurfaceReport
from twophp.registrar.blocking import Registrar
from twophp.registrar.flow import AsyncRegistrar
from twophp.registrar.surface import Status, evaluate_surface, select_surface

__all__ = [
    "AsyncRegistrar",
    "Compensation",
    "CompensationDecision",
    "Decision",
    "Registrar",
    "Registration",
    "RegistrationRequest",
    "State",
    "Status",
    "SurfaceReport",
    "VerifyStatus",
    "evaluate_surface",
    "select_surface",
]
