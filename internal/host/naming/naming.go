// Package naming recognises the names that kubelet and the runtime give, and compares paths by their components.
package naming

import (
	"path"
	"strings"
)

// IsPodUID reports whether s has a form that kubelet gives to pod UIDs: a UUID in lower case, or 32 hexadecimal digits
// for static pods. A manifest may contain a UID of any other form; objects of such a pod are never recognized, and so
// never touched.
func IsPodUID(s string) bool {
	switch len(s) {
	case 32:
		return isHex(s)
	case 36:
		return s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-' &&
			isHex(s[:8]) && isHex(s[9:13]) && isHex(s[14:18]) && isHex(s[19:23]) && isHex(s[24:])
	}
	return false
}

// IsContainerID reports whether s has the form of a container or sandbox ID: 64 hexadecimal digits in lower case.
func IsContainerID(s string) bool { return len(s) == 64 && isHex(s) }

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

// SplitPath returns the components of a path.
func SplitPath(name string) []string {
	return strings.FieldsFunc(name, func(r rune) bool { return r == '/' })
}

// Below reports whether name is dir or lies below it, by complete path components. It looks up neither.
func Below(name, dir string) bool {
	name, dir = path.Clean(name), path.Clean(dir)
	return name == dir || dir == "/" && strings.HasPrefix(name, "/") || strings.HasPrefix(name, dir+"/")
}

// Rebase translates a path below from to the same path below to.
func Rebase(name, from, to string) string {
	return path.Join(to, strings.TrimPrefix(name, strings.TrimSuffix(from, "/")))
}
