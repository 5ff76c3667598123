package checkkit

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/tailfile"
)

// SysctlFile returns the file of a setting, whose parts are separated by dots, or by slashes if a slash comes first. It
// is empty for an invalid name.
func SysctlFile(name string) string {
	parted := strings.IndexAny(name, "./")
	if parted < 1 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@") != "" {
		return ""
	}
	if name[parted] == '.' {
		name = strings.NewReplacer(".", "/", "/", ".").Replace(name)
	}
	file := path.Join("/proc/sys", name)
	if file != "/proc/sys/"+name {
		return "" // it contains .. or names a folder
	}
	return file
}

// SysctlWriter returns the file that sets a setting last, if it sets that value.
func SysctlWriter(files host.Files, name, value string) string {
	writer, word := SysctlWord(files, name)
	if !slices.Equal(strings.Fields(word), strings.Fields(value)) {
		return ""
	}
	return Sanitize(writer, 256)
}

// SysctlWord returns the last value of a setting in sysctl's files, and the file. It does not support patterns in the
// names of settings.
func SysctlWord(files host.Files, name string) (file, word string) {
	for _, f := range sysctlFiles(files) {
		data, err := tailfile.Head(files, f, 64<<10)
		if err != nil {
			continue // only additional information
		}
		for line := range strings.Lines(string(data)) {
			key, set, ok := strings.Cut(strings.TrimSpace(line), "=")
			key = strings.TrimSpace(strings.TrimPrefix(key, "-"))
			if ok && SysctlFile(key) == SysctlFile(name) {
				file, word = f, set
			}
		}
	}
	return file, word
}

// sysctlFiles lists the files in the order in which systemd-sysctl(8) reads them: by name, regardless of the folder; a
// file in an earlier folder replaces one with the same name in a later one. sysctl(8) reads sysctl.conf last.
func sysctlFiles(files host.Files) []string {
	const most = 256
	seen := make(map[string]bool)
	var found []string
	for _, dir := range []string{"/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d",
		"/lib/sysctl.d"} {
		names, err := files.List(dir)
		if err != nil {
			continue
		}
		for _, name := range names {
			if strings.HasSuffix(name, ".conf") && !seen[name] && len(found) < most {
				seen[name], found = true, append(found, dir+"/"+name)
			}
		}
	}
	slices.SortFunc(found, func(a, b string) int { return cmp.Compare(path.Base(a), path.Base(b)) })
	return append(found, "/etc/sysctl.conf")
}
