package hosttest

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
)

// ownNetwork marks the child of OwnNetwork.
const ownNetwork = "NODEAGENT_TEST_OWN_NETWORK"

// OwnNetwork runs the calling test once more as a process of its own in a new network namespace, where all its goroutines
// may do what they like, and returns true there: loopback is up, and there is nothing else. Everywhere else it returns
// false after that run, which the test shall end with:
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
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	child := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	child.Env = append(os.Environ(), ownNetwork+"=1")
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := child.CombinedOutput()
	switch {
	case strings.Contains(string(out), "--- SKIP"):
		t.Skipf("in a network namespace of its own: %s", out)
	case err != nil:
		t.Errorf("in a network namespace of its own: %v\n%s", err, out)
	default:
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
	program := "/usr/sbin/iptables-" + backend
	if _, err := os.Stat(program); err != nil {
		t.Skipf("needs %s", program)
	}
	out, err := exec.CommandContext(t.Context(), program, append([]string{"-w"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", program, strings.Join(args, " "), err, out)
	}
}
