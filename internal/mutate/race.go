//go:build race

package mutate

// childEnv: a process with the race detector sleeps for a second before it ends.
var childEnv = []string{"GORACE=atexit_sleep_ms=0"}
