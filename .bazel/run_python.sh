#!/bin/sh
# Runs a Python test: the first argument is the script.
exec python3 -B "$@"
