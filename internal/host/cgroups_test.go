package host_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
)

func TestCgroupHierarchies(t *testing.T) {
	const table = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,seclabel,cpu,cpuacct
33 31 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/lib/systemd/systemd-cgroups-agent,name=systemd
34 31 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,clone_children,memory
35 31 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
36 31 0:31 / /sys/fs/cgroup/again rw - cgroup cgroup rw,clone_children,memory
90 23 0:31 /docker/x /var/lib/x/rootfs/sys/fs/cgroup/memory ro - cgroup cgroup rw,memory
`
	mounts, err := host.ParseMounts(strings.NewReader(table))
	if err != nil {
		t.Fatal(err)
	}
	want := []host.CgroupHierarchy{
		{Name: "cpu,cpuacct", Point: "/sys/fs/cgroup/cpu,cpuacct"},
		{Name: "name=systemd", Point: "/sys/fs/cgroup/systemd"},
		{Name: "memory", Point: "/sys/fs/cgroup/memory"},
		{Name: "", Point: "/sys/fs/cgroup/unified", V2: true},
	}
	got := host.CgroupHierarchies(mounts, "/sys/fs/cgroup")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !got[0].Has("cpuacct") || got[0].Has("memory") || got[3].Has("") {
		t.Error("controllers of hierarchies")
	}
}

// Real cgroups, in all hierarchies that this machine has mounted.
func TestPodCgroupsOfThisMachine(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes cgroups")
	}
	h := &host.Host{Paths: host.Paths{InitPID: os.Getpid(), CgroupRoot: "/nodeagent-host-test"}}
	mounts, err := h.Mounts()
	if err != nil {
		t.Fatal(err)
	}
	hierarchies := host.CgroupHierarchies(mounts, "/sys/fs/cgroup")
	if len(hierarchies) == 0 {
		t.Skip("needs cgroups: none mounted")
	}
	for _, hierarchy := range hierarchies {
		cgroupfs := "/nodeagent-host-test/kubepods/burstable/pod" + podUID
		slice := "/nodeagent_host_test.slice/nodeagent_host_test-kubepods.slice"
		systemd := slice + "/nodeagent_host_test-kubepods-pod" + underUID + ".slice"
		want := []string{cgroupfs, cgroupfs + "/" + container, cgroupfs + "/" + container + "/init", systemd}
		makeCgroups(t, hierarchy.Point, append(want, "/nodeagent-host-test/kubepods/podman", "/nodeagent-host-test/pod"+podUID)...)
		cgroups, err := h.PodCgroups(hierarchy)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range cgroups {
			got = append(got, c.Path)
			stat, err := h.Files.Stat(c.Dir())
			if err != nil || stat.Inode != c.Inode || stat.Device != c.Device {
				t.Errorf("%s is %d:%d, stat says %+v %v", c.Dir(), c.Device, c.Inode, stat, err)
			}
			if c.UID != podUID || (c.ContainerID == container) != strings.Contains(c.Path, container+"") && c.Depth < 2 {
				t.Errorf("%s: pod %s container %s", c.Path, c.UID, c.ContainerID)
			}
			if frozen, err := h.Frozen(c); frozen || err != nil && (hierarchy.V2 || hierarchy.Has("freezer")) {
				t.Errorf("%s: frozen %v, %v", c.Path, frozen, err)
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", hierarchy.Point, diff)
		}
	}
}

// makeCgroups makes cgroups below a mount point, and takes away all of the private tree when the test ends.
func makeCgroups(t *testing.T, point string, names ...string) {
	t.Helper()
	made := make(map[string]bool)
	for _, name := range names {
		for dir := filepath.Join(point, name); dir != filepath.Clean(point); dir = filepath.Dir(dir) {
			made[dir] = true
		}
		if err := os.MkdirAll(filepath.Join(point, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		var dirs []string
		for dir := range made {
			dirs = append(dirs, dir)
		}
		slices.SortFunc(dirs, func(a, b string) int { return len(b) - len(a) }) // leaves first
		for _, dir := range dirs {
			if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
				t.Error(err)
			}
		}
	})
}
