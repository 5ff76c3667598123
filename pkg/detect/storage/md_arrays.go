package storage

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// md-arrays reads /sys/block/md*/md, the state behind /proc/mdstat:
//
//	array_state        clean        also active, active-idle, write-pending, read-auto, readonly, suspended; inactive
//	                                (not started), clear (empty), broken (Linux 5.4: a required member failed)
//	level              raid1        raid0, linear, raid4, raid5, raid6, raid10; container or empty: external metadata
//	raid_disks         2            "3 (2)" during a reshape
//	degraded           1            missing members; only of levels with redundancy
//	sync_action        recover      idle, resync, recover, check, repair, reshape, frozen
//	sync_completed     3907584 / 7812608     sectors; none
//	metadata_version   1.2          external:imsm for a container, external:/md127/0 for an array in one
//	dev-sdb1/state     faulty,write_error    of each member; in_sync, spare, blocked, want_replacement, journal …
//	dev-sdb1/bad_blocks             unreadable blocks that cannot be repaired, if any: "1048576 8"
//
// https://docs.kernel.org/admin-guide/md.html
//
// The redundancy of a level is fixed (raid4, raid5: 1; raid6: 2; raid1: all but one); for raid10 it depends on which
// members, so only the loss of more than half of them proves that it failed. Containers (Intel, DDF) are always
// inactive: they are recognised by their metadata.

const (
	inactiveFor = time.Minute // may be normal: mdadm-last-resort@.timer starts a degraded array after 30 s
	maxMembers  = 512         // MD_SB_DISKS is 384

	reasonRAIDFailed    = "RAIDFailed"
	reasonRAIDInactive  = "RAIDInactive"
	reasonRAIDDegraded  = "RAIDDegraded"
	reasonRAIDDisk      = "RAIDDiskFailed"
	reasonRAIDBadBlocks = "RAIDBadBlocks"
)

// MDArrays finds software RAID arrays that failed or lost members.
func MDArrays() detect.Check {
	return detect.Check{
		ID: "md-arrays", Domain: "storage",
		Summary: "a software RAID array failed, or lost a disk",
		Advice: "See `cat /proc/mdstat` and `mdadm --detail /dev/ARRAY`. Degraded: replace the disk (`mdadm " +
			"/dev/ARRAY --fail DISK --remove DISK`, then `--add` the new one) and let it rebuild; do not reboot " +
			"before. Failed or inactive: do not write to the members; run `mdadm --examine` on each, and `mdadm " +
			"--assemble --force` as the last resort.",
		Doc: detect.Doc{
			Reads: []string{"/sys/block/md*/md/{array_state,level,raid_disks,degraded,sync_action,sync_completed," +
				"metadata_version}", "/sys/block/md*/md/dev-*/{state,bad_blocks}"},
			Why: "A degraded array loses all its data with the next disk; when an array fails, the filesystems on " +
				"it fail too.",
			Faults: []detect.Fault{
				{Reason: reasonRAIDFailed, Severity: finding.Fatal, When: "state broken, or more members missing " +
					"than the level tolerates: warning; fatal where the filesystem of /, kubelet or the runtime is " +
					"on it"},
				{Reason: reasonRAIDInactive, Severity: finding.Warning,
					When: "an array with members is not started for a minute"},
				{Reason: reasonRAIDDegraded, Severity: finding.Warning,
					When: "at least one member is missing, being rebuilt or not"},
				{Reason: reasonRAIDDisk, Severity: finding.Warning, When: "a member is faulty, although the array is " +
					"complete again without it"},
				{Reason: reasonRAIDBadBlocks, Severity: finding.Warning,
					When: "a member has unreadable blocks that cannot be repaired"},
			},
			FalseAlarms: "A new raid5 is degraded until its first rebuild ends, and an array that was created with a " +
				"member \"missing\" is so by design. Containers of external metadata, arrays that are still being " +
				"assembled and regular checks (mismatch_cnt) are not reported.",
		},
		Condition: detect.StorageProblem(),
		Every:     time.Minute, Deadline: 5 * time.Second,
		// A failed member is in the state before the kernel's line; read errors leave no state but may lead to one.
		Wakes: []detect.Wake{checkkit.KernelWake(), checkkit.LogWake("md/raid"), checkkit.LogWake("md: ")},
		Run:   new(heldStates).arrays,
	}
}

// mdArray is the state of one array.
type mdArray struct {
	name, state, level, metadata string
	syncAction, syncCompleted    string
	disks, degraded              int
	faulty, badBlocks            []string // members
	members                      int
}

func (m *heldStates) arrays(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	names, err := checkkit.BlockNames(h.Files)
	if err != nil {
		return nil, err
	}
	m.begin()
	var results checkkit.Results
	arrays := 0
	for _, name := range names {
		state, err := checkkit.OptionalDeviceText(h.Files, "/sys/block/"+name+"/md/array_state")
		if err == nil && state == "" {
			continue // not an array
		}
		arrays++
		subject := finding.Subject{Kind: "raid-array", Name: name}
		var a mdArray
		if err == nil {
			a, err = readArray(h.Files, name, state)
		}
		if results.Doubt(subject, err) {
			continue
		}
		reason, text := a.fault()
		if reason == "" || reason == reasonRAIDInactive && m.held(name, state, h.Clock().SinceBoot) < inactiveFor {
			continue
		}
		results.Add(a.finding(ctx, h, subject, reason, text), true)
	}
	if arrays == 0 {
		return nil, finding.NoneLeft("there is no software RAID array")
	}
	return results.Done()
}

func readArray(files host.Files, name, state string) (mdArray, error) {
	dir := "/sys/block/" + name + "/md/"
	a := mdArray{name: name, state: state}
	var disks, degraded string
	for file, into := range map[string]*string{
		"level": &a.level, "metadata_version": &a.metadata, "raid_disks": &disks, "degraded": &degraded,
		"sync_action": &a.syncAction, "sync_completed": &a.syncCompleted,
	} {
		var err error
		if *into, err = checkkit.OptionalDeviceText(files, dir+file); err != nil {
			return mdArray{}, err
		}
	}
	disks, _, _ = strings.Cut(disks, " ")
	for _, number := range []struct {
		text string
		into *int
	}{{disks, &a.disks}, {degraded, &a.degraded}} {
		n, err := strconv.ParseUint(number.text, 10, 16)
		if number.text != "" && err != nil {
			return mdArray{}, fmt.Errorf("read %s{raid_disks,degraded}: %w", dir, err)
		}
		*number.into = int(n)
	}
	entries, err := files.List(dir)
	if err != nil {
		return mdArray{}, fmt.Errorf("list %s: %w", dir, err)
	}
	slices.Sort(entries)
	for _, entry := range entries {
		if member, ok := strings.CutPrefix(entry, "dev-"); ok && a.members < maxMembers {
			a.members++
			if err := a.readMember(files, dir+entry, member); err != nil {
				return mdArray{}, err
			}
		}
	}
	return a, nil
}

// readMember reads one member; it skips one that is removed meanwhile.
func (a *mdArray) readMember(files host.Files, dir, member string) error {
	state, err := checkkit.OptionalDeviceText(files, dir+"/state")
	if err != nil {
		return err
	}
	if slices.Contains(strings.Split(state, ","), "faulty") {
		a.faulty = append(a.faulty, member)
	}
	bad, err := checkkit.OptionalDeviceText(files, dir+"/bad_blocks")
	if err == nil && bad != "" {
		a.badBlocks = append(a.badBlocks, member)
	}
	return nil // an old kernel without that list has no bad blocks
}

// spare is how many members a level can lose at most.
func (a mdArray) spare() int {
	switch a.level {
	case "raid1":
		return a.disks - 1
	case "raid4", "raid5":
		return 1
	case "raid6":
		return 2
	case "raid10":
		return a.disks / 2
	}
	return a.disks // for other levels degraded has no meaning
}

// fault returns the most severe fault.
func (a mdArray) fault() (reason, text string) {
	container := strings.HasPrefix(a.metadata, "external:") && !strings.HasPrefix(a.metadata, "external:/")
	switch {
	case a.state == "clear" || container || a.level == "container":
		return "", ""
	case a.state == "broken":
		return reasonRAIDFailed, "lost a required disk"
	case a.state == "inactive" && a.members > 0:
		return reasonRAIDInactive, fmt.Sprintf("is not started, with %d members present", a.members)
	case a.degraded > a.spare() && a.disks > 0:
		return reasonRAIDFailed, fmt.Sprintf("misses %d of %d disks, which is more than %s tolerates", a.degraded,
			a.disks, a.level)
	case a.degraded > 0:
		text = fmt.Sprintf("misses %d of %d disks", a.degraded, a.disks)
		if a.syncAction == "recover" {
			text += ", is being rebuilt" + a.progress()
		}
		return reasonRAIDDegraded, text
	case len(a.faulty) > 0:
		return reasonRAIDDisk, "is complete, but has a faulty member that was not removed"
	case len(a.badBlocks) > 0:
		return reasonRAIDBadBlocks, "has unreadable blocks that cannot be repaired on " +
			finding.JoinFirst(a.badBlocks, 5)
	}
	return "", ""
}

// progress is that of a rebuild: " (50 %)".
func (a mdArray) progress() string {
	var part, whole float64
	_, err := fmt.Sscanf(a.syncCompleted, "%f / %f", &part, &whole)
	if err != nil || whole <= 0 || part < 0 || part > whole {
		return ""
	}
	return fmt.Sprintf(" (%.0f %%)", part/whole*100)
}

func (a mdArray) finding(ctx context.Context, h *host.Host, subject finding.Subject, reason,
	text string) finding.Finding {
	f := finding.Finding{
		Subject: subject, Severity: finding.Warning, Reason: reason,
		Message: fmt.Sprintf("%s array %s %s", a.level, a.name, text),
		Facts: map[string]string{"state": a.state, "level": a.level, "disks": strconv.Itoa(a.disks),
			"degraded": strconv.Itoa(a.degraded)},
	}
	if a.syncAction != "" {
		f.Facts["syncAction"] = a.syncAction
	}
	if len(a.faulty) > 0 {
		f.Facts["faulty"] = finding.JoinFirst(a.faulty, 20)
		f.Message += "; faulty: " + finding.JoinFirst(a.faulty, 5)
	}
	if reason == reasonRAIDFailed || reason == reasonRAIDInactive { // pods on any other array are not affected
		addImpact(ctx, h, &f, reason == reasonRAIDFailed, true, a.name)
	}
	return f
}
