package kernellog

import (
	"path"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// maxPrinted bounds how much of an outside text is shown.
const maxPrinted = 1024

// Printable returns text as one line of valid UTF-8 without control characters, of a useful length.
func Printable(text []byte) string { return PrintableUpTo(text, maxPrinted) }

// PrintableUpTo is Printable with a limit in bytes.
func PrintableUpTo(text []byte, limit int) string {
	kept := finding.Clip(string(text), limit)
	s := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) || r == 0x2028 || r == 0x2029 ||
			(r >= 0x202a && r <= 0x202e) || (r >= 0x2066 && r <= 0x2069) {
			return '\uFFFD' // controls, line separators and direction marks could hide text
		}
		return r
	}, strings.ToValidUTF8(kept, "\uFFFD"))
	if len(kept) < len(text) {
		s += "…"
	}
	return s
}

// podOfCgroup returns the pod, and the container if there is one, of a cgroup as named in the kernel's log: from the
// root of the hierarchy, whatever kubelet's own root, for both of its drivers. For a kubepods tree below another pod it
// returns the outer pod, which this node knows.
func podOfCgroup(name string) (uid, container string, ok bool) {
	name = path.Clean(strings.TrimSpace(name))
	if !strings.HasPrefix(name, "/") {
		return "", "", false
	}
	parts := strings.Split(name[1:], "/")
	for i := 1; i < len(parts); i++ {
		uid, ok = podOfName(parts[i-1], parts[i])
		if !ok {
			continue
		}
		if i+1 < len(parts) {
			container = containerOfName(parts[i+1])
		}
		return uid, container, true
	}
	return "", "", false
}

// podOfName returns the UID in the name of a pod's cgroup below parent:
//
//	burstable/pod<uid>    kubepods/pod<uid>    kubepods-burstable.slice/kubepods-burstable-pod<uid, _ for ->.slice
func podOfName(parent, name string) (string, bool) {
	if slice, ok := strings.CutSuffix(name, ".slice"); ok {
		prefix, uid, ok := strings.Cut(slice, "-pod")
		if !ok || !strings.Contains(prefix, "kubepods") || !strings.HasPrefix(parent, prefix) {
			return "", false
		}
		uid = strings.ReplaceAll(uid, "_", "-")
		return uid, host.IsPodUID(uid)
	}
	if parent != "kubepods" && parent != "burstable" && parent != "besteffort" {
		return "", false
	}
	uid, ok := strings.CutPrefix(name, "pod")
	return uid, ok && host.IsPodUID(uid)
}

// containerOfName returns the container ID in the name of a container's cgroup: the ID, or <runtime>-<ID>.scope.
func containerOfName(name string) string {
	if scope, ok := strings.CutSuffix(name, ".scope"); ok {
		name = scope[strings.LastIndexByte(scope, '-')+1:]
	}
	if !host.IsContainerID(name) {
		return ""
	}
	return name
}
