#!/usr/bin/env bash
# interrupt.sh TEXT PROGRAM ARGUMENTS...
#
# Sends Ctrl-C's signal once the program has written TEXT to standard error. Writes the same, ends as the program does.
set -m # without job control, a process in the background ignores SIGINT
text="$1"
shift
errors="$(mktemp)"
trap 'rm -f "$errors"' EXIT
"$@" >/dev/null 2>"$errors" &
until grep -q "$text" "$errors" || ! kill -0 $!; do
  sleep 0.05
done
kill -INT $!
wait $!
status=$?
cat "$errors" >&2
exit "$status"
