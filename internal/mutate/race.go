//go:build race

package mutate

// childEnv disables the one-second sleep of the race detector at exit.
var childEnv = []string{"GORACE=atexit_sleep_ms=0"}
