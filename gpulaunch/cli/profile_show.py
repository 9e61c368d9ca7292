"""`gpulaunch profiles show NAME`: a profile on the terminal, or as a picture with `--svg FILE`."""

import sys

from gpulaunch.machine.catalog import memory_of
from gpulaunch.profiles.profile import Profile


def show_profile(profile: Profile, path: str, svg: str | None) -> None:
    """Show everything that a profile says.

    Args:
        profile: any profile.
        path: path of its file.
        svg: file for a picture ("-" for stdout); None shows it on the terminal.

    Raises:
        FailedError: matplotlib is missing for the picture, or the file cannot be written.
    """
    from gpulaunch.show.profile.view import view_of

    view = view_of(profile, path, memory_of(profile.resources.measured_on or ""))
    if svg is None:
        from gpulaunch.show.profile.text import profile_text
        from gpulaunch.show.terminal import draw

        draw(profile_text(view), sys.stdout)
        return
    from gpulaunch.files.write import write_text
    from gpulaunch.show.profile.picture import profile_svg

    write_text(svg, profile_svg(view))
