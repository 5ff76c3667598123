package cgroup_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

func TestCgroupOf(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"v2": {map[string]string{
			"proc/7/cgroup": "0::/system.slice/a.service\n", "sys/fs/cgroup/cgroup.controllers": "cpu",
		}, "/sys/fs/cgroup /system.slice/a.service"},
		"v1": {map[string]string{
			"proc/7/cgroup": "4:cpu,cpuacct:/a\n1:name=systemd:/b\n0::/c\n", "sys/fs/cgroup/cpu/cgroup.procs": "",
			"sys/fs/cgroup/unified/cgroup.controllers": "",
		}, "/sys/fs/cgroup/cpu /a"},
		"hybrid": {map[string]string{
			"proc/7/cgroup": "4:pids:/a\n0::/c\n", "sys/fs/cgroup/unified/cgroup.controllers": "cpu",
		}, "/sys/fs/cgroup/unified /c"},
	} {
		t.Run(name, func(t *testing.T) {
			h := hosttest.Host(t)
			for file, content := range test.files {
				hosttest.WriteHostFile(t, h, file, content)
			}
			hierarchy, below, err := cgroup.CgroupOf(h, 7, "cpu")
			if err != nil || hierarchy.Point+" "+below != test.want {
				t.Errorf("%+v %s, %v; want %s", hierarchy, below, err, test.want)
			}
			if with, err := cgroup.CgroupWith(h, "cpu"); err != nil || with.Point != hierarchy.Point {
				t.Errorf("CgroupWith = %+v, %v", with, err)
			}
		})
	}
	h := hosttest.Host(t)
	hosttest.WriteHostFile(t, h, "proc/7/cgroup", "1:name=systemd:/b\n")
	if _, _, err := cgroup.CgroupOf(h, 7, "cpu"); !errors.Is(err, hosterr.ErrNotConfigured) {
		t.Errorf("no such controller: %v", err)
	}
	if _, err := cgroup.CgroupWith(h, "cpu"); !errors.Is(err, hosterr.ErrNotConfigured) {
		t.Errorf("no cgroups: %v", err)
	}
}

func TestCgroupChain(t *testing.T) {
	want := []string{"/system.slice/a.service", "/system.slice"}
	if diff := cmp.Diff(want, cgroup.CgroupChain("/system.slice/a.service")); diff != "" {
		t.Error(diff)
	}
	if got := cgroup.CgroupChain("/"); len(got) != 0 {
		t.Errorf("the root: %v", got)
	}
	kubepods := []string{"/lab/kubepods", "/lab.slice/lab-kubepods.slice"}
	if diff := cmp.Diff(kubepods, cgroup.KubepodsCgroups(host.Paths{CgroupRoot: "/lab"})); diff != "" {
		t.Error(diff)
	}
}
