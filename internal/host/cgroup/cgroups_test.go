package cgroup_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

func TestCgroupHierarchies(t *testing.T) {
	const table = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,seclabel,cpu,cpuacct
33 31 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/lib/systemd/systemd-cgroups-agent,name=systemd
34 31 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,clone_children,memory
35 31 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
36 31 0:31 / /sys/fs/cgroup/again rw - cgroup cgroup rw,clone_children,memory
90 23 0:31 /docker/x /var/lib/x/rootfs/sys/fs/cgroup/memory ro - cgroup cgroup rw,memory
`
	mounts, err := mountinfo.Parse(strings.NewReader(table))
	if err != nil {
		t.Fatal(err)
	}
	want := []cgroup.CgroupHierarchy{
		{Name: "cpu,cpuacct", Point: "/sys/fs/cgroup/cpu,cpuacct"},
		{Name: "name=systemd", Point: "/sys/fs/cgroup/systemd"},
		{Name: "memory", Point: "/sys/fs/cgroup/memory"},
		{Name: "", Point: "/sys/fs/cgroup/unified", V2: true},
	}
	got := cgroup.CgroupHierarchies(mounts, "/sys/fs/cgroup")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !got[0].Has("cpuacct") || got[0].Has("memory") || got[3].Has("") {
		t.Error("controllers of hierarchies")
	}
}

// Real cgroups, in all mounted hierarchies of this machine.
func TestPodCgroupsOfThisMachine(t *testing.T) {
	need.Root(t, "makes cgroups")
	h := &host.Host{Paths: host.Paths{InitPID: os.Getpid(), CgroupRoot: "/nodeagent-host-test"}}
	mounts, err := mount.Table(h)
	if err != nil {
		t.Fatal(err)
	}
	hierarchies := cgroup.CgroupHierarchies(mounts, "/sys/fs/cgroup")
	need.Has(t, len(hierarchies) > 0, "mounted cgroups")
	for _, hierarchy := range hierarchies {
		cgroupfs := "/nodeagent-host-test/kubepods/burstable/pod" + hosttest.PodUID
		slice := "/nodeagent_host_test.slice/nodeagent_host_test-kubepods.slice"
		systemd := slice + "/nodeagent_host_test-kubepods-pod" + hosttest.UnderUID + ".slice"
		want := []string{cgroupfs, cgroupfs + "/" + hosttest.ContainerID, cgroupfs + "/" + hosttest.ContainerID +
			"/init", systemd}
		makeCgroups(t, hierarchy.Point, append(want, "/nodeagent-host-test/kubepods/podman", "/nodeagent-host-test/pod"+
			hosttest.PodUID)...)
		cgroups, err := cgroup.PodCgroups(h, hierarchy)
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
			if c.UID != hosttest.PodUID || (c.ContainerID == hosttest.ContainerID) != strings.Contains(c.Path,
				hosttest.ContainerID+"") && c.Depth < 2 {
				t.Errorf("%s: pod %s container %s", c.Path, c.UID, c.ContainerID)
			}
			if frozen, err := cgroup.Frozen(h, c); frozen || err != nil && (hierarchy.V2 || hierarchy.Has("freezer")) {
				t.Errorf("%s: frozen %v, %v", c.Path, frozen, err)
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", hierarchy.Point, diff)
		}
	}
}

// A pod with too many cgroups affects only itself: the pods before and after it are listed completely, and its own
// cgroup says that some of its are missing.
func TestPodCgroupsOfHostilePod(t *testing.T) {
	const hostile, other = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
	deep, long := "", ""
	for range 33 {
		deep += "/d"
	}
	for range 10 {
		long += "/" + strings.Repeat("l", 250)
	}
	var wide, many []string
	for i := range 3000 {
		wide = append(wide, "/"+hosttest.ContainerID+"/w"+strconv.Itoa(i))
		many = append(many, "/"+hosttest.ContainerID+"/"+strconv.Itoa(i%100)+"/"+strconv.Itoa(i))
	}
	for name, test := range map[string]struct {
		below []string
		why   string
	}{
		"wide":             {wide, "more than"},
		"many":             {many, "more than 1024 cgroups"},
		"deep":             {[]string{deep}, "more than 32 deep"},
		"long":             {[]string{long}, "more than 1024 bytes"},
		"just deep enough": {[]string{deep[2:]}, ""},
		"systemd in it":    {wide[:900], ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := hosttest.Host(t)
			hierarchy := cgroup.CgroupHierarchy{Name: "pids", Point: "/sys/fs/cgroup/pids"}
			class := filepath.Join(h.Files.Root, hierarchy.Point, "kubepods")
			want := map[string]int{}
			for _, uid := range []string{hosttest.PodUID, other, hosttest.StaticUID} {
				want[uid] = 3
				if err := os.MkdirAll(filepath.Join(class, "pod"+uid, hosttest.ContainerID, "init"),
					0o755); err != nil {
					t.Fatal(err)
				}
			}
			for _, below := range test.below {
				if err := os.MkdirAll(filepath.Join(class, "pod"+hostile, below), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			cgroups, err := cgroup.PodCgroups(h, hierarchy)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]int{}
			for _, c := range cgroups {
				got[c.UID]++
				if c.Depth == 0 && (c.Unlisted != "") != (c.UID == hostile && test.why != "") ||
					!strings.Contains(c.Unlisted, test.why) && c.UID == hostile && c.Depth == 0 {
					t.Errorf("pod %s: %q, want %q", c.UID, c.Unlisted, test.why)
				}
				if len(c.Path) > 1024 || c.Depth > 32 {
					t.Errorf("%s", c.Path)
				}
			}
			if got[hostile] == 0 || got[hostile] > 1024 {
				t.Errorf("%d of its own are listed", got[hostile])
			}
			delete(got, hostile)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// makeCgroups makes cgroups below a mount point, and removes all of the private tree when the test ends.
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
