package inspect

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/nodeagent/nodeagent/internal/host/holders"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// holdable returns the path or mount of an object that processes may keep busy.
func holdable(scan *hostscan.Scan, o *object.Assessment) holders.Holdable {
	thing := holders.Holdable{Path: o.ID}
	switch o.Kind {
	case object.Mount:
		thing.Path = o.Facts["point"]
	case object.Rootfs: // its directory has the mount, and is processes' working directory
	default:
		return thing
	}
	mounts, err := scan.Mounts()
	if err != nil {
		return thing
	}
	if n := slices.IndexFunc(mounts, func(m mount.Mount) bool {
		return strconv.Itoa(m.ID) == cmp.Or(o.Facts["mount"], strconv.Itoa(o.Identity.Mount.ID))
	}); n >= 0 {
		thing.Mount = &mounts[n]
	}
	return thing
}

// maxCgroupHolders bounds how many processes of one cgroup are reported.
const maxCgroupHolders = 16

// cgroupHolders returns the processes in a cgroup, without those in its children.
func cgroupHolders(scan *hostscan.Scan, o *object.Assessment) []object.Holder {
	table, err := scan.Processes()
	if err != nil {
		return nil
	}
	hierarchy := o.Facts["hierarchy"]
	if hierarchy == "v2" {
		hierarchy = ""
	}
	var holders []object.Holder
	members := table.Members[hostscan.MemberKey(hierarchy, o.Facts["path"])]
	for _, pid := range members[:min(len(members), maxCgroupHolders)] {
		at, ok := slices.BinarySearchFunc(table.Pods, pid, func(p hostscan.PodProcess, pid int) int { return p.PID - pid })
		if ok {
			p := table.Pods[at]
			holders = append(holders, object.Holder{PID: pid, Command: p.Comm, How: "cgroup", Pod: object.Pod{UID: p.UID}})
		}
	}
	return holders
}

// addHolders finds the processes that keep leftovers and candidates busy.
func (i *Inspector) addHolders(ctx context.Context, scan *hostscan.Scan, report *object.Report) {
	var things []holders.Holdable
	var of []int
	for n := range report.Objects {
		o := &report.Objects[n]
		if o.Verdict != object.Leftover && o.Verdict != object.Candidate {
			continue
		}
		switch o.Kind {
		case object.Cgroup:
			o.Holders = cgroupHolders(scan, o)
		case object.Mount, object.PodDirectory, object.Rootfs, object.SandboxDirectory:
			things, of = append(things, holdable(scan, o)), append(of, n)
		}
	}
	if len(things) == 0 {
		return
	}
	type found struct {
		holdings   [][]holders.Holding
		incomplete string
	}
	search, err := hostscan.Within(ctx, scan.Ends, hostscan.Holders, "the search for holders",
		func(ctx context.Context) (f found,
			err error) {
			f.holdings, f.incomplete, err = holders.Holders(ctx, scan.Host, things)
			return f, err
		})
	holdings := search.holdings
	if err = errors.Join(err, incompleteError(search.incomplete)); err != nil {
		report.Errors = append(report.Errors, object.FailureOf("holders", err))
	}
	for n, held := range holdings {
		for _, h := range held {
			report.Objects[of[n]].Holders = append(report.Objects[of[n]].Holders,
				object.Holder{PID: h.PID, Command: h.Comm, How: h.How, Pod: object.Pod{UID: h.UID}})
		}
	}
}

func incompleteError(why string) error {
	if why == "" {
		return nil
	}
	return errors.New("search cut short " + why)
}
