package kinds

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
)

// udev's records are those of a kernel before 5.9, as of the issue that listRunFiles names. There may be very many.
func TestRecordsOfUdev(t *testing.T) {
	scan := MountScan(t, "1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw\n")
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
