package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/detect/npd"
)

func newFromNPD(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "from-npd FILE...",
		Short: "Translate configuration files of node-problem-detector",
		Long: `Translate each rule in configuration files of node-problem-detector, and print a configuration of
the agent with the same effect. It leaves out faults that the agent finds by itself, writes plugins and
rules in the agent's own syntax, and lists the files that are still needed. You can also keep the files
as they are: nodeProblemDetector.files runs them unchanged.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			for i, name := range names {
				absolute, err := filepath.Abs(name)
				if err != nil {
					return err
				}
				names[i] = absolute
			}
			read := config.ReadMonitors(npd.Settings{Files: names})
			t := npd.Translate(read.Files, everyCheck(), rules.Kernel())
			var err error
			if o.json() {
				err = printJSON(cmd.OutOrStdout(), t)
			} else {
				err = printTranslation(cmd.OutOrStdout(), read, t)
			}
			if err == nil && len(read.Broken) > 0 {
				return &exitError{Code: exitProblems, Err: errors.Join(read.Broken...)}
			}
			return err
		},
	}
}

func printTranslation(w io.Writer, read config.Monitors, t npd.Translation) error {
	var b strings.Builder
	for _, f := range read.Files {
		fmt.Fprintf(&b, "# %s: %s\n", f.Name, f.Headline())
		for _, note := range f.Notes {
			fmt.Fprintf(&b, "#   note: %s\n", note)
		}
		for _, r := range t.Rules {
			if r.File != f.Name {
				continue
			}
			what := r.Reason
			if r.Condition != "" {
				what += " (condition " + r.Condition + ")"
			}
			fmt.Fprintf(&b, "#   %-8s %s: %s\n", r.Fate, what, r.Why)
		}
	}
	out := map[string]any{}
	if len(t.Plugins) > 0 {
		out["plugins"] = t.Plugins
	}
	if len(t.KernelRules) > 0 {
		out["rules"] = t.KernelRules
	}
	if len(t.Files) > 0 {
		out["nodeProblemDetector"] = map[string]any{"files": t.Files}
	}
	switch {
	case len(out) == 0 && len(read.Broken) > 0: // the settings of those files are unknown
	case len(out) == 0:
		b.WriteString("# No configuration is needed: the agent finds all of this by itself.\n")
	default:
		text, err := yaml.Marshal(out)
		if err != nil {
			return err
		}
		b.WriteString("\n")
		b.Write(text)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
