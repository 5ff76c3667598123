package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
)

// bystanders are objects of a living pod that no release may touch: the test compares their processes, mounts, links
// and data before and after.
type bystanders struct {
	lab    *lab.Lab
	host   *host.Host
	pod    *harness.Victim // a living pod with the manifest of the released one
	before map[string]string
}

func newBystanders(t *testing.T, l *lab.Lab) *bystanders {
	t.Helper()
	pod, err := harness.NewVictim(t.Context(), l, "bystander-"+strings.ToLower(t.Name()))
	if err != nil {
		t.Fatal(err)
	}
	return beside(t, l, pod)
}

// beside observes a living pod until the test ends, and then deletes it.
func beside(t *testing.T, l *lab.Lab, pod *harness.Victim) *bystanders {
	t.Helper()
	t.Cleanup(func() {
		if err := pod.Delete(context.WithoutCancel(t.Context())); err != nil {
			t.Log(err)
		}
	})
	b := &bystanders{lab: l, pod: pod, host: &host.Host{Paths: host.Paths{
		InitPID: 1, KubeletRoot: l.Paths.KubeletRoot, CgroupRoot: l.Paths.CgroupRoot,
	}}}
	b.before = b.observe(t)
	for _, kind := range []string{"process", "mount", "link", "directory", "cgroup"} {
		found := 0
		for name := range b.before {
			if strings.HasPrefix(name, kind+" ") {
				found++
			}
		}
		if found == 0 {
			t.Fatalf("the bystander has no %s: this test would prove nothing", kind)
		}
	}
	return b
}

// observe lists all objects of the living pod with their identities.
func (b *bystanders) observe(t *testing.T) map[string]string {
	t.Helper()
	seen := map[string]string{}
	pids, err := b.host.PIDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		cgroups, err := b.host.ProcCgroups(pid)
		if err != nil {
			continue // ended meanwhile
		}
		for _, path := range cgroups {
			if uid, _, ok := b.host.Paths.PodOfCgroup(path); ok && uid == b.pod.UID {
				if stat, err := b.host.ProcStat(pid); err == nil {
					seen[fmt.Sprintf("process %d", pid)] = fmt.Sprint(stat.StartTime)
				}
			}
		}
	}
	mounts, err := mount.Table(b.host)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if strings.Contains(m.Point, b.pod.UID) {
			seen["mount "+m.Point] = fmt.Sprint(m.ID, m.Major, m.Minor, m.Root)
		}
	}
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if link.Name == lab.PodBridge {
			seen["link "+link.Name] = fmt.Sprint(link.Index)
		}
	}
	dirs, err := b.lab.PodCgroups(b.pod.UID)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		seen["cgroup "+dir] = inode(t, dir)
	}
	dir := filepath.Join(b.lab.Paths.KubeletRoot, "pods", b.pod.UID)
	seen["directory "+dir] = inode(t, dir)
	return seen
}

func inode(t *testing.T, path string) string {
	t.Helper()
	stat, err := (host.Files{}).Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(stat.Inode)
}

// check fails if any object of the living pod has changed.
func (b *bystanders) check(t *testing.T) {
	t.Helper()
	if diff := cmp.Diff(b.before, b.observe(t)); diff != "" {
		t.Errorf("a living pod was touched (-before +after):\n%s", diff)
	}
	if err := b.pod.CheckCanary(); err != nil {
		t.Errorf("the data of a living pod was touched: %v", err)
	}
	if _, err := os.Stat(b.pod.Canary); err != nil {
		t.Error(err)
	}
}
