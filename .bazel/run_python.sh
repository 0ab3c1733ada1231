#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a Python test: the first argument is the script.
exec python3 -B "$@"
