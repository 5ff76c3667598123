//go:build !race

package hand

// childEnv is the environment of our own children: they need none.
var childEnv = []string{}
