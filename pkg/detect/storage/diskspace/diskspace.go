// Package diskspace finds filesystems that are full or soon will be.
package diskspace

import (
	"context"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// disk-space reads the mount table and calls statfs(2) for each filesystem on a block device, for tmpfs at /, /run and
// /dev/shm, and for the filesystems with the node's own data; all in one child process, because a dead disk can hang
// it:
//
//	f_blocks  all blocks               f_files  all inodes; 0 for btrfs and FAT, which have no fixed number; on
//	f_bavail  free for all users                XFS the existing ones and those that the free space could become
//	f_bfree   free for root: f_bavail and the reserve (ext4 keeps 5 %)
//
// statfs(2), https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/
//
// kubelet evicts pods and taints the node when less than 10 % of its filesystem, or 15 % of that of images, or 5 % of
// the inodes are left (f_bavail). Other filesystems have no eviction: 5 % as in the node mixin of Prometheus, unless
// this is still much; volumes of pods 3 % as in KubePersistentVolumeFillingUp, because databases fill theirs on
// purpose. Only a shortage that eviction did not prevent is fatal: so little that root itself cannot unpack an image,
// write a log or create a pod's folder.

// Settings are the thresholds of disk-space, in percent of the whole. A raised finding is kept until a fifth more is
// free.
type Settings struct {
	NodePercent   float64 `yaml:"nodePercent"`   // free space of filesystems with the node's own data
	Percent       float64 `yaml:"percent"`       // of other filesystems
	VolumePercent float64 `yaml:"volumePercent"` // of volumes of pods
	// this much is enough, except on the node's own filesystems
	EnoughBytes  uint64        `yaml:"enoughBytes"`
	InodePercent float64       `yaml:"inodePercent"` // free inodes, of all filesystems
	FatalBytes   uint64        `yaml:"fatalBytes"`   // of the node's own filesystems, or 3 percent if less
	FatalInodes  uint64        `yaml:"fatalInodes"`  // of the node's own filesystems, or 1 percent if less
	FullWithin   time.Duration `yaml:"fullWithin"`   // how far ahead the prediction looks
	Patience     time.Duration `yaml:"patience"`     // how long to wait for the answer of one filesystem
	Ignore       []string      `yaml:"ignore"`       // mount points of filesystems that are not checked
}

// DefaultSettings returns the default settings. 100 MiB are less than one layer of most images, and 1000 inodes fewer
// than its files.
func DefaultSettings() Settings {
	return Settings{
		NodePercent: 10, Percent: 5, VolumePercent: 3, EnoughBytes: 100 << 30, InodePercent: 5,
		FatalBytes: 100 << 20, FatalInodes: 1000, FullWithin: 24 * time.Hour, Patience: 2 * time.Second,
	}
}

const (
	reasonDiskFull     = "DiskFull"
	reasonInodesGone   = "InodesExhausted"
	reasonDiskSpaceLow = "DiskSpaceLow"
	reasonInodesLow    = "InodesLow"
	reasonDiskFilling  = "DiskFillingUp"
)

// New finds filesystems that are full or will be. The store may be nil: then the history ends with the agent.
func New(s Settings, store detect.StateStore) detect.Check {
	c := &diskSpace{settings: s, hung: checkkit.HungProbes{}, full: map[string]bool{},
		saved: detect.Saved[spaceTrend]{Store: store, Key: spaceTrendKey}}
	return detect.Check{
		ID: "disk-space", Domain: "storage",
		Summary: "a filesystem has little space or few inodes left, or will soon be full",
		Advice: "`du -xh --max-depth=2 MOUNTPOINT | sort -h | tail` (inodes: `du -x --inodes`) shows what fills it. " +
			"On a node it is mostly images (`crictl rmi --prune`), logs (`journalctl --vacuum-size=1G`, " +
			"/var/log/pods) or a pod's emptyDir (`kubectl get --raw /api/v1/nodes/NODE/proxy/stats/summary` lists " +
			"them by pod). Files that were deleted and are still open count: `lsof +L1`.",
		Doc:        diskSpaceDoc(),
		UsesPartly: []host.Setting{host.KubeletRoot, host.ContainerdRoot, host.ContainerdState, host.PodLogs},
		Condition:  detect.StorageProblem(),
		Every:      time.Minute,
		// Freed space may be used at once. Only runs count: the engine spreads them, so three may take a little less
		// than two minutes.
		Policy: finding.Policy{Clear: finding.Hold{Runs: 3}},
		Run:    c.run,
	}
}

func diskSpaceDoc() detect.Doc {
	return detect.Doc{
		Reads: []string{"/proc/1/mountinfo", "statfs(2) of filesystems on block devices and of tmpfs at /, /run and " +
			"/dev/shm, in a child process", "ImageFsInfo of the runtime, when its filesystem is short of room"},
		Why: "Without space or inodes no image can be unpacked, no log written and no pod created; databases stop. " +
			"kubelet evicts pods before, which shows that it happens but not where the space went.",
		Faults: []detect.Fault{
			{Reason: reasonDiskFull, Severity: finding.Fatal, When: "no space is left; fatal where kubelet, the " +
				"runtime, pod logs, etcd (on a filesystem of its own) or the system write, and there already when " +
				"less than 100 MiB (or 3 % if that is less) is left even for root, until there is twice as much"},
			{Reason: reasonInodesGone, Severity: finding.Fatal, When: "no inode is left; fatal there, and there " +
				"already when less than 1000 inodes (or 1 % if that is less) are left, which is less than one image " +
				"layer needs, until there are twice as many"},
			{Reason: reasonDiskSpaceLow, Severity: finding.Warning, When: "less than 10 % is left there (kubelet " +
				"evicts pods); less than 5 % and less than 100 GiB elsewhere; less than 3 % and 100 GiB of a volume " +
				"of a pod; until there is a fifth more"},
			{Reason: reasonInodesLow, Severity: finding.Warning, When: "less than 5 % of the inodes are left: " +
				"kubelet evicts pods on its own filesystem; until there are a fifth more"},
			{Reason: reasonDiskFilling, Severity: finding.Warning, When: "at the pace of the last hours, and of the " +
				"last one, full within 4 hours and less than 15 % left; info: 24 hours and 20 %"},
		},
		FalseAlarms: "A volume that is filled on purpose (a database that takes all its disk at once) is a warning " +
			"about that pod: lower volumePercent, or put its mount point under ignore. Read-only filesystems are " +
			"not checked. kubelet removes unused images at 15 % free: the prediction only counts below 20 %. btrfs " +
			"reports that no space is left when only its metadata is full: writes then fail too.",
	}
}

// diskSpace is kept between runs.
type diskSpace struct {
	settings Settings
	saved    detect.Saved[spaceTrend]
	hung     checkkit.HungProbes
	// filesystems that were full when they last answered: they count as full until clearly more is free
	full  map[string]bool
	trend *spaceTrend // nil until the first run
}

func (c *diskSpace) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	mounts, cut, err := mount.Known(mount.Recent(h))
	if err != nil {
		return nil, err
	}
	spaces := spacesOf(mounts, h.Paths, c.settings.Ignore)
	if len(spaces) == 0 && cut != nil {
		return nil, cut
	}
	if len(spaces) == 0 {
		return nil, finding.NotApplicable("no filesystem that could become full is mounted")
	}
	var results checkkit.Results
	answered := c.probe(ctx, h, mounts, spaces, &results)
	if c.trend == nil {
		c.trend = loadSpaceTrend(c.saved, h.Clock())
	}
	if c.trend.sample(h.Clock(), answered) {
		c.saved.Save(*c.trend)
	}
	full := make(map[string]bool, len(spaces))
	for _, s := range spaces { // those that do not answer keep their state
		full[s.Identity()] = c.full[s.Identity()]
	}
	c.full = full
	for _, s := range answered {
		fault, found := s.evaluate(c.settings, c.full[s.Identity()], c.trend.fullIn(s, h.Clock().SinceBoot))
		c.full[s.Identity()] = fault.reason == reasonDiskFull || fault.reason == reasonInodesGone
		if found {
			results.Add(s.report(fault, s.podsOf(ctx, h), s.images(ctx, h)), true)
		}
	}
	return results.DoneWithMounts(h, cut)
}
