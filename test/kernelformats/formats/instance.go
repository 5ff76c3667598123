package formats

import (
	"regexp"
	"slices"
	"strings"
)

// verb is a conversion of the kernel's printk: flags, width, precision, length, letter, and the letters after %p.
var verb = regexp.MustCompile(`%(?:%|[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|t|j|L)?` +
	`(?:p(?:I(?:S[pfsc]*|4[hnbl]?|6c?)|M[RF]?|U[bBlL]|h[CDN]?|OF[a-zA-Z]*|G[a-z]|E[a-z]*|a[dp]?|[dD][2-4]?|4cc|[A-HJ-LN-Zb-ceg-z])?` +
	`|[diouxXscn]))`)

// errorNumber matches the text before the number of an error, which is negative.
var errorNumber = regexp.MustCompile(`(?i)\b(?:err(?:or|no)?|ret|rc|result|failed)\b[ =:(]*$`)

// hashed is a pointer as the kernel prints it by default.
const hashed = "00000000a1b2c3d4"

// placeholders stand for the prefixes that the device core adds to a line.
var placeholders = strings.NewReplacer("{pci}", "0000:5e:00.0", "{eth}", "eth0")

// samples are the plausible values of a verb, by its letters after flags and width.
var samples = []map[string]string{
	{"s": "sda1", "c": "A", "d": "3", "i": "3", "u": "7", "o": "755", "x": "1f", "X": "1F"},
	{"s": "timeout", "c": "0", "d": "12", "i": "0", "u": "0", "o": "0", "x": "deadbeef", "X": "FF"},
}

// pointers are values of the extensions of %p, the longest first.
var pointers = []struct{ letters, value string }{
	{"pISpc", "10.0.0.1:2049"}, {"pIS", "10.0.0.1"}, {"pI4", "10.0.0.1"}, {"pI6", "fe80::1"}, {"pM", "02:00:5e:10:00:01"},
	{"pU", "5198cbc0-01aa-4e44-8f3c-0123456789ab"}, {"ph", "00 1f a0"}, {"pOF", "/soc/ethernet@1c30000"},
	{"pV", "what happened"}, {"pe", "-EIO"}, {"pa", "0x00000000fee00000"}, {"pR", "[mem 0xfee00000-0xfee00fff]"},
	{"pr", "[mem 0xfee00000-0xfee00fff]"}, {"pg", "sda1"}, {"pd", "file"}, {"pD", "file"}, {"pS", "do_exit+0x12/0x340"},
	{"ps", "do_exit"}, {"pB", "do_exit+0x12/0x340"}, {"pF", "do_exit+0x12/0x340"}, {"pf", "do_exit"}, {"pG", "0x0()"},
	{"pb", "0-3"}, {"pC", "clk"}, {"pO", "/soc"}, {"pt", "2026-01-01T00:00:00"}, {"px", "ffff888100000000"},
}

// Instances returns lines that the kernel prints with a format, without a priority: with each list of arguments in the
// row, else with plausible ones.
func (r Row) Instances() (lines []string) {
	if len(r.Args) > 0 {
		for _, args := range r.Args {
			lines = append(lines, fill(r.Format, args, samples[0]))
		}
		return lines
	}
	for _, values := range samples {
		if line := fill(r.Format, nil, values); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// fill replaces the verbs of a format, in their order by args; by values if args run out.
func fill(format string, args []string, values map[string]string) string {
	format = placeholders.Replace(format)
	var line strings.Builder
	end := 0
	for _, at := range verb.FindAllStringIndex(format, -1) {
		line.WriteString(format[end:at[0]])
		end = at[1]
		switch v := format[at[0]:at[1]]; {
		case v == "%%":
			line.WriteString("%")
		case len(args) > 0:
			line.WriteString(args[0])
			args = args[1:]
		case strings.HasSuffix(v, "d") && errorNumber.MatchString(format[:at[0]]):
			line.WriteString("-5")
		default:
			line.WriteString(value(v, values))
		}
	}
	line.WriteString(format[end:])
	return strings.TrimRight(line.String(), "\n")
}

func value(v string, values map[string]string) string {
	letters := strings.TrimLeft(v, "%-+ #0123456789.*")
	if strings.HasPrefix(letters, "p") {
		for _, p := range pointers {
			if strings.HasPrefix(letters, p.letters) {
				return p.value
			}
		}
		return hashed
	}
	text := values[letters[len(letters)-1:]]
	if strings.HasPrefix(v, "%#") && strings.ContainsAny(letters, "xX") {
		return "0x" + text
	}
	if width := strings.TrimLeft(v, "%-+ #"); strings.HasPrefix(width, "0") || strings.HasPrefix(v, "%0") {
		return zeros(v, text)
	}
	return text
}

// zeros fills a number with zeros to the width of a verb: %016llx.
func zeros(v, text string) string {
	width := 0
	for _, c := range strings.TrimLeft(v, "%-+ #0") {
		if c < '0' || c > '9' {
			break
		}
		width = width*10 + int(c-'0')
	}
	if missing := min(width, 64) - len(text); missing > 0 && !strings.HasPrefix(text, "-") {
		return strings.Repeat("0", missing) + text
	}
	return text
}
