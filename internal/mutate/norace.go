//go:build !race

package mutate

// childEnv is the environment of our own children: they need none.
var childEnv = []string{}
