#!/bin/sh
# What gpulaunch does, on a DGX-1 that is only described: the jobs and their leases are real, the GPUs are not.
#
#     sh examples/demo.sh
#
# It needs Python 3.10 or newer with venv, and installs gpulaunch into .venv unless it is there. Everything
# else that it writes is in a temporary directory, and gone at the end.
set -u

fail() {
    echo "demo: $*" >&2
    exit 1
}

gpulaunch() { # the alias that the demo shows, by a path that may have blanks, which a line #! may not
    "$PWD/.venv/bin/python" "$PWD/.venv/bin/gpulaunch" --topology dgx1-v100 "$@"
}

clean_up() {
    trap '' HUP INT TERM
    gpulaunch free --mine >/dev/null 2>&1
    wait
    rm -rf "$place"
}

show() { # COMMENT COMMAND: print a command as one types it
    printf '\n'
    [ -z "$1" ] || printf '%s# %s%s\n' "$dim" "$1" "$plain"
    printf '%s$ %s%s\n' "$bold" "$2" "$plain"
}

play() { # STATUS COMMENT COMMAND: show a command and run it; it must end with this status
    show "$2" "$3"
    eval "$3"
    status=$?
    [ $status -eq "$1" ] || fail "exit status $status, where $1 was expected"
}

cd "$(dirname "$0")/.." || exit 1
python=${PYTHON:-python3}
if ! gpulaunch --version >/dev/null 2>&1; then
    found=$("$python" --version 2>&1) || fail "$python cannot be run: install Python 3.10 or newer"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        fail "Python 3.10 or newer is needed, $python is $found: name another, as in PYTHON=python3.12 sh $0"
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$python has no module venv: install it (Debian and Ubuntu: apt install python3-venv)"
    echo "installing gpulaunch into $PWD/.venv"
    # No cache by a variable: pip hands that on to what builds the packages, too.
    "$python" -m venv .venv && PIP_NO_CACHE_DIR=1 .venv/bin/python -m pip install --quiet --disable-pip-version-check . ||
        fail "gpulaunch could not be installed into $PWD/.venv"
fi

place=$(mktemp -d) || fail "no temporary directory can be made"
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 141' PIPE # dash would end without the trap of EXIT
for name in $(env | sed -n 's/^\(GPULAUNCH_[A-Z_]*\)=.*/\1/p') CUDA_VISIBLE_DEVICES; do
    unset "$name" # settings and leases of whoever calls this
done
export PATH="$PWD/.venv/bin:$PATH" GPULAUNCH_STATE_DIR="$place" \
    XDG_STATE_HOME="$place" XDG_CONFIG_HOME="$place" XDG_CACHE_HOME="$place"
bold='' dim='' plain=''
if [ -t 1 ]; then
    bold=$(printf '\033[1m') dim=$(printf '\033[2m') plain=$(printf '\033[0m')
fi

show 'a DGX-1 by description: real jobs, no GPUs' \
    "alias gpulaunch='gpulaunch --topology dgx1-v100'"

# Its output comes through a FIFO: the demo goes on when the job says that it trains.
train='gpulaunch --profile vgg16 -n 3 --time-limit 5m -v -- python3 examples/train.py --steps 10000000 &'
show 'three GPUs with the fastest links' "$train"
mkfifo "$place/training"
eval "${train%&}" '>"$place/training" 2>&1 &'
exec 3<"$place/training"
said=
while [ "${said#training on GPUs}" = "$said" ]; do
    IFS= read -r said <&3 || fail "the training did not start"
    printf '%s\n' "$said"
done

play 0 'two small jobs share a GPU' \
    'gpulaunch -d --share=1/2 --name server-a -- sleep 600'
play 0 '' 'gpulaunch -d --share=1/4 --name server-b -- sleep 600'
play 75 'a third would slow them down: refused' 'gpulaunch --share=1/2 --only 1 --name server-c -- sleep 600'
play 0 'six GPUs are not free: this job waits' 'gpulaunch -d -n 6 --wait --name big -- sleep 600'
play 0 'who has what, and who waits' 'gpulaunch status'
play 0 'however a job ends, its GPUs are free' 'gpulaunch free --mine'
play 0 '' 'gpulaunch status'
