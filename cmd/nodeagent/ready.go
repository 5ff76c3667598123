package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/status"
)

func newReady(o *options) *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "ready",
		Short: "Report by exit code whether the agent works as installed and configured",
		Long: `Report by exit code whether the agent works as it was installed and configured, and print why not.

It is ready when it runs in the installed version, every check has run at least once, checks still run, and the
configuration file is in force. This is independent of the node's health: a ready agent can report a sick node.

Exit codes: 0 ready; 1 not ready; 2 could not tell, because this user may not ask the agent.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ready, known := awaitReady(cmd.Context(), cmd.ErrOrStderr(), o.socket(cmd.Context()), wait)
			var exit error
			if !ready.Ready {
				exit = &exitError{Code: exitProblems}
			}
			if !ready.Ready && !known {
				exit = &exitError{Code: exitCouldNotTell}
			}
			return o.answer(cmd.OutOrStdout(), ready, func(w io.Writer) error { return printReady(w, ready) }, exit)
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long it may take to become ready, such as 30s")
	return cmd
}

// awaitReady waits until the agent is ready or the time is over. After a second it prints the reason. It also reports
// whether the answer is known: the agent may not let this user ask.
func awaitReady(ctx context.Context, progress io.Writer, socket string, wait time.Duration) (ready status.Readiness,
	known bool) {
	const interval, silent = 200 * time.Millisecond, time.Second
	began, printed := time.Now(), ""
	end := began.Add(wait)
	for {
		ready, known = askReady(ctx, socket)
		if why := strings.Join(ready.Why, "; "); why != printed && time.Since(began) > silent {
			fmt.Fprintln(progress, "waiting:", why)
			printed = why
		}
		if ready.Ready || time.Now().After(end) {
			return ready, known
		}
		select {
		case <-ctx.Done():
			return ready, known
		case <-time.After(interval):
		}
	}
}

func askReady(ctx context.Context, socket string) (ready status.Readiness, known bool) {
	running, err := status.AskStatus(ctx, socket)
	switch {
	case errors.Is(err, status.ErrNotRunning):
		return status.Readiness{Why: []string{"no agent answers on " + socket}}, true
	case err != nil:
		return status.Readiness{Why: []string{err.Error()}}, !errors.Is(err, status.ErrNotAllowed)
	}
	ready = running.Readiness
	if running.Version != agent.Version {
		ready.Ready = false
		ready.Why = append(ready.Why, fmt.Sprintf("version %s runs, %s is installed: systemctl restart nodeagent",
			running.Version, agent.Version))
	}
	return ready, true
}

func printReady(w io.Writer, r status.Readiness) error {
	if r.Ready {
		_, err := fmt.Fprintln(w, "ready")
		return err
	}
	for _, why := range r.Why {
		if _, err := fmt.Fprintln(w, "not ready:", why); err != nil {
			return err
		}
	}
	return nil
}
