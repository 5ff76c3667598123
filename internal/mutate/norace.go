//go:build !race

package mutate

// childEnv is the environment of our own children, which need no variables.
var childEnv = []string{}
