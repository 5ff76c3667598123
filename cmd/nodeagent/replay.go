package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/replay"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func newReplay(o *options) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "replay [FILE|-]",
		Short: "Read a saved kernel or system log and print the findings that the agent would have raised",
		Long: `Read a saved kernel or system log from a file, or from standard input, and print the findings that
the agent would have raised.

Formats: output of dmesg (with any kind of time, with or without levels, or --json), records of /dev/kmsg,
journalctl -o json, json-pretty, short and similar ones, and syslog files; also log files of kubelet, containerd and
Docker; each may be compressed with gzip. Not supported: journalctl -o export and -o verbose, other compression. Only
lines of the kernel and of the daemons of a node count (systemd, kubelet, containerd, chronyd and so on;
docs/checks.md lists them), under the name of any product and inside the records of collectors. Lines of other
programs and of containers are skipped if the format names their sender. Lines may have a prefix from grep, a
quotation or a collector. The running agent reads only the kernel's lines; of daemons it reads the state.

  dmesg | nodeagent replay
  journalctl -k -o json | nodeagent replay -o json
  nodeagent replay --format kmsg bundle/kmsg.txt

-o json prints one JSON object per line for each match. Exit code 1 if a finding above info was raised, 2 if the log
could not be read, no line is of the kernel or a known daemon, or a line with the words of a fault could not be
parsed.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := replay.ParseFormat(format)
			if err != nil {
				return fmt.Errorf("--format: %w", err)
			}
			log, err := openLog(cmd.InOrStdin(), args)
			if err != nil {
				return err
			}
			defer log.Close()
			return printReplay(cmd.OutOrStdout(), cmd.ErrOrStderr(), log, replay.Replay{Format: f}, o.json())
		},
	}
	cmd.Flags().StringVarP(&format, "format", "f", string(replay.Auto),
		"format of the log: auto, dmesg, kmsg or journal")
	return cmd
}

func openLog(stdin io.Reader, args []string) (io.ReadCloser, error) {
	if len(args) == 0 || args[0] == "-" {
		return io.NopCloser(stdin), nil
	}
	return os.Open(args[0])
}

// printReplay prints the matches of the log and returns the exit code as an error.
func printReplay(out, errs io.Writer, log io.Reader, how replay.Replay, asJSON bool) error {
	matcher, err := kernellog.NewMatcher(rules.Kernel())
	if err != nil {
		return err
	}
	if how.Daemons, err = kernellog.NewMatcher(rules.Daemons()); err != nil {
		return err
	}
	var p replayPrinter = &replayText{out: out}
	if asJSON {
		p = &replayJSON{encoder: json.NewEncoder(out), errs: errs}
	}
	sum, err := how.Read(matcher, log, p.found)
	if err != nil {
		return err
	}
	if err := p.end(sum); err != nil {
		return err
	}
	switch {
	case !sum.Understood():
		return fmt.Errorf("none of %d lines looks like a line of a log; line %d: %q%s; tried %s", sum.Lines,
			sum.FirstBad, sum.FirstBadLine, replayStrange(sum), replayTried(how.Format))
	case sum.Problems():
		return &exitError{Code: exitProblems}
	case sum.Lines > 0 && !sum.Judged(), sum.Doubt != nil:
		return &exitError{Code: exitCouldNotTell}
	}
	return nil
}

// replayTried lists the formats in which replay tried to read the lines.
func replayTried(f replay.Format) string {
	if f = cmp.Or(f, replay.Auto); f != replay.Auto {
		return fmt.Sprintf("the format %s only (--format auto tries all)", f)
	}
	return "dmesg with any kind of time, records of /dev/kmsg, the journal, syslog, JSON of collectors, the logs of " +
		"kubelet, containerd and Docker, and each of them behind a prefix"
}

// replayPrinter prints matches as they come, and a summary.
type replayPrinter interface {
	found(replay.Found) error
	end(replay.Summary) error
}

// replayMatch is the JSON contract of replay.
type replayMatch struct {
	Number   int              `json:"number"` // of the line in the input, from 1
	Line     string           `json:"line"`
	Rule     string           `json:"rule"`
	Reason   string           `json:"reason"`
	Severity finding.Severity `json:"severity"`
	Subject  replaySubject    `json:"subject"`
	Raised   bool             `json:"raised"`           // false while a threshold is still counting
	Advice   string           `json:"advice,omitempty"` // the next step; of rules of the agent
}

type replaySubject struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

type replayJSON struct {
	encoder *json.Encoder
	errs    io.Writer
}

func (p *replayJSON) found(f replay.Found) error {
	if f.Recovered {
		return nil
	}
	p.encoder.SetEscapeHTML(false)
	return p.encoder.Encode(replayMatch{
		Number: f.Number, Line: f.Line, Rule: f.Rule.ID, Reason: f.Rule.Reason, Severity: f.Severity,
		Subject: replaySubject{f.Subject.Kind, f.Subject.Name}, Raised: f.Raised,
		Advice: f.Rule.Advice,
	})
}

func (p *replayJSON) end(s replay.Summary) error {
	if trouble := replayTrouble(s); trouble != "" {
		fmt.Fprintln(p.errs, "nodeagent:", trouble)
	}
	return nil
}

func replayTrouble(s replay.Summary) string {
	var parts []string
	if s.Bad > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d lines could not be read, the first is line %d: %q%s", s.Bad,
			s.Lines, s.FirstBad, s.FirstBadLine, replayStrange(s)))
	}
	if s.Cut > 0 {
		parts = append(parts, fmt.Sprintf("%d lines were longer than 64 KiB and were cut", s.Cut))
	}
	if d := s.Doubt; d != nil {
		parts = append(parts, fmt.Sprintf("line %d has the words of %s, but the text before them could not be parsed: %q",
			d.Number, d.Rule.Reason, d.Line))
	}
	if s.Foreign > 0 && !s.Judged() {
		parts = append(parts, "no line is of the kernel or of a known daemon: "+replayPrograms(s))
	}
	if s.Bare == s.Lines && s.Kernel == s.Lines && s.Lines > 0 && s.Matches == 0 {
		parts = append(parts, "no line has a time or a sender: all were read as lines of the kernel, as dmesg -t prints them")
	}
	return strings.Join(parts, "; ")
}

func replayStrange(s replay.Summary) string {
	if s.Strange == "" {
		return ""
	}
	return fmt.Sprintf(" (%s is not read; journalctl -o json and -o short are)", s.Strange)
}

// replayGroup is the text output for one rule and subject, or for a unit and all rules: a failing service often has
// lines that match several of them.
type replayGroup struct {
	rule      *rules.Rule // of the gravest match
	subject   finding.Subject
	severity  finding.Severity
	raised    bool
	count     int // occurrences
	first     replay.Found
	last      int      // line number
	recovered int      // line number; 0 while it has not
	also      []string // reasons of the other rules
}

// maxGroups bounds the text output; further matches are only counted.
const maxGroups = 1000

type replayText struct {
	out    io.Writer
	groups []*replayGroup
	index  map[string]*replayGroup
	more   int
}

func (p *replayText) found(f replay.Found) error {
	key := f.Rule.ID + "\x00" + f.Subject.String()
	if f.Subject.Kind == "unit" {
		key = f.Subject.String()
	}
	g := p.index[key]
	if g == nil {
		if f.Recovered {
			return nil
		}
		if len(p.groups) >= maxGroups {
			p.more++
			return nil
		}
		g = &replayGroup{rule: f.Rule, subject: f.Subject, severity: f.Severity, first: f}
		if p.index == nil {
			p.index = map[string]*replayGroup{}
		}
		p.index[key] = g
		p.groups = append(p.groups, g)
	}
	if f.Recovered {
		g.recovered = f.Number
		return nil
	}
	g.last, g.recovered = f.Number, 0
	worse := f.Severity.Compare(g.severity) < 0
	if f.Rule != g.rule {
		switch {
		case f.Raised && (!g.raised || worse):
			if g.raised {
				g.also = append(g.also, g.rule.Reason)
			}
			g.rule, g.first, g.severity, g.count = f.Rule, f, f.Severity, 0
		case f.Raised:
			g.also = append(g.also, f.Rule.Reason)
			return nil
		default:
			return nil
		}
	}
	if !f.Again {
		g.count++
	}
	g.raised = g.raised || f.Raised
	if worse {
		g.severity = f.Severity
	}
	return nil
}

// end prints the most severe first, and among equals in the order of the log.
func (p *replayText) end(s replay.Summary) error {
	slices.SortStableFunc(p.groups, func(a, b *replayGroup) int { return a.severity.Compare(b.severity) })
	var b strings.Builder
	for _, g := range p.groups {
		g.print(&b)
	}
	if p.more > 0 {
		fmt.Fprintf(&b, "… and %d more matches, of other rules and subjects\n", p.more)
	}
	fmt.Fprintf(&b, "%d lines, %s: %s\n", s.Lines, replayEmitters(s), replayVerdict(s))
	if trouble := replayTrouble(s); trouble != "" {
		fmt.Fprintf(&b, "%s\n", trouble)
	}
	_, err := io.WriteString(p.out, b.String())
	return err
}

func (g *replayGroup) print(b *strings.Builder) {
	what := strings.ToUpper(string(g.severity))
	if !g.raised {
		what = "COUNTING"
	}
	subject := g.subject.String()
	if g.subject.Name == "" {
		subject = g.subject.Kind
	}
	fmt.Fprintf(b, "%-8s %s: %s", what, g.rule.Reason, subject)
	if process := g.first.Facts["process"]; process != "" && g.subject.Kind != "process" {
		fmt.Fprintf(b, " (process %s)", process)
	}
	if g.count > 1 {
		fmt.Fprintf(b, ", %d times", g.count)
	}
	if also := slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(g.also))),
		func(reason string) bool { return reason == g.rule.Reason }); len(also) > 0 {
		fmt.Fprintf(b, "; also %s", strings.Join(also, ", "))
	}
	fmt.Fprintf(b, "\n         %s\n", g.rule.Summary)
	fmt.Fprintf(b, "         line %d: %s\n", g.first.Number, g.first.Text)
	if g.last != g.first.Number {
		fmt.Fprintf(b, "         last seen in line %d\n", g.last)
	}
	if g.recovered > 0 {
		fmt.Fprintf(b, "         recovered in line %d\n", g.recovered)
	}
	if g.raised && g.recovered == 0 && g.severity != finding.Info {
		fmt.Fprintf(b, "         next: %s\n", g.rule.Advice)
	}
	if !g.raised {
		fmt.Fprintf(b, "         no finding yet: it takes %d within %s\n", g.rule.Raise.Count, g.rule.Raise.Within)
	}
	b.WriteString("\n")
}

func replayEmitters(s replay.Summary) string {
	if s.Daemon == 0 {
		return fmt.Sprintf("%d of them the kernel's", s.Kernel)
	}
	return fmt.Sprintf("%d of them the kernel's and %d of daemons", s.Kernel, s.Daemon)
}

// replayPrograms names the programs whose lines were skipped.
func replayPrograms(s replay.Summary) string {
	if len(s.Programs) == 0 {
		return fmt.Sprintf("%d lines of programs or containers were skipped", s.Foreign)
	}
	return fmt.Sprintf("%d lines of %s and the like were skipped", s.Foreign, strings.Join(s.Programs, ", "))
}

func replayVerdict(s replay.Summary) string {
	parts := s.Counts.Texts()
	switch understood := s.Kernel + s.Daemon + s.Foreign; {
	case len(parts) > 0:
		return strings.Join(parts, ", ")
	case s.Lines == 0:
		return "the log is empty"
	case !s.Judged() || s.Doubt != nil:
		return "could not tell"
	case s.Bad > 0:
		return fmt.Sprintf("nothing is wrong in the %d parsed lines", understood)
	}
	return "nothing is wrong"
}
