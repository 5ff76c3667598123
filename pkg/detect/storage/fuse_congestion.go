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
//	/sys/fs/fuse/connections/N/congestion_threshold    9     background requests above which read-ahead is held back
//	/sys/fs/fuse/connections/N/max_background          12    background requests above which others wait
//
// https://docs.kernel.org/filesystems/fuse.html. The kernel does not show how many of the waiting requests are
// background requests, so one reading is weak evidence: a burst of readers passes the threshold at once.

// FUSECongestionSettings are the thresholds of fuse-congestion.
type FUSECongestionSettings struct {
	BackgroundPercent int `yaml:"backgroundPercent"` // share of max_background that waits; a finding is kept above half of it
}

// DefaultFUSECongestionSettings returns the default settings: as many waiting requests as the kernel allows in the
// background.
func DefaultFUSECongestionSettings() FUSECongestionSettings {
	return FUSECongestionSettings{BackgroundPercent: 100}
}

const (
	fuseConnections    = "/sys/fs/fuse/connections"
	maxFUSEConnections = 1024
)

// FUSECongestion finds FUSE daemons that cannot keep up with their requests.
func FUSECongestion(s FUSECongestionSettings) detect.Check {
	return detect.Check{
		ID: "fuse-congestion", Domain: "storage",
		Summary: "a FUSE daemon answers more slowly than requests arrive: the pods on its volume wait",
		Advice: "Check the CPU and memory limits of the daemon's pod (the volume's driver) and the service that it " +
			"uses (object store, server). Most daemons handle more requests at a time with `-o max_background=N`.",
		Doc: detect.Doc{
			Reads: []string{fuseConnections + "/N/{waiting,congestion_threshold,max_background}"},
			Why: "Reads and writes on the volume wait for each other; what looks like a slow application is a " +
				"slow daemon.",
			Faults: []detect.Fault{{Reason: "FUSECongested", Severity: finding.Warning,
				When: "as many requests wait as max_background allows, in three runs over two minutes; kept above " +
					"half of that"}},
			FalseAlarms: "Many concurrent readers of a daemon that is fast enough for them: raise backgroundPercent. " +
				"A daemon that does not answer at all is found by hung-mounts.",
		},
		Every: time.Minute, Deadline: 5 * time.Second,
		Policy: finding.Policy{Raise: finding.Hold{Runs: 3, For: 2 * time.Minute}, Clear: finding.Hold{Runs: 2}},
		Run:    s.run,
	}
}

type fuseConnection struct{ waiting, threshold, background int }

func (s FUSECongestionSettings) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	names, err := h.Files.List(fuseConnections)
	if err != nil {
		return nil, checkkit.UnlessAbsent(err, "the kernel has no FUSE")
	}
	if len(names) == 0 {
		return nil, finding.NotApplicable("no FUSE connection, or fusectl is not mounted")
	}
	if len(names) > maxFUSEConnections {
		return nil, fmt.Errorf("list %s: more than %d connections", fuseConnections, maxFUSEConnections)
	}
	slices.Sort(names)
	var results checkkit.Results
	var mounts []mount.Mount // only read if there is a finding
	for _, name := range names {
		c, err := readFUSE(h.Files, name)
		limit := c.background * s.BackgroundPercent / 100
		if errors.Is(err, fs.ErrNotExist) || err == nil && (limit == 0 || 2*c.waiting < limit) {
			continue // unmounted meanwhile, or fast enough
		}
		if mounts == nil {
			var mountsErr error
			if mounts, _, mountsErr = mount.Known(mount.Recent(h)); mountsErr != nil {
				return nil, mountsErr
			}
		}
		of := fuseOf(mounts, name)
		if results.Doubt(of.Subject(), err) {
			continue
		}
		f := congestionFinding(of, c)
		f.BelowRaise = c.waiting < limit
		checkkit.AddPods(&f, "; volume of ", of.VolumePods(ctx, h))
		results.Add(f, true)
	}
	return results.Done()
}

// readFUSE reads the files of one connection. They are empty if it has just ended.
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

// fuseOf returns the mounts of a connection, whose name is the kernel's device number. A connection that is not in the
// host's table is mounted only in a container.
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

func congestionFinding(f filesystem.Filesystem, c fuseConnection) finding.Finding {
	return finding.Finding{
		Subject: f.Subject(), Severity: finding.Warning, Reason: "FUSECongested",
		Message: fmt.Sprintf(
			"%s (%s from %s) is congested: %d requests wait for its daemon, %d are allowed in the background",
			f.Principal.Point, f.Principal.FSType, f.Principal.Source, c.waiting, c.background),
		Facts: map[string]string{
			"device": f.Device, "source": f.Principal.Source, "fstype": f.Principal.FSType,
			"waiting":       strconv.Itoa(c.waiting),
			"maxBackground": strconv.Itoa(c.background), "congestionThreshold": strconv.Itoa(c.threshold),
		},
	}
}
