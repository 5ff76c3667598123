package detect

import (
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
)

// fstabEntry is one line of /etc/fstab.
type fstabEntry struct {
	spec, point, fstype string
	options             []string
}

// readOnlyInFstab returns the entries whose last word on it is "ro". A file that is absent or malformed says nothing.
func readOnlyInFstab(files host.Files) []fstabEntry {
	data, err := files.Read("/etc/fstab")
	if err != nil {
		return nil // many images have none; what it could say only ever excuses
	}
	return slices.DeleteFunc(parseFstab(data), func(e fstabEntry) bool { return !e.readOnly() })
}

// parseFstab parses fstab(5). What it does not understand is left out: mount(8) passes over such lines too.
func parseFstab(data []byte) []fstabEntry {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var entries []fstabEntry
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		entries = append(entries, fstabEntry{
			spec: unescape.Replace(fields[0]), point: path.Clean(unescape.Replace(fields[1])), fstype: fields[2],
			options: strings.Split(fields[3], ","),
		})
	}
	return entries
}

func (e fstabEntry) readOnly() bool {
	readOnly := false
	for _, option := range e.options {
		readOnly = option == "ro" || readOnly && option != "rw"
	}
	return readOnly
}

// has reports whether the entry has an option, with or without a value.
func (e fstabEntry) has(option string) bool {
	return slices.ContainsFunc(e.options, func(o string) bool { return o == option || strings.HasPrefix(o, option+"=") })
}
