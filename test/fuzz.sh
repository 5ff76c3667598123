#!/usr/bin/env bash
# Runs every fuzz target of the tree, each for the time given: test/fuzz.sh 30s. An input that fails is kept in the
# package's testdata/fuzz, to be committed: from then on go test tries it too. What else was found worth keeping
# stays in Go's cache.
set -euo pipefail
cd "$(dirname "$0")/.."
for module in . test/npd; do
	# The targets of a package come before the line with its name.
	targets=$(
		go test -C "$module" -list '^Fuzz' ./... |
			awk '/^Fuzz/ { name[n++] = $1 } /^ok/ { while (n) print $2, name[--n] }'
	)
	while read -r package target; do
		echo "$package $target"
		nice go test -C "$module" -run '^$' -fuzz "^$target\$" -fuzztime "$1" "$package" </dev/null
	done <<<"$targets"
done
