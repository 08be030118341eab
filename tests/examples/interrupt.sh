#!/usr/bin/env bash
# interrupt.sh SIGNAL TEXT PROGRAM ARGUMENTS...
#
# Sends SIGNAL once the program has written TEXT to standard error. INT is the signal of Ctrl-C. Copies the program's
# standard error and ends with its status.
set -m # without job control, a process in the background ignores SIGINT
signal="$1"
text="$2"
shift 2
errors="$(mktemp)"
trap 'rm -f "$errors"' EXIT
"$@" >/dev/null 2>"$errors" &
until grep -q "$text" "$errors" || ! kill -0 $!; do
  sleep 0.05
done
kill -"$signal" $!
wait $!
status=$?
cat "$errors" >&2
exit "$status"
