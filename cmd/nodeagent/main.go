// Command nodeagent is the agent that runs on every node of a Kubernetes cluster: it finds node faults and leftovers of
// deleted pods, repairs faults that can be repaired locally, and reports. It is the daemon (run) and the tool that
// people use on a bad day (check, inspect, clean, status).
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
)

// Exit codes: the contract of every verb.
const (
	exitFine         = 0
	exitProblems     = 1
	exitCouldNotTell = 2
)

func main() {
	// A command ends within seconds: garbage collection would be most of its work. The daemon sets its own limits.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(256 << 20)

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// exitError carries an exit code out of a verb. If Err is nil, everything has been printed.
type exitError struct {
	Code int
	Err  error
}

func (e *exitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e *exitError) Unwrap() error { return e.Err }

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string) int {
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitFine
	}
	if exit, ok := errors.AsType[*exitError](err); ok {
		if exit.Err != nil {
			fmt.Fprintln(os.Stderr, "nodeagent:", exit.Err)
		}
		return exit.Code
	}
	fmt.Fprintln(os.Stderr, "nodeagent:", err)
	return exitCouldNotTell
}
