package network

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

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
