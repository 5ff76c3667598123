package lab

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// snapshot has the traces of a lab on a machine.
type snapshot map[string][]string

func takeSnapshot(t *testing.T) snapshot {
	t.Helper()
	s := snapshot{}
	mounts, err := readMounts()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		s["mount"] = append(s["mount"], m.Point)
	}
	filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		// of the tests that run beside; systemd's names have underscores
		name := strings.ReplaceAll(entry.Name(), "_", "-")
		if strings.HasPrefix(name, "nodeagent-") && "/"+name != cgroupRoot(testDir) {
			return fs.SkipDir
		}
		if err == nil && entry.IsDir() {
			s["cgroup"] = append(s["cgroup"], path)
		}
		return nil // other programs' cgroups come and go
	})
	for kind, pattern := range map[string]string{
		"link": "/sys/class/net/*", "netns": "/run/netns/*",
		"shim socket": "/run/containerd/s/*", "CNI result": "/var/lib/cni/results/*",
		"log link":     "/var/log/containers/*",
		"kubelet file": "/var/lib/kubelet/*", "containerd file": "/run/containerd/*", "NRI file": "/run/nri/*",
	} {
		s[kind], _ = filepath.Glob(pattern)
	}
	s["loop device"] = loopDevices(testDir) // others belong to tests that run beside
	for _, name := range sysctlNames {
		value, _ := os.ReadFile(filepath.Join("/proc/sys", name))
		s["sysctl"] = append(s["sysctl"], name+"="+strings.TrimSpace(string(value)))
	}
	for _, dir := range foreignDirs {
		if exists(dir) {
			s["folder"] = append(s["folder"], dir)
		}
	}
	s["nat chain"] = slices.DeleteFunc(strings.Split(natRules(t.Context()), "\n"), func(line string) bool {
		return !strings.Contains(line, "CNI-")
	})
	for _, pid := range allPIDs() {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if bytes.Contains(cmdline, []byte(testDir)) {
			s["process"] = append(s["process"], fmt.Sprintf("%d %q", pid, cmdline))
		}
	}
	return s
}

// compare fails for objects that exist now and did not before.
func (s snapshot) compare(t *testing.T) {
	t.Helper()
	for kind, now := range takeSnapshot(t) {
		for _, name := range now {
			if !slices.Contains(s[kind], name) && !(kind == "cgroup" && s.belowAnother(t, name)) {
				t.Errorf("left behind: %s %s", kind, name)
			}
		}
	}
}

// belowAnother reports whether a cgroup is below one that existed before and in which another program creates cgroups.
// A lab creates its own in the root of a hierarchy, or, after an error, in the cgroup of the test's process.
func (s snapshot) belowAnother(t *testing.T, cgroup string) bool {
	t.Helper()
	parent := filepath.Dir(cgroup)
	for len(parent) > len("/sys/fs/cgroup") && !slices.Contains(s["cgroup"], parent) {
		parent = filepath.Dir(parent)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(own)) { // "4:memory:/path"
		if fields := strings.SplitN(strings.TrimSpace(line), ":", 3); len(fields) == 3 && fields[2] != "/" &&
			strings.HasSuffix(parent, fields[2]) {
			return false
		}
	}
	return exists(filepath.Join(filepath.Dir(parent), "cgroup.procs")) // it is no root
}
