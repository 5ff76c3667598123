package hosttest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosttest/thread"
	"github.com/nodeagent/nodeagent/test/need"
)

// PrivateNetwork moves the calling test into a new network namespace, in which it may change anything: the namespace
// and everything in it end with the test. Sub-tests run in other goroutines and so outside of it. Only for root.
func PrivateNetwork(t testing.TB) {
	t.Helper()
	need.Root(t, "makes network namespaces")
	thread.Spoil() // the namespace ends with the test's goroutine
	need.Kernel(t, "network namespaces", unix.Unshare(unix.CLONE_NEWNET))
}

// PinNetns makes a network namespace and pins it at a path as a runtime does. It is unpinned when the test ends, unless
// the test has done so itself.
func PinNetns(t testing.TB, path string) {
	t.Helper()
	need.Root(t, "makes network namespaces")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		thread.Spoil()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("unshare: %w", err)
			return
		}
		namespace := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
		done <- unix.Mount(namespace, path, "", unix.MS_BIND, "")
	}()
	if err := <-done; err != nil {
		os.Remove(path)
		t.Fatalf("pin network namespace %s: %v", path, err)
	}
	t.Cleanup(func() {
		for unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil { // once for each mount
		}
		os.Remove(path)
	})
}

// Veth makes a veth pair with one end in this network namespace and the other in the one pinned at pin, or also in this
// one if pin is empty. It returns the index of the near end.
func Veth(t testing.TB, near, far, pin string) int {
	t.Helper()
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: near}, PeerName: far}
	if pin != "" {
		file, err := os.Open(pin)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		veth.PeerNamespace = netlink.NsFd(file.Fd())
	}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatalf("add veth %s: %v", near, err)
	}
	link, err := netlink.LinkByName(near)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(link) }) // already gone with its namespace
	return link.Attrs().Index
}
