package filesystem

import (
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
)

// FstabEntry is one line of /etc/fstab.
type FstabEntry struct {
	Spec, Point, Fstype string
	options             []string
}

// Fstab returns the entries of /etc/fstab. An absent or malformed file has none.
func Fstab(files host.Files) []FstabEntry {
	data, err := files.Read("/etc/fstab")
	if err != nil {
		return nil // many images have none
	}
	return ParseFstab(data)
}

// ParseFstab parses fstab(5). It skips malformed lines, like mount(8).
func ParseFstab(data []byte) []FstabEntry {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var entries []FstabEntry
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		entries = append(entries, FstabEntry{
			Spec: unescape.Replace(fields[0]), Point: path.Clean(unescape.Replace(fields[1])), Fstype: fields[2],
			options: strings.Split(fields[3], ","),
		})
	}
	return entries
}

// IsMounted reports whether the entry is mounted at boot or on first use.
func (e FstabEntry) IsMounted() bool {
	return path.IsAbs(e.Point) && e.Fstype != "swap" && (!e.Has("noauto") || e.Has("x-systemd.automount"))
}

// ReadOnly reports whether the last option of "ro" and "rw" is "ro".
func (e FstabEntry) ReadOnly() bool {
	readOnly := false
	for _, option := range e.options {
		readOnly = option == "ro" || readOnly && option != "rw"
	}
	return readOnly
}

// Has reports whether the entry has an option, with or without a value.
func (e FstabEntry) Has(option string) bool {
	return slices.ContainsFunc(e.options, func(o string) bool {
		return o == option || strings.HasPrefix(o, option+"=")
	})
}
