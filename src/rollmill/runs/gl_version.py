"""Which OpenGL can be had without a window: ``python -m rollmill.runs.gl_version`` asks EGL and prints what it says.

A process of its own, because a broken driver ends whoever loads it.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import subprocess
from typing import Any

from rollmill.core.process import module_command

SECONDS = 20.0
NO_SURFACE_MESA, DEVICE_EXT = 0x31DD, 0x313F
OPENGL_API, VERSION = 0x30A2, 0x1F02
PBUFFER_CONFIG = (0x3033, 0x0001, 0x3040, 0x0008, 0x3038)
"""EGL_SURFACE_TYPE: pbuffer, EGL_RENDERABLE_TYPE: OpenGL, EGL_NONE."""


def ask() -> str:
    """Return what the driver calls its version, ``4.5 (Compatibility Profile) Mesa 22.3.6``; empty: there is none."""
    try:
        done = subprocess.run(
            module_command("rollmill.runs.gl_version"), capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def numbers(version: str) -> tuple[int, int] | None:
    """Return the version as numbers, ``(4, 5)``; None where the text does not begin with a version."""
    major, _, rest = version.partition(" ")[0].partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def look() -> str:
    """Return the version of a context that draws into memory; what fails on the way raises."""
    egl = ctypes.CDLL(ctypes.util.find_library("EGL") or "libEGL.so.1")
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    for name in ("eglGetDisplay", "eglCreateContext"):
        getattr(egl, name).restype = ctypes.c_void_p
    display = _display(egl)
    if not egl.eglBindAPI(OPENGL_API):
        raise OSError("EGL knows no OpenGL here")
    config, count = ctypes.c_void_p(), ctypes.c_int()
    wanted = (ctypes.c_int * len(PBUFFER_CONFIG))(*PBUFFER_CONFIG)
    egl.eglChooseConfig(display, wanted, ctypes.byref(config), 1, ctypes.byref(count))
    context = egl.eglCreateContext(display, config, None, None)
    if not context or not egl.eglMakeCurrent(display, None, None, ctypes.c_void_p(context)):
        raise OSError("EGL makes no context")
    address = egl.eglGetProcAddress(b"glGetString")
    text = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_uint)(address)(VERSION)
    return (text or b"").decode()


def _display(egl: Any) -> ctypes.c_void_p:
    """Return the first display that works: the usual one, or one without any screen."""
    found = [egl.eglGetDisplay(None)]
    if address := egl.eglGetProcAddress(b"eglGetPlatformDisplayEXT"):
        of_platform = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p)(address)
        found += [of_platform(kind, None, None) for kind in (NO_SURFACE_MESA, DEVICE_EXT)]
    for display in map(ctypes.c_void_p, filter(None, found)):
        if egl.eglInitialize(display, None, None):
            return display
    raise OSError("EGL opens no display")


if __name__ == "__main__":
    print(look())
