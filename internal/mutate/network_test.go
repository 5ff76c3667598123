package mutate_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosttest/thread"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

func TestRemoveNetns(t *testing.T) {
	n := mutatetest.New(t)
	pinned := n.MountNetns(filepath.Join(n.Dir, "netns", "cni-"+mutatetest.UID(t)))
	// A second mount on the same name, as some runtimes make.
	if err := unix.Mount(pinned.Path, pinned.Path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	again := pinned
	again.Inode++
	if err := n.Mutator.RemoveNetns(t.Context(), again); !errors.Is(err, mutate.ErrChanged) {
		t.Errorf("another namespace: %v", err)
	}
	for range 2 {
		if err := n.Mutator.RemoveNetns(t.Context(), pinned); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(pinned.Path); !os.IsNotExist(err) {
		t.Error("still there")
	}
	empty := filepath.Join(n.Dir, "netns", "cni-"+mutatetest.UID(t)) // as left by a reboot
	n.Write(empty, "")
	if err := n.Mutator.RemoveNetns(t.Context(),
		mutate.Netns{Path: empty, Inode: mutatetest.FileID(t, empty).Inode}); err != nil {
		t.Error(err)
	}
}

// A namespace with a second mount elsewhere would not end: removing its name would only hide it.
func TestRemoveNetnsMountedElsewhere(t *testing.T) {
	n := mutatetest.New(t)
	pinned := n.MountNetns(filepath.Join(n.Dir, "netns", "cni-"+mutatetest.UID(t)))
	copied := n.Write(filepath.Join(n.Dir, "copy"), "")
	if err := unix.Mount(pinned.Path, copied, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	var refusal mutate.Refusal
	if err := n.Mutator.RemoveNetns(t.Context(), pinned); !errors.As(err, &refusal) ||
		!strings.Contains(refusal.Why, copied) {
		t.Errorf("got %v, want a refusal that names %s", err, copied)
	}
	if gone, err := n.Mutator.NetnsGone(pinned); gone || err != nil {
		t.Errorf("gone %v, %v", gone, err)
	}
	if err := unix.Unmount(copied, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := n.Mutator.RemoveNetns(t.Context(), pinned); err != nil {
		t.Fatal(err)
	}
	if gone, err := n.Mutator.NetnsGone(pinned); !gone || err != nil {
		t.Errorf("gone %v, %v", gone, err)
	}
	if gone, err := n.Mutator.NetnsGone(mutate.Netns{Path: filepath.Join(copied, "x"), Inode: 7}); gone || err == nil {
		t.Errorf("nobody can say: gone %v, %v", gone, err)
	}
}

func TestRemoveNetnsRefuses(t *testing.T) {
	n := mutatetest.New(t)
	dir := filepath.Join(n.Dir, "netns")
	user := n.MountNetns(filepath.Join(dir, "foo"))                // ip netns add foo
	foreign := n.MountNetns(filepath.Join(dir, mutatetest.UID(t))) // named as by CRI-O, which does not run here
	elsewhere := n.MountNetns(filepath.Join(n.Dir, "cni-"+mutatetest.UID(t)))
	inhabited := n.MountNetns(filepath.Join(dir, "cni-"+mutatetest.UID(t)))
	resident := exec.Command("/usr/bin/nsenter", "--net="+inhabited.Path, "/bin/sh", "-c", "echo ready; exec sleep 60")
	out, err := resident.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := resident.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { resident.Process.Kill(); resident.Wait() }()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "cni-"+mutatetest.UID(t))
	n.Write(data, "content")
	tmpfs := n.Mount("tmpfs", filepath.Join(dir, "cni-"+mutatetest.UID(t)), "tmpfs", 0)
	link := filepath.Join(dir, "cni-"+mutatetest.UID(t))
	if err := os.Symlink(user.Path, link); err != nil {
		t.Fatal(err)
	}
	for name, try := range map[string]mutate.Netns{
		"a user's": user, "another runtime's": foreign, "elsewhere": elsewhere, "inhabited": inhabited,
		"a file with content":  {Path: data, Inode: mutatetest.FileID(t, data).Inode},
		"a mount of something": {Path: tmpfs.Point, Inode: mutatetest.FileID(t, tmpfs.Point).Inode},
		"a link":               {Path: link, Inode: mutatetest.FileID(t, link).Inode},
	} {
		if err := n.Mutator.RemoveNetns(t.Context(), try); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, pinned := range []mutate.Netns{user, foreign, elsewhere, inhabited} {
		if got := mutatetest.FileID(t, pinned.Path).Inode; got != pinned.Inode {
			t.Errorf("%s changed", pinned.Path)
		}
	}
	if len(n.Mounts(tmpfs.Point)) != 1 {
		t.Error("unmounted something that is no network namespace")
	}
}

// A process whose main thread has ended is in a network namespace as long as a thread of it lives.
func TestRemoveNetnsOfThreads(t *testing.T) {
	n := mutatetest.New(t)
	pinned := n.MountNetns(filepath.Join(n.Dir, "netns", "cni-"+mutatetest.UID(t)))
	thread.WithoutMain(t, func(c *exec.Cmd) {
		c.Path, c.Args = "/usr/bin/nsenter", []string{"nsenter", "--net=" + pinned.Path, c.Path}
	})
	if err := n.Mutator.RemoveNetns(t.Context(), pinned); !errors.Is(err, mutate.ErrBusy) {
		t.Errorf("got %v, want busy", err)
	}
	if got := mutatetest.FileID(t, pinned.Path).Inode; got != pinned.Inode {
		t.Errorf("%s changed", pinned.Path)
	}
}

// veth creates a pair with one end in a mounted namespace, or both ends on the host, and returns the host's end.
func veth(t *testing.T, netns string) (mutate.Link, string) {
	t.Helper()
	name := "nat" + mutatetest.Hex(t, 8)
	pair := netlink.NewVeth(netlink.LinkAttrs{Name: name})
	pair.PeerName = "nap" + mutatetest.Hex(t, 8)
	if netns != "" {
		file, err := os.Open(netns)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		pair.PeerNamespace = netlink.NsFd(file.Fd())
	}
	if err := netlink.LinkAdd(pair); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if link, err := netlink.LinkByName(name); err == nil {
			netlink.LinkDel(link)
		}
	})
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	at := link.Attrs()
	return mutate.Link{Index: at.Index, PeerIndex: at.ParentIndex, PeerNetns: at.NetNsID}, name
}

func TestDeleteLink(t *testing.T) {
	n := mutatetest.New(t)
	pinned := n.MountNetns(filepath.Join(n.Dir, "netns", "cni-"+mutatetest.UID(t)))
	inside, name := veth(t, pinned.Path)
	both, _ := veth(t, "")
	otherPeer, otherSpace := inside, inside
	otherPeer.PeerIndex++
	otherSpace.PeerNetns++
	for what, try := range map[string]mutate.Link{"other peer": otherPeer, "other namespace": otherSpace} {
		if err := n.Mutator.DeleteLink(try); !errors.Is(err, mutate.ErrChanged) {
			t.Errorf("%s: %v", what, err)
		}
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "nat" + mutatetest.Hex(t, 8)}}
	if err := netlink.LinkAdd(bridge); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = netlink.LinkDel(bridge) }()
	noPair := mutate.Link{Index: bridge.Index, PeerNetns: -1}
	if err := n.Mutator.DeleteLink(noPair); !errors.Is(err, mutate.ErrChanged) {
		t.Errorf("no veth: %v", err)
	}
	if _, err := netlink.LinkByIndex(bridge.Index); err != nil {
		t.Errorf("no veth: %v", err)
	}
	if gone, err := n.Mutator.LinkGone(noPair); err != nil || !gone {
		t.Errorf("another link has the index: gone %v, %v", gone, err)
	}
	if gone, err := n.Mutator.LinkGone(otherPeer); err != nil || !gone {
		t.Errorf("another pair has the index: gone %v, %v", gone, err)
	}
	if gone, err := n.Mutator.LinkGone(otherSpace); err != nil || gone {
		t.Errorf("its peer moved: gone %v, %v", gone, err)
	}
	if err := n.Mutator.DeleteLink(mutate.Link{Index: 1}); err == nil {
		t.Error("loopback: no error")
	}
	for range 2 {
		if err := n.Mutator.DeleteLink(inside); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := netlink.LinkByName(name); err == nil {
		t.Error("still there")
	}
	if gone, err := n.Mutator.LinkGone(inside); err != nil || !gone {
		t.Errorf("gone %v, %v", gone, err)
	}
	if gone, err := n.Mutator.LinkGone(both); err != nil || gone {
		t.Errorf("another link: gone %v, %v", gone, err)
	}
}

// The pod was created again with the same name, and its new interface has the name of the old one.
func TestDeleteLinkNeverByName(t *testing.T) {
	n := mutatetest.New(t)
	pinned := n.MountNetns(filepath.Join(n.Dir, "netns", "cni-"+mutatetest.UID(t)))
	old, name := veth(t, pinned.Path)
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	fresh := netlink.NewVeth(netlink.LinkAttrs{Name: name})
	fresh.PeerName = "nap" + mutatetest.Hex(t, 8)
	if err := netlink.LinkAdd(fresh); err != nil {
		t.Fatal(err)
	}
	before, _ := netlink.LinkByName(name)
	if err := n.Mutator.DeleteLink(old); err != nil {
		t.Fatal(err)
	}
	after, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before.Attrs().Index, after.Attrs().Index); diff != "" {
		t.Error(diff)
	}
}
