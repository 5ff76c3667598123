package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystem"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// fstab-mounts compares /etc/fstab with the mount table:
//
//	UUID=0c1f…  /var/lib/containerd  xfs  defaults  0 2
//
// fstab(5), systemd.mount(5). What is meant to be mounted at boot and is not there (somebody unmounted it, the disk
// came back under another name, the mount failed in a rescue boot) is missed by nobody: the directory below takes the
// data, and the root filesystem fills up.
//
// Known false alarms, and what is done: noauto, nofail (clouds write entries for disks that may not exist), swap, and
// what systemd mounts at the first access are left out; so is what is mounted anywhere else, as by a person who moves
// it or behind a symbolic link; and five minutes pass before it is told, because mounts of servers come late in a
// boot.

const (
	fstabMountsID      = "fstab-mounts"
	reasonFstabMissing = "FstabMountMissing"
	// maxFstab bounds what is told. A table has a dozen entries.
	maxFstab = 64
)

// FstabMounts finds mounts that are meant to be there and are not.
func FstabMounts() detect.Check {
	return detect.Check{
		ID:      fstabMountsID,
		Domain:  "storage",
		Summary: "a filesystem that /etc/fstab mounts at boot is not mounted: what is meant for it lands on another disk",
		Advice: "`findmnt --verify` and `systemctl status MOUNT.mount` tell why. Before it is mounted (`mount " +
			"MOUNTPOINT`), move away what was written to the directory below meanwhile: the mount would hide it. An " +
			"entry that may be absent wants nofail or noauto.",
		Doc: detect.Doc{
			Reads: []string{"/etc/fstab", "/proc/1/mountinfo", "/dev/disk/by-*, only names of links"},
			Why: "Images, logs or data of a node land on its root disk, which fills up; after the next mount " +
				"they seem to be lost.",
			Faults: []detect.Fault{{Reason: reasonFstabMissing, Severity: finding.Warning,
				When: "an entry without noauto and nofail, of which neither the place nor the device is mounted for " +
					"five minutes"}},
			FalseAlarms: "What somebody unmounted on purpose and left in /etc/fstab. Entries with noauto, nofail or " +
				"x-systemd.automount are left out.",
		},
		Every:    5 * time.Minute,
		Deadline: 5 * time.Second,
		Policy:   finding.Policy{Raise: finding.Hold{Looks: 2, For: 4 * time.Minute}},
		Run:      lookAtFstab,
	}
}

func lookAtFstab(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	data, err := h.Files.Read("/etc/fstab")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, finding.NotApplicable("there is no /etc/fstab")
	}
	if err != nil {
		return nil, err
	}
	wanted := slices.DeleteFunc(filesystem.ParseFstab(data), func(e filesystem.FstabEntry) bool { return !atBoot(e) })
	if len(wanted) == 0 {
		return nil, finding.NotApplicable("/etc/fstab mounts nothing at boot")
	}
	mounts, err := mount.Table(h)
	if err != nil {
		return nil, err
	}
	var findings []finding.Finding
	for _, e := range wanted {
		if !isMounted(e, h.Files, mounts) && len(findings) < maxFstab {
			findings = append(findings, missingMount(e, mounts))
		}
	}
	return findings, nil
}

// atBoot reports whether the entry is to be mounted at boot, come what may.
func atBoot(e filesystem.FstabEntry) bool {
	return strings.HasPrefix(e.Point, "/") && e.Fstype != "swap" && !e.Has("noauto") && !e.Has("nofail") &&
		!e.Has("x-systemd.automount")
}

// isMounted reports whether something is mounted where the entry wants it, or the entry's device anywhere.
func isMounted(e filesystem.FstabEntry, files host.Files, mounts []mount.Mount) bool {
	device := filesystem.DeviceOf(files, e.Spec)
	return slices.ContainsFunc(mounts, func(m mount.Mount) bool {
		same := strings.Contains(e.Spec, ":/") && m.Source == e.Spec // of a server
		if device != "" {
			same = filesystem.DeviceOf(files, m.Source) == device
		}
		return m.Point == e.Point || same && !e.Has("bind")
	})
}

func missingMount(e filesystem.FstabEntry, mounts []mount.Mount) finding.Finding {
	facts := map[string]string{"spec": e.Spec, "fstype": e.Fstype}
	message := fmt.Sprintf("%s (%s from %s) is in /etc/fstab and is not mounted", e.Point, e.Fstype, e.Spec)
	if m, ok := filesystem.MountHolding(mounts, path.Dir(e.Point)); ok {
		facts["landsOn"] = m.Point
		message += fmt.Sprintf(": what is written there lands on %s (%s on %s)", m.Point, m.FSType, m.Source)
	}
	return finding.Finding{
		Check: fstabMountsID, Subject: finding.Subject{Kind: "filesystem", Name: e.Point}, Severity: finding.Warning,
		Reason: reasonFstabMissing, Message: message, Facts: facts,
	}
}
