// Package formats holds the formats of lines that the kernel logs, as extracted from its sources, one file for each
// family of sources, with a verdict for each: the rule that must recognise it, or that none may.
//
//	drivers/net/ethernet/intel/e1000e/netdev.c
//	  nic-hang | 5.10 6.1 | e1000e {pci} {eth}: Detected Hardware Unit Hang:\n
//	    = the arguments | of one instance
//
// Sources, versions and formats are written by the generator; verdicts and arguments by hand, and kept by it.
package formats

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Verdicts other than the ID of a rule.
const (
	Benign   = "-" // no fault, or part of a report whose head is recognised: no rule may match
	Unjudged = "?" // new: a verdict is needed
)

// recovery follows the ID of a rule if the format reports its recovery.
const recovery = ":recovery"

// Row is one format.
type Row struct {
	File     string     // in the kernel's tree, of the newest version with the format
	Verdict  string     // Benign, Unjudged, or the ID of a rule, for its recovery with ":recovery"
	Versions []string   // of the kernel, in ascending order
	Format   string     // with the prefixes of printk's wrappers
	Args     [][]string // of an instance each; quoted if empty or with blanks at its ends
}

// Rule returns the ID of the rule that must match, empty if none may, and whether its recovery is meant.
func (r Row) Rule() (id string, recovers bool) {
	if r.Verdict == Benign || r.Verdict == Unjudged {
		return "", false
	}
	return strings.CutSuffix(r.Verdict, recovery)
}

// Newest returns the newest kernel version of rows, empty if there are none.
func Newest(rows []Row) (version string) {
	for _, r := range rows {
		for _, v := range r.Versions {
			if version == "" || CompareVersions(version, v) < 0 {
				version = v
			}
		}
	}
	return version
}

// CompareVersions compares two kernel versions, as strings.Compare does.
func CompareVersions(a, b string) int {
	number := func(version string) (n []int) {
		for part := range strings.SplitSeq(version, ".") {
			i, _ := strconv.Atoi(part) // a part without a number sorts first
			n = append(n, i)
		}
		return n
	}
	return slices.Compare(number(a), number(b))
}

// Read reads the file of a family. A family without a file has no rows yet.
func Read(dir, family string) ([]Row, error) {
	name := filepath.Join(dir, family+".txt")
	data, err := os.ReadFile(name) //nolint:gosec // the directory is the caller's
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	rows, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return rows, nil
}

// Parse reads the text of a family.
func Parse(data []byte) (rows []Row, err error) {
	file := ""
	scanner := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; scanner.Scan(); n++ {
		line := scanner.Text()
		text := strings.TrimLeft(line, " ")
		switch indent := len(line) - len(text); {
		case text == "" || text[0] == '#' && indent == 0:
		case indent == 0:
			file = text
		case indent == 2:
			part := strings.SplitN(text, " | ", 3)
			if len(part) != 3 || file == "" {
				return nil, fmt.Errorf("line %d: %q is not \"verdict | versions | format\" beneath a file", n, line)
			}
			rows = append(rows, Row{File: file, Verdict: strings.TrimSpace(part[0]),
				Versions: strings.Fields(part[1]), Format: Unescape(part[2])})
		case indent == 4 && strings.HasPrefix(text, "= ") && len(rows) > 0:
			row := &rows[len(rows)-1]
			args := strings.Split(text[2:], " | ")
			for i, arg := range args {
				args[i] = Unescape(strings.TrimSuffix(strings.TrimPrefix(arg, `"`), `"`))
			}
			row.Args = append(row.Args, args)
		default:
			return nil, fmt.Errorf("line %d: %q is neither a file nor a format nor arguments", n, line)
		}
	}
	return rows, scanner.Err()
}

// Write writes the file of a family, in the order of files and formats.
func Write(dir, family, head string, rows []Row) error {
	slices.SortStableFunc(rows, func(a, b Row) int {
		if c := strings.Compare(a.File, b.File); c != 0 {
			return c
		}
		return strings.Compare(a.Format, b.Format)
	})
	var out strings.Builder
	for line := range strings.Lines(head) {
		out.WriteString(strings.TrimRight("# "+line, " \n") + "\n")
	}
	file := ""
	for _, r := range rows {
		if r.File != file {
			file = r.File
			fmt.Fprintf(&out, "\n%s\n", file)
		}
		fmt.Fprintf(&out, "  %s | %s | %s\n", r.Verdict, strings.Join(r.Versions, " "), Escape(r.Format))
		for _, args := range r.Args {
			quoted := make([]string, len(args))
			for i, arg := range args {
				if quoted[i] = Escape(arg); arg == "" || strings.TrimSpace(arg) != arg || strings.Contains(arg, `"`) {
					quoted[i] = `"` + arg + `"`
				}
			}
			fmt.Fprintf(&out, "    = %s\n", strings.Join(quoted, " | "))
		}
	}
	return os.WriteFile(filepath.Join(dir, family+".txt"), []byte(out.String()), 0o644) //nolint:gosec // public
}

// Escape keeps a format on one line, and its blanks at the end visible.
func Escape(s string) string {
	s = strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\t", `\t`).Replace(s)
	if trimmed := strings.TrimRight(s, " "); trimmed != s {
		return trimmed + strings.Repeat(`\s`, len(s)-len(trimmed))
	}
	return s
}

// Unescape is the inverse of Escape.
func Unescape(s string) string {
	return strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\t`, "\t", `\s`, " ").Replace(s)
}
