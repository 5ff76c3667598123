package detect

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
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// fstab-mounts compares /etc/fstab with the mount table:
//
//	UUID=0c1f…  /var/lib/containerd  xfs  defaults  0 2
//
// fstab(5), systemd.mount(5). What is meant to be mounted at boot and is not there (somebody unmounted it, the disk came
// back under another name, the mount failed in a rescue boot) is missed by nobody: the directory below takes the data, and
// the root filesystem fills up.
//
// Known false alarms, and what is done: noauto, nofail (clouds write entries for disks that may not exist), swap, and what
// systemd mounts at the first access are left out; so is what is mounted anywhere else, as by a person who moves it or
// behind a symbolic link; and five minutes pass before it is told, because mounts of servers come late in a boot.

const (
	fstabMountsID      = "fstab-mounts"
	reasonFstabMissing = "FstabMountMissing"
	// maxFstab bounds what is told. A table has a dozen entries.
	maxFstab = 64
)

// FstabMounts finds mounts that are meant to be there and are not.
func FstabMounts() Check {
	return Check{
		ID:      fstabMountsID,
		Domain:  "storage",
		Summary: "a filesystem that /etc/fstab mounts at boot is not mounted: what is meant for it lands on another disk",
		Advice: "`findmnt --verify` and `systemctl status MOUNT.mount` tell why. Before it is mounted (`mount MOUNTPOINT`), move away what was " +
			"written to the directory below meanwhile: the mount would hide it. An entry that may be absent wants nofail or noauto.",
		Doc: Doc{
			Reads:       []string{"/etc/fstab", "/proc/1/mountinfo", "/dev/disk/by-*, only names of links"},
			Why:         "Images, logs or data of a node land on its root disk, which fills up; after the next mount they seem to be lost.",
			Faults:      []Fault{{reasonFstabMissing, finding.Warning, "an entry without noauto and nofail, of which neither the place nor the device is mounted for five minutes"}},
			FalseAlarms: "What somebody unmounted on purpose and left in /etc/fstab. Entries with noauto, nofail or x-systemd.automount are left out.",
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
	wanted := slices.DeleteFunc(parseFstab(data), func(e fstabEntry) bool { return !atBoot(e) })
	if len(wanted) == 0 {
		return nil, finding.NotApplicable("/etc/fstab mounts nothing at boot")
	}
	mounts, err := h.Mounts()
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
func atBoot(e fstabEntry) bool {
	return strings.HasPrefix(e.point, "/") && e.fstype != "swap" && !e.has("noauto") && !e.has("nofail") && !e.has("x-systemd.automount")
}

// isMounted reports whether something is mounted where the entry wants it, or the entry's device anywhere.
func isMounted(e fstabEntry, files host.Files, mounts []host.Mount) bool {
	device := deviceOf(files, e.spec)
	return slices.ContainsFunc(mounts, func(m host.Mount) bool {
		same := strings.Contains(e.spec, ":/") && m.Source == e.spec // of a server
		if device != "" {
			same = deviceOf(files, m.Source) == device
		}
		return m.Point == e.point || same && !e.has("bind")
	})
}

func missingMount(e fstabEntry, mounts []host.Mount) finding.Finding {
	facts := map[string]string{"spec": e.spec, "fstype": e.fstype}
	message := fmt.Sprintf("%s (%s from %s) is in /etc/fstab and is not mounted", e.point, e.fstype, e.spec)
	if m, ok := mountHolding(mounts, path.Dir(e.point)); ok {
		facts["landsOn"] = m.Point
		message += fmt.Sprintf(": what is written there lands on %s (%s on %s)", m.Point, m.FSType, m.Source)
	}
	return finding.Finding{
		Check: fstabMountsID, Subject: finding.Subject{Kind: "filesystem", Name: e.point}, Severity: finding.Warning,
		Reason: reasonFstabMissing, Message: message, Facts: facts,
	}
}
