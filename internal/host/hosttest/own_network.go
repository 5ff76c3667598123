package hosttest

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosttest/thread"
	"github.com/nodeagent/nodeagent/test/need"
)

// ownNetwork marks the child of OwnNetwork.
const ownNetwork = "NODEAGENT_TEST_OWN_NETWORK"

// OwnNetwork runs the calling test once more as a separate process in a new network namespace, where all its goroutines
// may change anything, and returns true there: loopback is up, and there is no other link. Otherwise it returns false
// after that run, and the test must return:
//
//	if !hosttest.OwnNetwork(t) {
//		return
//	}
//
// Only for root, and not for sub-tests.
func OwnNetwork(t *testing.T) bool {
	t.Helper()
	if os.Getenv(ownNetwork) != "" {
		up(t, "lo")
		return true
	}
	need.Root(t, "makes network namespaces")
	child := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	child.Env = append(os.Environ(), ownNetwork+"=1")
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := child.CombinedOutput()
	need.Child(t, out)
	if err != nil {
		t.Errorf("in a network namespace of its own: %v\n%s", err, out)
	} else {
		t.Logf("in a network namespace of its own:\n%s", out)
	}
	return false
}

// Address gives addresses with prefix length to a link of this network namespace.
func Address(t testing.TB, link string, addresses ...string) {
	t.Helper()
	device, err := netlink.LinkByName(link)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range addresses {
		address, err := netlink.ParseAddr(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.AddrAdd(device, address); err != nil {
			t.Fatalf("add %s to %s: %v", text, link, err)
		}
	}
}

func up(t testing.TB, link string) {
	t.Helper()
	device, err := netlink.LinkByName(link)
	if err == nil {
		err = netlink.LinkSetUp(device)
	}
	if err != nil {
		t.Fatalf("set %s up: %v", link, err)
	}
}

// Iptables changes the rules of this network namespace: backend is "nft" or "legacy".
func Iptables(t testing.TB, backend string, args ...string) {
	t.Helper()
	runTool(t, "", "/usr/sbin/iptables-"+backend, append([]string{"-w"}, args...)...)
}

// IP6tables is Iptables for IPv6.
func IP6tables(t testing.TB, backend string, args ...string) {
	t.Helper()
	runTool(t, "", "/usr/sbin/ip6tables-"+backend, append([]string{"-w"}, args...)...)
}

// NFT runs an nft script.
func NFT(t testing.TB, script string) {
	t.Helper()
	runTool(t, script, "/usr/sbin/nft", "-f", "-")
}

func runTool(t testing.TB, input, program string, args ...string) {
	t.Helper()
	need.Program(t, program)
	command := exec.CommandContext(t.Context(), program, args...)
	command.Stdin = strings.NewReader(input)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", program, strings.Join(args, " "), err, out)
	}
}

// InNetns calls do in the network namespace pinned at a path, on a thread that ends with it: goroutines started by do
// run outside of the namespace.
func InNetns(pin string, do func() error) error {
	done := make(chan error, 1) // the thread must not wait for its caller
	go func() {
		thread.Spoil()
		file, err := os.Open(pin)
		if err == nil {
			err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
			file.Close()
		}
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}

// Attach makes a pinned network namespace with one veth to this one. Both ends are up and have an address, and the near
// one is the other's default gateway.
func Attach(t testing.TB, pin, near, nearAddress, farAddress string) {
	t.Helper()
	PinNetns(t, pin)
	Veth(t, near, "eth0", pin)
	Addresses(t, pin, near, nearAddress, farAddress)
}

// Addresses adds further addresses to both ends of Attach's veth, for example of another family.
func Addresses(t testing.TB, pin, near, nearAddress, farAddress string) {
	t.Helper()
	Address(t, near, nearAddress)
	up(t, near)
	gateway, _, _ := strings.Cut(nearAddress, "/")
	err := InNetns(pin, func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		address, err := netlink.ParseAddr(farAddress)
		if err != nil {
			return err
		}
		address.Flags = unix.IFA_F_NODAD // the address is unique
		if err := netlink.AddrAdd(link, address); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(gateway)})
	})
	if err != nil {
		t.Fatalf("attach %s: %v", pin, err)
	}
}
