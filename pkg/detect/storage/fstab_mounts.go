package storage

import (
	"context"
	"fmt"
	"path"
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

// fstab-mounts compares /etc/fstab with the mount table:
//
//	UUID=0c1f…  /var/lib/containerd  xfs  defaults  0 2
//
// fstab(5), systemd.mount(5)

const maxFstab = 64 // findings; a table has a dozen entries

// FstabMounts finds entries of /etc/fstab that are not mounted.
func FstabMounts() detect.Check {
	return detect.Check{
		ID: "fstab-mounts", Domain: "storage",
		Summary: "a filesystem that /etc/fstab mounts at boot is not mounted: data meant for it land on another " +
			"disk",
		Advice: "`findmnt --verify` and `systemctl status MOUNT.mount` show why. Before you mount it (`mount " +
			"MOUNTPOINT`), move away files written to the directory below meanwhile: the mount would hide it. " +
			"Give an entry that may be absent the option nofail or noauto.",
		Doc: detect.Doc{
			Reads: []string{"/etc/fstab", "/proc/1/mountinfo", "/dev/disk/by-*, only names of links"},
			Why: "Images, logs or data of a node land on its root disk, which fills up; after the next mount they " +
				"seem to be lost.",
			Faults: []detect.Fault{{Reason: "FstabMountMissing", Severity: finding.Warning,
				When: "an entry without noauto and nofail, of which neither the mount point nor the device is " +
					"mounted for five minutes: mounts of servers come late in a boot"}},
			FalseAlarms: "A filesystem unmounted on purpose and left in /etc/fstab. Swap, entries with noauto, " +
				"nofail (clouds write entries for disks that may not exist) or x-systemd.automount, and devices that " +
				"are mounted elsewhere are left out.",
		},
		Every: 5 * time.Minute, Deadline: 5 * time.Second,
		Policy: finding.Policy{Raise: finding.Hold{Runs: 2, For: 4 * time.Minute}},
		Run:    checkFstab,
	}
}

func checkFstab(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	data, err := h.Files.Read("/etc/fstab")
	if err != nil {
		return nil, checkkit.UnlessAbsent(err, "there is no /etc/fstab")
	}
	wanted := slices.DeleteFunc(filesystem.ParseFstab(data), func(e filesystem.FstabEntry) bool { return !atBoot(e) })
	if len(wanted) == 0 {
		return nil, finding.NotApplicable("/etc/fstab mounts nothing at boot")
	}
	mounts, cut, err := mount.Known(mount.Recent(h))
	if err != nil {
		return nil, err
	}
	var findings []finding.Finding
	for _, e := range wanted {
		switch {
		case isMounted(e, h.Files, mounts):
		case cut != nil: // it may be one of the others
			return nil, cut
		case len(findings) < maxFstab:
			findings = append(findings, missingMount(e, mounts))
		}
	}
	return findings, nil
}

// atBoot reports whether the entry must be mounted at boot.
func atBoot(e filesystem.FstabEntry) bool {
	return strings.HasPrefix(e.Point, "/") && e.Fstype != "swap" && !e.Has("noauto") && !e.Has("nofail") &&
		!e.Has("x-systemd.automount")
}

// isMounted reports whether there is a mount where the entry wants it, or the entry's device is mounted anywhere.
func isMounted(e filesystem.FstabEntry, files host.Files, mounts []mount.Mount) bool {
	device := filesystem.DeviceOf(files, e.Spec)
	return slices.ContainsFunc(mounts, func(m mount.Mount) bool {
		same := strings.Contains(e.Spec, ":/") && m.Source == e.Spec // on a server
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
		Subject: finding.Subject{Kind: "filesystem", Name: e.Point}, Severity: finding.Warning,
		Reason: "FstabMountMissing", Message: message, Facts: facts,
	}
}
