package main

import (
	"log/slog"
	"maps"
	"slices"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// quiet is the log of verbs whose answer is on stdout.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
