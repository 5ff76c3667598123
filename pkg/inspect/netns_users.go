package inspect

import (
	"fmt"
	"strconv"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/holders"
)

// findNetnsUsers looks whether processes live in the network namespace of a suspect. One that is not of the same pod
// makes the object somebody else's: another runtime on this machine may share the directories with ours.
func findNetnsUsers(scan *Scan, suspects []*Object) error {
	table, err := scan.processes()
	if err != nil {
		return err
	}
	netnsMounts, err := scan.netnsMounts()
	if err != nil {
		return err
	}
	inodes := make(map[string]uint64)
	for _, p := range netnsMounts {
		inodes[p.path] = p.inode
	}
	pods := make(map[int]string)
	for _, p := range table.pods {
		pods[p.PID] = p.uid
	}
	users := make(map[uint64][]int)
	for _, pid := range table.pids {
		if pid == 1 || pid == scan.Host.Paths.InitPID {
			continue // it stands for the host, and some do not let themselves be looked at
		}
		inode, err := holders.NetworkNamespace(scan.Host, pid)
		if processGone(err) {
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

// namespaceOf returns the number of the network namespace that o is about; 0 where there is none any more.
func namespaceOf(scan *Scan, o *Object, pinned map[string]uint64) uint64 {
	netns := o.ID
	switch o.Kind {
	case Link: // its namespace may live on without the pin
		inode, _ := strconv.ParseUint(o.Identity[namespaceKey], 10, 64)
		return inode
	case CNIAttachment:
		netns = o.Facts["netns"]
	}
	if netns == "" {
		return 0
	}
	return pinned[netnsPath(scan, netns)]
}

// addNetnsUsers notes the processes that live in the network namespace of o.
func addNetnsUsers(h *host.Host, o *Object, pids []int, pods map[int]string) {
	for _, pid := range pids {
		comm := "?"
		if stat, err := h.ProcStat(pid); err == nil {
			comm = stat.Comm
		}
		o.Holders = append(o.Holders, Holder{PID: pid, Command: comm, How: "network-namespace",
			Pod: Pod{UID: pods[pid]}})
		if pods[pid] != o.Pod.UID || o.Pod.UID == "" {
			o.Foreign = fmt.Sprintf("process %d (%s), which is not of this pod, lives in its network namespace", pid,
				comm)
			return
		}
	}
}
