package storage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystem"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// zfs-pools reads
//
//	/proc/spl/kstat/zfs/POOL/state     ONLINE
//
// of OpenZFS: one folder for each imported pool among files of statistics. The states are those of spa_state_to_name
// (module/zfs/spa_misc.c): ONLINE, DEGRADED (a disk is missing, redundancy covers it), SUSPENDED (I/O waits until disks
// are back), FAULTED, UNAVAIL, OFFLINE, REMOVED, SPLIT, TRANSITIONING (while it is imported or exported), UNKNOWN.
// Reading takes no lock of the pool, so a suspended one does not block the reader.
//
// https://openzfs.github.io/openzfs-docs/man/master/8/zpool-status.8.html

const (
	zfsStats = "/proc/spl/kstat/zfs"
	maxPools = 64 // a node has one or two
)

// ZFSPools finds ZFS pools that lost disks.
func ZFSPools() detect.Check {
	return detect.Check{
		ID: "zfs-pools", Domain: "storage",
		Summary: "a ZFS pool lost disks: it is degraded, or takes no more reads and writes",
		Advice: "`zpool status -x` names the disks. A degraded pool: replace the disk (`zpool replace POOL OLD " +
			"NEW`) before the next one fails. A suspended one: bring the disks back, then run `zpool clear POOL`; " +
			"waiting I/O then continues.",
		Doc: detect.Doc{
			Reads: []string{zfsStats + "/POOL/state"},
			Why: "All I/O to a suspended pool hangs: images, volumes, the root filesystem if it is there. A " +
				"degraded one has no redundancy left.",
			Faults: []detect.Fault{
				{Reason: "ZFSPoolFailed", Severity: finding.Fatal,
					When: "the state is SUSPENDED, FAULTED, UNAVAIL or REMOVED; fatal where the node's own data lie " +
						"on the pool, else a warning"},
				{Reason: "ZFSPoolDegraded", Severity: finding.Warning,
					When: "the state is DEGRADED, or another than ONLINE"},
			},
			FalseAlarms: "A disk taken offline on purpose (`zpool offline`). A pool that is just being " +
				"imported or exported (TRANSITIONING) is left out.",
		},
		UsesPartly: []host.Setting{host.KubeletRoot, host.ContainerdRoot, host.ContainerdState, host.PodLogs},
		Condition:  detect.StorageProblem(),
		Every:      time.Minute, Deadline: 5 * time.Second,
		Wakes: []detect.Wake{checkkit.KernelWake()},
		Run:   checkZFSPools,
	}
}

func checkZFSPools(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	entries, _, err := h.Files.Entries(zfsStats)
	if err != nil {
		return nil, checkkit.UnlessAbsent(err, "the kernel has no ZFS")
	}
	var pools []string
	for _, e := range entries {
		if e.IsDir() {
			pools = append(pools, e.Name)
		}
	}
	if len(pools) > maxPools {
		return nil, fmt.Errorf("list %s: more than %d pools", zfsStats, maxPools)
	}
	if len(pools) == 0 {
		return nil, finding.NotApplicable("no ZFS pool is imported")
	}
	slices.Sort(pools)
	var results checkkit.Results
	for _, pool := range pools {
		subject := finding.Subject{Kind: "zfs-pool", Name: pool}
		state, err := h.Files.Text(zfsStats + "/" + pool + "/state")
		if err == nil && (!validPoolState(state) || state == "UNKNOWN") {
			err = fmt.Errorf("read %s/%s/state: %.40q is no state", zfsStats, pool, state)
		}
		if !results.Unread(subject, err) { // otherwise it was exported meanwhile, or is a doubt
			results.Add(poolFinding(h, subject, state))
		}
	}
	return results.Done()
}

func validPoolState(state string) bool {
	return state != "" && len(state) < 32 && strings.Trim(state, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") == ""
}

// poolFinding reports the state of a pool that is not healthy.
func poolFinding(h *host.Host, subject finding.Subject, state string) (finding.Finding, bool) {
	f := finding.Finding{
		Subject: subject, Severity: finding.Warning, Reason: "ZFSPoolDegraded",
		Message: fmt.Sprintf("ZFS pool %s is %s", subject.Name, state), Facts: map[string]string{"state": state},
	}
	switch state {
	case "ONLINE", "TRANSITIONING":
		return finding.Finding{}, false
	case "SUSPENDED", "FAULTED", "UNAVAIL", "REMOVED":
		f.Reason = "ZFSPoolFailed"
		if own := onPool(h, subject.Name); len(own) > 0 {
			f.Severity, f.Facts["holds"] = finding.Fatal, strings.Join(own, ", ")
			f.Message += "; it holds " + f.Facts["holds"]
		}
	}
	return f, true
}

// onPool returns the node's own data on a pool; none if the mount table cannot be read.
func onPool(h *host.Host, pool string) []string {
	mounts, _, err := mount.Known(mount.Recent(h))
	if err != nil {
		return nil
	}
	var own []string
	for _, p := range filesystem.NodePaths(h.Paths) {
		if m, ok := filesystem.MountHolding(mounts, p.Path); ok && m.FSType == "zfs" &&
			(m.Source == pool || strings.HasPrefix(m.Source, pool+"/")) {
			own = append(own, p.Name)
		}
	}
	return own
}
