#!/bin/sh
# Try 20 learning rates from 0.001 to 0.5, each as a job with a GPU of its own:
# as many at a time as GPUs are free.
#
#     sh examples/sweep.sh [DIRECTORY]
#
# Each job's output is in DIRECTORY (sweep), with the results. After an interruption the same line continues.
set -eu
directory=${1:-sweep}
mkdir -p "$directory"
awk -v train="$(dirname "$0")/train.py" 'BEGIN {
    for (i = 0; i < 20; i++) printf "python3 \"%s\" --lr %.4f\n", train, 0.001 * 500 ^ (i / 19)
}' >"$directory/jobs.txt"
gpulaunch batch --resume --results "$directory/results.jsonl" --logs "$directory" -q - <"$directory/jobs.txt"
echo "the best of them:"
grep -h '^loss' "$directory"/*.log | sort -g -k 2 | head -n 3
