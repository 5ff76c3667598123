package network

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

type counterWindow = checkkit.Window[uint64]

// countersCheck is a check that keeps only counters between its runs.
type countersCheck struct{ window counterWindow }

// rateLeast is how long most counters must have been watched before their rate means anything.
const rateLeast = 4 * time.Minute

// reachesRate is checkkit.Reaches for rates, which vary more than levels: half of least keeps a raised finding.
func reachesRate(value, least float64) (found, belowRaise bool) {
	return value >= least/2, value < least
}

// rateRule is a fault found by the rate of a counter.
type rateRule struct {
	key    string
	reason string
	least  float64 // per second, over the window
	of     string  // the counter of the successes; empty for none
	share  float64 // the least share of failures among failures and successes
	text   string  // for people, after the rate
	info   bool    // the finding is information only
	when   string  // of the fault's documentation; empty if an earlier rule has it
}

// faultsOf documents the faults of rules.
func faultsOf(rules []rateRule) []detect.Fault {
	var faults []detect.Fault
	for _, r := range rules {
		fault := detect.Fault{Reason: r.reason, Severity: finding.Warning, When: r.when}
		if r.info {
			fault.Severity = finding.Info
		}
		if r.when != "" {
			faults = append(faults, fault)
		}
	}
	return faults
}

// exceeds evaluates one rule; it finds no fault by counters that were watched for less than watched.
func (r rateRule) exceeds(w *counterWindow, watched time.Duration) (fault networkFault, found bool) {
	by, rate, ok := w.Rate(r.key, watched)
	found, fault.belowRaise = reachesRate(rate, r.least)
	if !ok || !found || by == 0 {
		return networkFault{}, false
	}
	fault.reason, fault.info = r.reason, r.info
	fault.text = fmt.Sprintf("%s/s %s (%d in all)", formatRate(rate), r.text, by)
	if rate < 0.1 {
		_, in, _ := w.Rise(r.key)
		fault.text = fmt.Sprintf("%d %s within %s", by, r.text, in.Round(time.Second))
	}
	if r.of == "" {
		return fault, true
	}
	successes, _, known := w.Rise(r.of)
	share := float64(by) / float64(successes+by)
	found, belowRaise := reachesRate(share, r.share)
	if !known || !found {
		return networkFault{}, false
	}
	fault.belowRaise = fault.belowRaise || belowRaise
	fault.text += fmt.Sprintf(", %s %% of all", formatRate(100*share))
	return fault, true
}

// exceeded evaluates several rules.
func exceeded(w *counterWindow, watched time.Duration, rules []rateRule) (faults []networkFault) {
	for _, r := range rules {
		if fault, found := r.exceeds(w, watched); found {
			faults = append(faults, fault)
		}
	}
	return faults
}

// formatRate renders a rate or a percentage: one digit after the point below ten.
func formatRate(f float64) string {
	if f < 10 {
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.0f", f)
}

// networkFault is one of several faults of one subject.
type networkFault struct {
	reason     string
	text       string
	info       bool
	belowRaise bool
}

// rank is lowest for the fault that names the finding: a fault that raises a finding comes before one that only keeps
// it, a warning before information.
func (f networkFault) rank() int {
	n := 0
	if f.info {
		n++
	}
	if f.belowRaise {
		n += 2
	}
	return n
}

// merge completes f, the finding about one subject, with all faults of it: the most severe one gives it its reason. It
// returns false if there are none.
func merge(f finding.Finding, faults []networkFault) (finding.Finding, bool) {
	if len(faults) == 0 {
		return f, false
	}
	slices.SortStableFunc(faults, func(a, b networkFault) int { return cmp.Compare(a.rank(), b.rank()) })
	f.Severity, f.Reason, f.BelowRaise = finding.Warning, faults[0].reason, faults[0].belowRaise
	if faults[0].info {
		f.Severity = finding.Info
	}
	texts := make([]string, 0, len(faults))
	for _, fault := range faults {
		texts = append(texts, fault.text)
	}
	f.Message += strings.Join(texts, "; ")
	return f, true
}

// mergeForNode merges faults of the whole node.
func mergeForNode(h *host.Host, faults []networkFault, facts map[string]string) []finding.Finding {
	if f, ok := merge(finding.Finding{Subject: checkkit.NodeSubject(h), Facts: facts}, faults); ok {
		return []finding.Finding{f}
	}
	return nil
}

// Formats of the kernel's network counters.

// parseCount parses one number of the kernel in the given base.
func parseCount(text string, base int) (uint64, error) {
	n, err := strconv.ParseUint(text, base, 64)
	if err != nil {
		return 0, fmt.Errorf("bad number %q", checkkit.Sanitize(text, checkkit.MaxName))
	}
	return n, nil
}

// parseCounterPairs parses /proc/net/snmp and /proc/net/netstat: for each protocol a line of names and a line of
// values, both after the same prefix ("Tcp: RtoAlgorithm RtoMin …" and "Tcp: 1 200 …"). Keys are "Tcp.RetransSegs".
// Some values are signed (MaxConn -1); those are left out.
func parseCounterPairs(text string) (map[string]uint64, error) {
	counters := map[string]uint64{}
	var names []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
		case names == nil:
			names = fields
		case fields[0] != names[0] || len(fields) > len(names):
			return nil, fmt.Errorf("line %q does not fit the names %q", checkkit.Sanitize(line, checkkit.MaxName),
				checkkit.Sanitize(strings.Join(names, " "), checkkit.MaxName))
		default:
			for i, field := range fields[1:] {
				if strings.HasPrefix(field, "-") {
					continue
				}
				value, err := parseCount(field, 10)
				if err != nil {
					return nil, fmt.Errorf("%s%s: %w", checkkit.Sanitize(names[0], checkkit.MaxName),
						checkkit.Sanitize(names[i+1], checkkit.MaxName), err)
				}
				counters[strings.TrimSuffix(names[0], ":")+"."+names[i+1]] = value
			}
			names = nil
		}
	}
	if names != nil {
		return nil, fmt.Errorf("line %q has no values", checkkit.Sanitize(strings.Join(names, " "), checkkit.MaxName))
	}
	return counters, nil
}

// perCPU is a table of the kernel with a line of names and one line of hexadecimal values for each processor
// (/proc/net/stat/*). Their first column is the same in every line: it counts the whole table.
type perCPU struct {
	Entries uint64
	Sum     map[string]uint64 // of the other columns, over all processors
}

func parsePerCPU(text string) (perCPU, error) {
	var names []string
	p := perCPU{Sum: map[string]uint64{}}
	rows := 0
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if names == nil {
			names = fields
			continue
		}
		if len(fields) < 2 || len(fields) > len(names) {
			return perCPU{}, checkkit.InLine(line, fmt.Errorf("want up to %d values", len(names)))
		}
		for i, field := range fields {
			value, err := parseCount(field, 16)
			if err != nil {
				return perCPU{}, checkkit.InLine(line, err)
			}
			if i == 0 {
				p.Entries = max(p.Entries, value)
			} else {
				p.Sum[names[i]] += value
			}
		}
		rows++
	}
	if rows == 0 || names[0] != "entries" {
		return perCPU{}, fmt.Errorf("%q: want a line that begins with entries, and values",
			checkkit.Sanitize(text, checkkit.MaxName))
	}
	return p, nil
}

func readPerCPU(files host.Files, name string) (perCPU, error) {
	return checkkit.Parse(files, name, parsePerCPU)
}
