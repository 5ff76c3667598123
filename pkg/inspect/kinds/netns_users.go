package kinds

import (
	"fmt"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/holders"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// findNetnsUsers finds the processes in the network namespaces of suspects. A process of another pod or of none makes
// the object foreign: another runtime on this machine may share the directories with ours.
func findNetnsUsers(scan *hostscan.Scan, suspects []*object.Object) error {
	table, err := scan.Processes()
	if err != nil {
		return err
	}
	netnsMounts, err := scan.NetnsMounts()
	if err != nil {
		return err
	}
	inodes := make(map[string]uint64)
	for _, p := range netnsMounts {
		inodes[p.Path] = p.Inode
	}
	pods := make(map[int]string)
	for _, p := range table.Pods {
		pods[p.PID] = p.UID
	}
	users := make(map[uint64][]int)
	for _, pid := range table.PIDs {
		if pid == 1 || pid == scan.Host.Paths.InitPID {
			continue // it is in the host's namespace, and some kernels do not let the agent read it
		}
		inode, err := holders.NetworkNamespace(scan.Host, pid)
		if proc.Gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		users[inode] = append(users[inode], pid)
	}
	for _, o := range suspects {
		if inode := namespaceOf(scan, o, inodes); inode != 0 {
			addNetnsUsers(scan.Host, o, users[inode], pods)
		}
	}
	return nil
}

// namespaceOf returns the inode of the network namespace of o; 0 when it no longer exists.
func namespaceOf(scan *hostscan.Scan, o *object.Object, pinned map[string]uint64) uint64 {
	netns := o.ID
	switch o.Kind {
	case object.Link: // its namespace may outlive the mount
		return o.Identity.Link.Namespace
	case object.CNIAttachment:
		netns = o.Facts["netns"]
	}
	if netns == "" {
		return 0
	}
	return pinned[scan.NetnsPath(netns)]
}

// addNetnsUsers adds the processes in the network namespace of o as holders.
func addNetnsUsers(h *host.Host, o *object.Object, pids []int, pods map[int]string) {
	for _, pid := range pids {
		comm := "?"
		if stat, err := h.ProcStat(pid); err == nil {
			comm = stat.Comm
		}
		o.Holders = append(o.Holders, object.Holder{PID: pid, Command: comm, How: "network-namespace",
			Pod: object.Pod{UID: pods[pid]}})
		if pods[pid] != o.Pod.UID || o.Pod.UID == "" {
			o.Foreign = fmt.Sprintf("process %d (%s), which does not belong to this pod, is in its network namespace",
				pid,
				comm)
			return
		}
	}
}
