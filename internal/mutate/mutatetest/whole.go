package mutatetest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	hostnetlink "github.com/nodeagent/nodeagent/internal/host/netlink"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// Whole lists the node with everything in the test's PID, network and mount namespaces: the objects of Census,
// addresses and routes, all living processes, and all files of the node's directory except those in own, which are the
// agent's and the test's. It needs the namespaces of Parts, in which only the test makes changes.
func (n *Node) Whole(own ...string) Census {
	n.t.Helper()
	if os.Getenv(partMark) == "" {
		n.t.Fatal("outside of Parts neighbours would be counted")
	}
	c := Census{}
	n.countMounts(c)
	n.countLinks(c)
	n.countAddresses(c)
	n.countCgroups(c)
	n.countProcesses(c)
	entries, err := os.ReadDir(n.Dir)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, entry := range entries {
		if !slices.Contains(own, entry.Name()) {
			countFiles(n.t, c, filepath.Join(n.Dir, entry.Name()), nil)
		}
	}
	return c
}

// countAddresses leaves out link-local addresses: the kernel adds them to a link some time after it came up.
func (n *Node) countAddresses(c Census) {
	n.t.Helper()
	addresses, err := hostnetlink.WholeDump(func() ([]netlink.Addr, error) {
		return netlink.AddrList(nil, netlink.FAMILY_ALL)
	})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, a := range addresses {
		if a.Scope != unix.RT_SCOPE_LINK {
			c[fmt.Sprintf("address %s of link %d", a.IPNet, a.LinkIndex)] = a.Label
		}
	}
	routes, err := hostnetlink.WholeDump(func() ([]netlink.Route, error) {
		return netlink.RouteList(nil, netlink.FAMILY_V4)
	})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, r := range routes {
		c[fmt.Sprintf("route to %s by link %d", r.Dst, r.LinkIndex)] = fmt.Sprint(r.Gw, r.Src, r.Priority)
	}
}

// countProcesses lists those of the PID namespace. A shell that executes another program counts as unchanged.
func (n *Node) countProcesses(c Census) {
	n.t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		n.t.Fatal(err)
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat, err := n.Host.ProcStat(pid)
		if err := proc.UnlessGone(err); err != nil {
			n.t.Fatal(err)
		}
		if err == nil && proc.Alive(stat) {
			c[fmt.Sprintf("process %d", pid)] = fmt.Sprint("since ", stat.StartTime)
		}
	}
}

// Differences returns the differences of after, sorted: lost, changed and new objects.
func (c Census) Differences(after Census) []string {
	var lines []string
	for name, was := range c {
		now, ok := after[name]
		switch {
		case !ok:
			lines = append(lines, fmt.Sprintf("lost: %s: %s", name, was))
		case now != was:
			lines = append(lines, fmt.Sprintf("changed: %s: was %s, is %s", name, was, now))
		}
	}
	for name, now := range after {
		if _, ok := c[name]; !ok {
			lines = append(lines, fmt.Sprintf("new: %s: %s", name, now))
		}
	}
	slices.Sort(lines)
	return lines
}
