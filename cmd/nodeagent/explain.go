package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/kernel"
)

func newExplain(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "explain CHECK|RULE|REASON",
		Short: "Tell what a check reads, why, its thresholds, its false alarms and what to do",
		Long: `Tell what a check reads, why it matters, what it finds and from which threshold on, what may look like it, and what to do next.

The name may be that of a check, of a rule of the kernel's log, or a reason as it stands in a finding, condition or event.`,
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return explainable(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := o.load(cmd.Context()); err != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), "nodeagent: thresholds are the defaults, not those of your configuration:", err)
			}
			return explain(cmd.OutOrStdout(), args[0])
		},
	}
}

// everyCheck is all checks, also those that the configuration switches off.
func everyCheck() []detect.Check { return detect.Checks(detect.DefaultSettings(), detect.Aids{}) }

func explainable() []string {
	var names []string
	for _, c := range everyCheck() {
		names = append(names, c.ID)
	}
	for _, r := range kernel.Rules() {
		names = append(names, r.ID)
	}
	return names
}

func explain(w io.Writer, name string) error {
	var pages []string
	for _, c := range everyCheck() {
		isReason := slices.ContainsFunc(c.Doc.Faults, func(f detect.Fault) bool { return strings.EqualFold(f.Reason, name) })
		if c.ID == name || isReason {
			pages = append(pages, c.ID+"\n\n"+checkPage(c))
		}
	}
	for _, r := range kernel.Rules() {
		if r.ID == name || strings.EqualFold(r.Reason, name) {
			pages = append(pages, r.ID+"\n\n"+rulePage(r))
		}
	}
	if len(pages) == 0 {
		return fmt.Errorf("%q is no check, rule or reason; nodeagent check --list names the checks", name)
	}
	screen := screenOf(w)
	for i, page := range pages {
		if i > 0 {
			page = "\n" + page
		}
		if _, err := io.WriteString(w, screen.page(page)); err != nil {
			return err
		}
	}
	return nil
}
