package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodeagent/nodeagent/internal/agent"
)

// newMan writes the manual from the commands themselves, so that the two cannot differ. Packages are built with it. The
// generator of cobra is not used: it would put a Markdown parser into the binary that runs as root on every node.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "Write the manual pages into a directory",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
		RunE:   func(cmd *cobra.Command, args []string) error { return writeManuals(cmd.Root(), args[0]) },
	}
}

func writeManuals(cmd *cobra.Command, dir string) error {
	if err := os.WriteFile(filepath.Join(dir, manName(cmd)+".1"), []byte(manual(cmd)), 0o644); err != nil { //nolint:gosec // for everybody
		return err
	}
	for _, child := range cmd.Commands() {
		if !child.IsAvailableCommand() || child.Name() == "completion" {
			continue
		}
		if err := writeManuals(child, dir); err != nil {
			return err
		}
	}
	return nil
}

func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manual is one page in the language of man(7).
func manual(cmd *cobra.Command) string {
	var b strings.Builder
	name := manName(cmd)
	fmt.Fprintf(&b, ".TH %q 1 \"\" %q \"nodeagent manual\"\n", strings.ToUpper(name), "nodeagent "+agent.Version)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(cmd.UseLine()))
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, ".br\n.B %s\n.I COMMAND\n", roff(cmd.CommandPath()))
	}
	description := cmd.Long
	if description == "" {
		description = cmd.Short + "."
	}
	fmt.Fprintf(&b, ".SH DESCRIPTION\n%s", paragraphs(description))
	if cmd.HasAvailableSubCommands() {
		b.WriteString(".SH COMMANDS\n")
		for _, child := range cmd.Commands() {
			if child.IsAvailableCommand() {
				fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(child.Name()), roff(child.Short))
			}
		}
	}
	b.WriteString(".SH OPTIONS\n")
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { b.WriteString(option(f)) })
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) { b.WriteString(option(f)) })
	b.WriteString(".SH EXIT STATUS\n0 fine, 1 problems found, 2 could not tell.\n")
	b.WriteString(manFiles)
	fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", strings.Join(seeAlso(cmd), ",\n"))
	return b.String()
}

const manFiles = `.SH FILES
.TP
.I /etc/nodeagent/config.yaml
The configuration: what differs from the defaults, which
.B nodeagent config defaults
prints.
.TP
.I /var/lib/nodeagent
What survives a restart.
.TP
.I /run/nodeagent/nodeagent.sock
Where the running agent answers. For root alone.
.TP
.I /etc/nodeagent/stop
While this file exists nothing is released.
`

// option is one flag with what it does.
func option(f *pflag.Flag) string {
	if f.Hidden {
		return ""
	}
	value, usage := pflag.UnquoteUsage(f)
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	if value != "" {
		value = " \\fI" + roff(value) + "\\fR"
	}
	return fmt.Sprintf(".TP\n\\fB%s\\fR%s\n%s\n", roff(name), value, roff(usage))
}

func seeAlso(cmd *cobra.Command) []string {
	var names []string
	if cmd.HasParent() {
		names = append(names, manName(cmd.Parent()))
	}
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() && child.Name() != "completion" {
			names = append(names, manName(child))
		}
	}
	for i, name := range names {
		names[i] = fmt.Sprintf(".BR %s (1)", roff(name))
	}
	return append(names, ".BR systemctl (1)")
}

// paragraphs sets text: blank lines part paragraphs, indented lines stay as they are.
func paragraphs(text string) string {
	var b strings.Builder
	for i, part := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if i > 0 {
			b.WriteString(".PP\n")
		}
		if strings.HasPrefix(part, " ") {
			fmt.Fprintf(&b, ".nf\n%s\n.fi\n", roff(part))
		} else {
			fmt.Fprintf(&b, "%s\n", roff(part))
		}
	}
	return b.String()
}

// roff makes text safe: nothing in it is taken for a command.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
