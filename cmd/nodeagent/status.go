package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/internal/agent"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

func newStatus(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Ask the running agent what it believes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			status, err := agent.AskStatus(cmd.Context(), o.socket())
			if errors.Is(err, agent.ErrNotRunning) {
				return fmt.Errorf("%w; look for yourself with: nodeagent check", err)
			}
			if err != nil {
				return err
			}
			if o.json() {
				err = printJSON(cmd.OutOrStdout(), status)
			} else {
				err = printStatus(cmd.OutOrStdout(), status)
			}
			if err != nil {
				return err
			}
			return statusExit(status)
		},
	}
}

func statusExit(s agent.Status) error {
	grave := slices.ContainsFunc(s.Findings, func(b finding.Believed) bool { return b.Severity != finding.Info })
	unknown := slices.ContainsFunc(s.Checks, func(c agent.CheckStatus) bool { return c.Status == finding.StatusUnknown })
	switch {
	case grave:
		return &exitError{Code: exitProblems}
	case unknown || len(s.Trouble) > 0:
		return &exitError{Code: exitCouldNotTell}
	}
	return nil
}

func printStatus(w io.Writer, s agent.Status) error {
	var b strings.Builder
	fmt.Fprintf(&b, "nodeagent %s on %s, pid %d, up %s\n\n", s.Version, s.Node, s.PID, ago(s.Now, s.Started))
	for _, c := range s.Checks {
		note := c.Why
		if c.Error != "" {
			note = "last look could not tell: " + c.Error
		}
		fmt.Fprintf(&b, "  %-15s %-24s since %-10s %s\n", c.Status, c.Check, ago(s.Now, c.Since), note)
	}
	if len(s.Findings) > 0 {
		b.WriteString("\nfindings\n")
	}
	for _, f := range s.Findings {
		fmt.Fprintf(&b, "  %-8s %s %s, for %s\n           %s\n", strings.ToUpper(string(f.Severity)), f.Reason, f.Subject, ago(s.Now, f.Raised), f.Latest)
	}
	if s.Leftovers != nil {
		fmt.Fprintf(&b, "\nleftovers (looked %s ago, mode %s)\n", ago(s.Now, s.Leftovers.At), s.Release.Mode)
		printLeftovers(&b, s.Leftovers.Objects)
	}
	for _, line := range s.Release.Last {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	for _, trouble := range s.Trouble {
		fmt.Fprintf(&b, "\nthe agent itself: %s\n", trouble)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func printLeftovers(b *strings.Builder, objects []inspect.Judged) {
	n := 0
	for _, o := range objects {
		if o.Verdict == inspect.Leftover || o.Verdict == inspect.Candidate {
			n++
			fmt.Fprintf(b, "  %-9s %-14s %s  %s\n", o.Verdict, o.Kind, podName(o.Pod), o.Why)
		}
	}
	if n == 0 {
		b.WriteString("  none\n")
	}
}

// ago words how long before now a moment was.
func ago(now, then finding.Stamp) string {
	d := now.Since(then)
	if now.Boot != then.Boot {
		d = now.Wall.Sub(then.Wall)
	}
	return d.Round(time.Second).String()
}
