package main

import (
	"log/slog"
)

// quiet is the log of verbs whose answer goes to stdout.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// groupedBy splits things by a key; groups and their members keep the order of the things.
func groupedBy[T any](things []T, key func(T) string) [][]T {
	var groups [][]T
	index := map[string]int{}
	for _, thing := range things {
		k := key(thing)
		i, ok := index[k]
		if !ok {
			i = len(groups)
			index[k], groups = i, append(groups, nil)
		}
		groups[i] = append(groups[i], thing)
	}
	return groups
}
