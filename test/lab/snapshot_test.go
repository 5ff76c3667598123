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

// snapshot is what a machine shows of a lab.
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
		if err == nil && entry.IsDir() {
			s["cgroup"] = append(s["cgroup"], path)
		}
		return nil // cgroups of others come and go
	})
	for kind, pattern := range map[string]string{
		"link": "/sys/class/net/*", "netns": "/run/netns/*", "loop device": "/sys/block/loop*/loop/backing_file",
		"shim socket": "/run/containerd/s/*", "CNI result": "/var/lib/cni/results/*",
		"log link":     "/var/log/containers/*",
		"kubelet file": "/var/lib/kubelet/*", "containerd file": "/run/containerd/*", "NRI file": "/run/nri/*",
	} {
		s[kind], _ = filepath.Glob(pattern)
	}
	for _, name := range sysctlNames {
		value, _ := os.ReadFile(filepath.Join("/proc/sys", name))
		s["sysctl"] = append(s["sysctl"], name+"="+string(value))
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

// compare tells what is there now and was not before.
func (s snapshot) compare(t *testing.T) {
	t.Helper()
	for kind, now := range takeSnapshot(t) {
		for _, name := range now {
			if !slices.Contains(s[kind], name) {
				t.Errorf("left behind: %s %s", kind, name)
			}
		}
	}
}
