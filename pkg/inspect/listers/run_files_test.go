package listers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
)

// What containerd made for a container in /run is a leftover once its pod and the container are gone; of a container
// that nothing knows it is unowned.
func TestRunFiles(t *testing.T) {
	n := newNode(t)
	state := n.Host.Paths.ContainerdState
	id := func(c string) string { return strings.Repeat(c, 64) }
	for _, c := range []string{"a", "b", "c"} {
		dir := n.Mkdir(state, "io.containerd.grpc.v1.cri/containers", id(c), "io/1")
		write(t, filepath.Join(dir, id(c)+"-stdout"), "")
	}
	n.Mkdir(state, "io.containerd.grpc.v1.cri/containers/other")
	write(t, filepath.Join(n.Mkdir(state, "fifo/17"), id("d")+"-stderr"), "")
	write(t, filepath.Join(n.Mkdir(state, "fifo/18"), "of-ctr-stdin"), "")
	n.Mkdir(state, "fifo/19")
	n.Sandbox(living, sandbox)
	n.Containers = append(n.Containers, &cri.Container{Id: id("a"), Labels: map[string]string{inspect.UIDLabel: living}})
	n.Cgroups(n.Host.Paths.CgroupRoot + "/kubepods/pod" + dead + "/" + id("b"))
	report := n.ripen(t, inspect.History{}, n.inspector())
	noErrors(t, report)
	want := map[string]inspect.Verdict{"a": inspect.Live, "b": inspect.Leftover, "c": inspect.Unowned, "17": inspect.Unowned}
	ids := map[string]string{"a": id("a"), "b": id("b"), "c": id("c"), "17": "fifo/17", "18": "fifo/18", "19": "fifo/19",
		"other": "containers/other"}
	if diff := cmp.Diff(want, of(report, inspect.RunFile, ids)); diff != "" {
		t.Errorf("%s\n%s", diff, whys(report, dead))
	}
}

// udev's records are those of a kernel before 5.9, as of the issue that listRunFiles names. There may be very many.
func TestRecordsOfUdev(t *testing.T) {
	scan := inspecttest.MountScan(t, "1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw\n")
	scan.Host.Paths.CgroupRoot = "/"
	dir := scan.Host.Files.Path("/run/udev/data")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	id := strings.Repeat("e", 64)
	slice := "kubepods-burstable-pod" + strings.ReplaceAll(inspecttest.Dead, "-", "_") + ".slice"
	records := []string{"+cgroup:dentry(1187:" + id + ")", "+cgroup:kmalloc-64(7:cri-containerd-" + id + ".scope)",
		"+cgroup:inode_cache(19:" + slice + ")", "+cgroup:dentry(3:init.scope)", "+cgroup:dentry(1187:" + id, "b8:0", "c1:3"}
	for _, name := range records {
		hosttest.Write(t, dir, name, "I:1\n")
	}
	list := func() (owners []string, notListed string) {
		t.Helper()
		objects, err := listRunFiles(t.Context(), scan)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			owners, notListed = append(owners, o.Pod.UID+o.ContainerID), o.Facts["notListed"]
		}
		return owners, notListed
	}
	owners, _ := list()
	if got := fmt.Sprint(len(owners), strings.Count(strings.Join(owners, " "), id), strings.Contains(strings.Join(owners, " "),
		inspecttest.Dead)); got != "3 2 true" {
		t.Errorf("%s: %v", got, owners)
	}
	for i := range maxRunFiles {
		hosttest.Write(t, dir, fmt.Sprintf("+cgroup:dentry(%d:%s)", i, id), "I:1\n")
	}
	owners, more := list()
	if want := fmt.Sprintf("%d more in /run/udev/data", len(owners)+3-maxRunFiles); len(owners) != maxRunFiles || more != want {
		t.Errorf("%d listed, %q", len(owners), more)
	}
}
