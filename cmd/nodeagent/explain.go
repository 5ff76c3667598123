package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/daemon"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	detectchecks "github.com/nodeagent/nodeagent/pkg/detect/checks"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
)

func newExplain(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "explain CHECK|RULE|REASON",
		Short: "Explain a check: its sources, thresholds, false alarms and next steps",
		Long: `Explain a check: the files that it reads, why it matters, its findings and thresholds, its false
alarms, and the next steps.

NAME is a check, a rule of the kernel log, or a reason of a finding, condition or event.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("explain needs one name: of a check, of a rule of the kernel log, or a reason; " +
					"nodeagent check --list names the checks")
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return explainable(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := o.load(cmd.Context())
			if err != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), "nodeagent: thresholds are the defaults, not those of your "+
					"configuration:", err)
				cfg = config.Default()
			}
			return explain(cmd.OutOrStdout(), args[0], cfg)
		},
	}
}

// everyCheck returns all checks, also those that the configuration switches off.
func everyCheck() []detect.Check {
	return detectchecks.Checks(detectchecks.DefaultSettings(), detectchecks.Deps{})
}

// everyRule returns both tables: for the kernel's log, and for daemons in saved logs.
func everyRule() []rules.Rule { return append(rules.Kernel(), rules.Daemons()...) }

func explainable() []string {
	var names []string
	for _, c := range slices.Concat(everyCheck(), daemon.OwnChecks()) {
		names = append(names, c.ID)
	}
	for _, r := range everyRule() {
		names = append(names, r.ID)
	}
	return names
}

// configured returns the checks and rules that come from the configuration alone: plugins, files of
// node-problem-detector, own rules.
func configured(cfg config.Config) (checks []detect.Check, rules []rules.Rule) {
	known := everyCheck()
	for _, c := range agent.Checks(cfg, &host.Host{Clock: host.Now}, detectchecks.Deps{}) {
		if !slices.ContainsFunc(known, func(k detect.Check) bool { return k.ID == c.ID }) {
			checks = append(checks, c)
		}
	}
	for _, r := range cfg.Rules {
		rules = append(rules, r.Rule())
	}
	return checks, rules
}

func explain(w io.Writer, name string, cfg config.Config) error {
	var pages []string
	checks, rules := configured(cfg)
	for _, c := range slices.Concat(everyCheck(), daemon.OwnChecks(), checks) {
		isReason := slices.ContainsFunc(c.Doc.Faults, func(f detect.Fault) bool {
			return strings.EqualFold(f.Reason, name)
		})
		if c.ID == name || isReason {
			pages = append(pages, c.ID+"\n\n"+checkPage(c))
		}
	}
	for _, r := range append(everyRule(), rules...) {
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
