package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystem"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// fuse-congestion reads, of each FUSE connection (N is the device number of its mount),
//
//	/sys/fs/fuse/connections/N/waiting                 3     requests that the daemon has not answered yet
//	/sys/fs/fuse/connections/N/congestion_threshold    9     background requests above which the kernel holds back read-ahead
//	/sys/fs/fuse/connections/N/max_background          12    background requests above which others wait; 4294967295 after an abort
//
// https://docs.kernel.org/filesystems/fuse.html
//
// The kernel does not tell how many of those that wait are background requests, so that the count says little in one
// moment: a burst of readers passes the threshold at once. Told is what is so in three looks in a row over two
// minutes: the daemon is then slower than what its pods ask for. gpud warns at once, at 80 and 90 %.
//
// Known false alarms: a daemon that serves hundreds of readers at the same time and answers all of them has so many
// waiting at any time. A daemon that does not answer at all is found by hung-mounts.

// FUSECongestionSettings are the thresholds of fuse-congestion.
type FUSECongestionSettings struct {
	// of max_background that wait for an answer; a finding is kept above half of it
	BackgroundPercent int `yaml:"backgroundPercent"`
}

// DefaultFUSECongestionSettings returns the settings that are used unless the configuration says otherwise: as many
// wait as the kernel lets go on in the background at all.
func DefaultFUSECongestionSettings() FUSECongestionSettings {
	return FUSECongestionSettings{BackgroundPercent: 100}
}

const (
	fuseCongestionID     = "fuse-congestion"
	reasonFUSECongestion = "FUSECongested"
	fuseConnections      = "/sys/fs/fuse/connections"
	maxFUSEConnections   = 1024
)

// FUSECongestion finds FUSE daemons that are slower than what is asked of them.
func FUSECongestion(s FUSECongestionSettings) detect.Check {
	return detect.Check{
		ID:      fuseCongestionID,
		Domain:  "storage",
		Summary: "a FUSE daemon answers more slowly than it is asked: the pods on its volume wait",
		Advice: "Look at the CPU and memory limits of the daemon's pod (the volume's driver) and at what it talks to " +
			"(object store, server). Most daemons take more requests at a time with `-o max_background=N`.",
		Doc: detect.Doc{
			Reads: []string{fuseConnections + "/N/{waiting,congestion_threshold,max_background}"},
			Why: "Reads and writes on the volume wait for each other; what looks like a slow application is " +
				"a slow daemon.",
			Faults: []detect.Fault{{Reason: reasonFUSECongestion, Severity: finding.Warning,
				When: "as many requests wait as max_background allows, in three looks over two minutes; it is kept " +
					"above half of that"}},
			FalseAlarms: "Many readers at the same time of a daemon that is fast enough for them: raise " +
				"backgroundPercent.",
		},
		Every:    time.Minute,
		Deadline: 5 * time.Second,
		Policy:   finding.Policy{Raise: finding.Hold{Looks: 3, For: 2 * time.Minute}, Clear: finding.Hold{Looks: 2}},
		Run: func(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
			return lookAtFUSE(ctx, h, s)
		},
	}
}

// fuseConnection is what the kernel tells of one.
type fuseConnection struct{ waiting, threshold, background int }

func lookAtFUSE(ctx context.Context, h *host.Host, s FUSECongestionSettings) ([]finding.Finding, error) {
	names, err := h.Files.List(fuseConnections)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, finding.NotApplicable("the kernel has no FUSE")
	}
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, finding.NotApplicable("no FUSE connection, or fusectl is not mounted")
	}
	if len(names) > maxFUSEConnections {
		return nil, fmt.Errorf("list %s: more than %d connections", fuseConnections, maxFUSEConnections)
	}
	slices.Sort(names)
	return judgeFUSE(ctx, h, s, names)
}

func judgeFUSE(ctx context.Context, h *host.Host, s FUSECongestionSettings, names []string) ([]finding.Finding, error) {
	var findings []finding.Finding
	doubts := make(map[finding.Subject]error)
	var mounts []mount.Mount // read when there is something to tell
	for _, name := range names {
		c, err := readFUSE(h.Files, name)
		limit := c.background * s.BackgroundPercent / 100
		if errors.Is(err, fs.ErrNotExist) || err == nil && (limit == 0 || 2*c.waiting < limit) {
			continue // unmounted meanwhile, or fast enough
		}
		if mounts == nil {
			var mountsErr error
			if mounts, mountsErr = mount.Table(h); mountsErr != nil {
				return nil, mountsErr
			}
		}
		f := fuseOf(mounts, name)
		if err != nil {
			doubts[f.Subject()] = err
			continue
		}
		pods := f.VolumePods(ctx, h)
		findings = append(findings, congestionFinding(f, c, c.waiting < limit, pods))
	}
	return findings, finding.Partial(doubts)
}

// readFUSE reads the files of one connection. They are empty when it has just gone.
func readFUSE(files host.Files, name string) (fuseConnection, error) {
	var c fuseConnection
	for _, x := range []struct {
		file string
		into *int
	}{{"waiting", &c.waiting}, {"max_background", &c.background}, {"congestion_threshold", &c.threshold}} {
		file := fuseConnections + "/" + name + "/" + x.file
		text, err := files.Text(file)
		if err != nil {
			return fuseConnection{}, err
		}
		if text == "" {
			return fuseConnection{}, fs.ErrNotExist
		}
		number, err := strconv.ParseUint(text, 10, 32) // after an abort max_background is 4294967295
		if err != nil {
			return fuseConnection{}, fmt.Errorf("read %s: %w", file, err)
		}
		*x.into = int(number)
	}
	return c, nil
}

// fuseOf returns the mounts of a connection, whose name is the kernel's device number. One that the host's table does
// not show is in a container's alone.
func fuseOf(mounts []mount.Mount, name string) filesystem.Filesystem {
	f := filesystem.Filesystem{Principal: mount.Mount{Point: "FUSE connection " + name, FSType: "fuse",
		Source: "a mount of a container"}}
	for _, m := range mounts {
		if strconv.Itoa(m.Major<<20|m.Minor) == name {
			f.Mounts = append(f.Mounts, m)
		}
	}
	if len(f.Mounts) > 0 {
		f.Principal = filesystem.PrincipalOf(f.Mounts)
		f.Device = f.Principal.Device()
	}
	return f
}

func congestionFinding(f filesystem.Filesystem, c fuseConnection, marginal bool, pods []string) finding.Finding {
	told := finding.Finding{
		Check: fuseCongestionID, Subject: f.Subject(), Severity: finding.Warning, Reason: reasonFUSECongestion,
		BelowRaise: marginal,
		Message: fmt.Sprintf(
			"%s (%s from %s) is congested: %d requests wait for its daemon, %d are allowed in the background",
			f.Principal.Point, f.Principal.FSType, f.Principal.Source, c.waiting, c.background),
		Facts: map[string]string{
			"device": f.Device, "source": f.Principal.Source, "fstype": f.Principal.FSType,
			"waiting":       strconv.Itoa(c.waiting),
			"maxBackground": strconv.Itoa(c.background), "congestionThreshold": strconv.Itoa(c.threshold),
		},
	}
	checkkit.AddPods(&told, "; volume of ", pods)
	return told
}
