#!/bin/sh
# Prints the licences of everything that is linked into the agent: their terms ask for it. Fails when a module has none.
# usage: notices.sh, in the root of the source tree
set -eu

echo "The program nodeagent contains the following software."
printf '\n======== The Go standard library, %s\n\n' "$(go env GOVERSION)"
cat "$(go env GOROOT)/LICENSE"
go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/nodeagent | sort -u |
while read -r path version dir; do
	printf '\n======== %s %s\n' "$path" "$version"
	found=no
	for file in "$dir"/LICENSE* "$dir"/LICENCE* "$dir"/COPYING* "$dir"/NOTICE*; do
		[ -f "$file" ] || continue
		found=yes
		printf '\n-------- %s\n\n' "$(basename "$file")"
		cat "$file"
	done
	[ "$found" = yes ] || { echo "$path $version has no licence file" >&2; exit 1; }
done
