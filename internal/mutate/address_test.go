package mutate_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

func TestMain(m *testing.M) { os.Exit(mutatetest.Main(m)) }

// leaseOf returns the identity of a lease.
func (g *ghosts) leaseOf(file, container string) mutate.AddressLease {
	g.t.Helper()
	stat, err := g.Host.Files.Stat(file)
	if err != nil {
		g.t.Fatal(err)
	}
	return mutate.AddressLease{File: file, ContainerID: container, Modified: stat.Modified.UnixNano(),
		ID: mutate.FileID{Device: hosterr.Device(stat.Device), Inode: stat.Inode}}
}

// host-local frees the addresses of one sandbox in one network: none of other sandboxes, and none that may be in use.
func TestFreeAddress(t *testing.T) {
	hosttest.PrivateNetwork(t)
	g := newGhosts(t)
	uid := mutatetest.UID(t)
	pin := g.MountNetns(filepath.Join(g.Dir, "netns", "cni-"+mutatetest.UID(t))).Path
	attached := g.Attach(uid, pin)
	network := filepath.Join(g.Host.Paths.CNINetworksDir, attached.Network)
	leases, err := filepath.Glob(network + "/10.*")
	if err != nil || len(leases) != 1 {
		t.Fatal(leases, err)
	}
	lease := g.leaseOf(leases[0], attached.ContainerID)
	sibling := mutatetest.Hex(t, 64) // of a living pod, in the same network, and in another one
	g.Write(filepath.Join(network, "10.203.0.77"), sibling+"\r\neth0")
	g.Write(filepath.Join(g.Host.Paths.CNINetworksDir, "podman/10.203.0.78"), attached.ContainerID+"\r\neth0")
	snapshot := func() map[string]string { return mutatetest.Snapshot(t, g.Host.Paths.CNINetworksDir) }
	before := snapshot()
	free := func(l mutate.AddressLease) error { return g.Mutator.FreeAddress(t.Context(), l) }
	refused := func(what string, l mutate.AddressLease, want error) {
		t.Helper()
		err := free(l)
		if err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
		if diff := cmp.Diff(before, snapshot()); diff != "" {
			t.Fatalf("%s: %s", what, diff)
		}
	}
	refused("attached", lease, mutate.ErrBusy)
	aside := filepath.Join(g.Dir, "attachment")
	if err := os.Rename(attached.File, aside); err != nil {
		t.Fatal(err)
	}
	refused("a namespace has the address", lease, mutate.ErrBusy)
	if err := unix.Unmount(pin, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(aside, attached.File); err != nil {
		t.Fatal(err)
	}
	refused("attached, and no namespace has the address", lease, mutate.ErrBusy)
	if err := os.Remove(attached.File); err != nil {
		t.Fatal(err)
	}
	written, file, container := lease, lease, lease
	written.Modified++
	file.ID.Inode++
	container.ContainerID = sibling
	refused("written again", written, mutate.ErrChanged)
	refused("another file", file, mutate.ErrChanged)
	refused("another sandbox's", container, mutate.ErrChanged)
	outside := lease
	outside.File = filepath.Join(g.Dir, "outside/net/10.203.0.77")
	g.Write(outside.File, attached.ContainerID+"\r\neth0")
	refused("outside", g.leaseOf(outside.File, attached.ContainerID), nil)

	known := g.ctd.Ghost(uid, "sandbox", g.podCgroup(uid))
	g.Write(filepath.Join(network, "10.203.0.79"), known+"\r\neth0")
	before = snapshot()
	refused("containerd has its sandbox", g.leaseOf(filepath.Join(network, "10.203.0.79"), known), mutate.ErrBusy)

	lock, err := os.Open(filepath.Join(network, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- free(lease) }()
	waits := func() bool { // host-local itself waits for the lock
		pids, _ := g.Host.PIDs()
		for _, pid := range pids {
			stat, err := g.Host.ProcStat(pid)
			if err == nil && stat.Comm == "host-local" && stat.PPID == os.Getpid() {
				return true
			}
		}
		return false
	}
	mutatetest.Await(t, waits)
	if diff := cmp.Diff(before, snapshot()); diff != "" {
		t.Errorf("while another holds the lock: %s", diff)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := free(lease); err != nil { // already gone
		t.Error(err)
	}
	for name := range before {
		if name == lease.File || filepath.Base(name) == filepath.Base(lease.File) {
			delete(before, name)
		}
	}
	if diff := cmp.Diff(before, snapshot()); diff != "" {
		t.Error(diff)
	}
}
