package inspect

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/nodeagent/nodeagent/internal/host/holders"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
)

// holdable returns the path or mount of an object that processes may keep busy.
func holdable(scan *hostscan.Scan, o *Assessment) holders.Holdable {
	thing := holders.Holdable{Path: o.ID}
	switch o.Kind {
	case Mount:
		thing.Path = o.Facts["point"]
	case Rootfs: // its directory has the mount on it, and processes their working directory in it
	default:
		return thing
	}
	mounts, err := scan.Mounts()
	if err != nil {
		return thing
	}
	if n := slices.IndexFunc(mounts, func(m mount.Mount) bool {
		return strconv.Itoa(m.ID) == cmp.Or(o.Facts["mount"], o.Identity["id"])
	}); n >= 0 {
		thing.Mount = &mounts[n]
	}
	return thing
}

// maxCgroupHolders bounds how many processes of one cgroup are reported.
const maxCgroupHolders = 16

// cgroupHolders returns the processes in a cgroup, without those in its children.
func cgroupHolders(scan *hostscan.Scan, o *Assessment) []Holder {
	table, err := scan.Processes()
	if err != nil {
		return nil
	}
	hierarchy := o.Facts["hierarchy"]
	if hierarchy == "v2" {
		hierarchy = ""
	}
	var holders []Holder
	members := table.Members[hostscan.MemberKey(hierarchy, o.Facts["path"])]
	for _, pid := range members[:min(len(members), maxCgroupHolders)] {
		at, ok := slices.BinarySearchFunc(table.Pods, pid, func(p hostscan.PodProcess, pid int) int { return p.PID - pid })
		if ok {
			p := table.Pods[at]
			holders = append(holders, Holder{PID: pid, Command: p.Comm, How: "cgroup", Pod: Pod{UID: p.UID}})
		}
	}
	return holders
}
