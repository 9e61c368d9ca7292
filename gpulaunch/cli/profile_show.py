"""`gpulaunch profiles show NAME`: a profile on the terminal, or as a picture with `--svg FILE`."""

import shutil
import sys

from gpulaunch.machine.catalog import memory_of
from gpulaunch.profiles.profile import Profile


def show_profile(profile: Profile, path: str, svg: str | None) -> None:
    """Draw everything that is recorded.

    Args:
        profile: any.
        path: of its file.
        svg: file for the picture ("-": stdout); None draws on the terminal, 80 columns wide if
            stdout is none.

    Raises:
        FailedError: the picture cannot be written.
    """
    from gpulaunch.show.profile.words import view_of

    view = view_of(profile, path, memory_of(profile.resources.measured_on or ""))
    if svg is not None:
        from gpulaunch.files.write import write_text
        from gpulaunch.show.profile.picture import profile_svg

        write_text(svg, profile_svg(view))
        return
    from gpulaunch.show.profile.text import profile_text
    from gpulaunch.show.terminal import draw

    plain = not (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
    # a terminal that wraps by itself lets a path be copied that is longer than a line
    draw(profile_text(view, shutil.get_terminal_size().columns, plain=plain), sys.stdout, fit=False)
