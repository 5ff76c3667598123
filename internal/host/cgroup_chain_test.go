package host_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

func layOut(t *testing.T, h *host.Host, name, content string) {
	t.Helper()
	file := filepath.Join(h.Files.Root, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCgroupOf(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"v2": {map[string]string{
			"proc/7/cgroup": "0::/system.slice/a.service\n", "sys/fs/cgroup/cgroup.controllers": "cpu",
		}, "/sys/fs/cgroup /system.slice/a.service"},
		"v1": {map[string]string{
			"proc/7/cgroup": "4:cpu,cpuacct:/a\n1:name=systemd:/b\n0::/c\n", "sys/fs/cgroup/cpu/cgroup.procs": "", "sys/fs/cgroup/unified/cgroup.controllers": "",
		}, "/sys/fs/cgroup/cpu /a"},
		"hybrid": {map[string]string{
			"proc/7/cgroup": "4:pids:/a\n0::/c\n", "sys/fs/cgroup/unified/cgroup.controllers": "cpu",
		}, "/sys/fs/cgroup/unified /c"},
	} {
		t.Run(name, func(t *testing.T) {
			h := hosttest.Host(t)
			for file, content := range test.files {
				layOut(t, h, file, content)
			}
			hierarchy, below, err := h.CgroupOf(7, "cpu")
			if err != nil || hierarchy.Point+" "+below != test.want {
				t.Errorf("%+v %s, %v; want %s", hierarchy, below, err, test.want)
			}
			if with, err := h.CgroupWith("cpu"); err != nil || with.Point != hierarchy.Point {
				t.Errorf("CgroupWith = %+v, %v", with, err)
			}
		})
	}
	h := hosttest.Host(t)
	layOut(t, h, "proc/7/cgroup", "1:name=systemd:/b\n")
	if _, _, err := h.CgroupOf(7, "cpu"); !errors.Is(err, host.ErrNotConfigured) {
		t.Errorf("no such controller: %v", err)
	}
	if _, err := h.CgroupWith("cpu"); !errors.Is(err, host.ErrNotConfigured) {
		t.Errorf("no cgroups: %v", err)
	}
}

func TestCgroupChain(t *testing.T) {
	want := []string{"/system.slice/a.service", "/system.slice"}
	if diff := cmp.Diff(want, host.CgroupChain("/system.slice/a.service")); diff != "" {
		t.Error(diff)
	}
	if got := host.CgroupChain("/"); len(got) != 0 {
		t.Errorf("the root: %v", got)
	}
	kubepods := []string{"/lab/kubepods", "/lab.slice/lab-kubepods.slice"}
	if diff := cmp.Diff(kubepods, host.Paths{CgroupRoot: "/lab"}.KubepodsCgroups()); diff != "" {
		t.Error(diff)
	}
}
