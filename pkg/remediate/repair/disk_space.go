package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// The check evictions finds a disk close to the thresholds of the running kubelet, and disk-space one that will soon be
// full: both before kubelet evicts. DiskSpaceLow uses kubelet's own default threshold and comes with it.
func freeDiskSpace() Action {
	return Action{
		Name: "free-disk-space",
		Summary: "free space on a filesystem that is short of it: remove unused objects, from the sources that the configuration " +
			"switches on (repair.diskSpace)",
		Answers: []Answer{
			{"evictions", []string{"EvictionThresholdNear", "EvictionThresholdMet"}},
			{"disk-space", []string{"DiskFull", "InodesExhausted", "DiskSpaceLow", "InodesLow", "DiskFillingUp"}},
		},
		Of: func(s Settings, f finding.Finding) bool {
			// Pods' volumes hold none of these. A disk that may be full in a day but is not short is not urgent.
			return s.DiskSpace.any() && f.Facts["pods"] == "" &&
				(f.Reason != "DiskFillingUp" || f.Severity.AtLeast(finding.Warning))
		},
		Needs: []string{
			"a source is switched on (by default, none is) and lies on exactly this filesystem; images lie where ImageFsInfo " +
				"reports",
			"images: no container (running or not), no pod of this node and no sandbox uses the image; it is not pinned; it was " +
				"pulled from a registry (an image loaded by hand cannot be pulled again); the agent has observed this for " +
				"`imageAge` and for kubelet's imageMinimumGCAge (1 hour if unknown), and asks the runtime once more right " +
				"before each removal",
			"journal: archived files, of this machine's journal only; `journalFloorBytes` of them stay",
			"coreDumps: regular files core.* without a second hard link in /var/lib/systemd/coredump, unchanged for " +
				"`coreDumpAge` by their own time and by hourly observations of the agent, which count time since boot (the wall " +
				"clock may have jumped); only root can write to this directory, and no part of it is mounted elsewhere, for " +
				"example in a pod",
			"quarantine: entries kept for longer than `remediate.quarantine.keep` and reported a day before, if releases of pod " +
				"directories are on",
		},
		Does: []string{
			"in this order, until `freePercent` of the space and `freeInodePercent` of the inodes are free (measured " +
				"before each removal): expired entries of the quarantine, the oldest core dumps (at most 500), " +
				"`journalctl --vacuum-size`, images (at most 50) over CRI: those longest without a container first; if the " +
				"agent does not know how long, the one that was pulled first",
			"check the kill switch before each removal",
			"report the objects and bytes freed from each source",
		},
		Never: []string{
			"touches a file of a pod: no volume, no log, no writable layer",
			"removes an image that any object names, or whose use containerd, kubelet or the agent could not determine",
			"follows a link, enters a directory or crosses a mount in the directories that it clears",
			"removes a journal file that journald writes to",
		},
		Examine: examineSpace,
	}
}

// fullDisk is the filesystem of a finding.
type fullDisk struct {
	tools  Tools
	table  []mount.Mount
	device string // major:minor
	path   string // a path on it
}

// freed counts removed objects.
type freed struct {
	objects int
	bytes   uint64
}

func (f freed) String() string { return fmt.Sprintf("%d (%s)", f.objects, sizeText(f.bytes)) }

// source is the removable data of one kind.
type source struct {
	name string
	freed
	note string // for people: unknown facts, or why the source is empty
	// free removes objects until enough returns true.
	free func(ctx context.Context, enough func(context.Context) (bool, error)) (freed, error)
}

// room is the free space of a filesystem.
type room struct{ answer probe.ProbeAnswer }

// needs returns how many bytes are missing; enough: neither bytes nor inodes are.
func (r room) needs(s DiskSpace) (bytes uint64, enough bool) {
	if r.answer.FreePercent() < s.FreePercent {
		bytes = uint64(math.Ceil((s.FreePercent - r.answer.FreePercent()) / 100 * float64(r.answer.TotalBytes)))
	}
	return bytes, bytes == 0 && r.answer.FreeInodePercent() >= s.FreeInodePercent
}

func (r room) String() string {
	text := fmt.Sprintf("%.1f %% free", r.answer.FreePercent())
	if r.answer.Inodes > 0 {
		text += fmt.Sprintf(" (inodes %.1f %%)", r.answer.FreeInodePercent())
	}
	return text
}

func examineSpace(ctx context.Context, t Tools, f finding.Finding) (Job, error) {
	v, err := fullDiskOf(t, f)
	if err != nil {
		return Job{}, err
	}
	now, err := v.room(ctx)
	if err != nil {
		return Job{}, err
	}
	want := t.Settings.DiskSpace
	need, enough := now.needs(want)
	if enough {
		return Job{}, refuse("%s: the target is already reached", now)
	}
	sources, notes, err := v.sources(ctx, need)
	if err != nil {
		return Job{}, err
	}
	if len(sources) == 0 {
		return Job{}, refuse("no object on it may be removed: %s", strings.Join(notes, "; "))
	}
	var all []string
	for _, s := range sources {
		text := s.name + " " + s.String()
		if s.note != "" {
			text += ", " + s.note
		}
		all = append(all, text)
	}
	does := fmt.Sprintf("free space on the filesystem of %s, %s, until %g %% of the space and %g %% of the inodes are free; "+
		"available: %s", v.path, now, want.FreePercent, want.FreeInodePercent, strings.Join(append(all, notes...), "; "))
	return Job{
		Does: does,
		Identity: map[string]string{"device": v.device, "path": v.path, "freeBytes": strconv.FormatUint(now.answer.FreeBytes,
			10)},
		Do: func(ctx context.Context) (string, error) { return v.free(ctx, now, sources) },
	}, nil
}

// fullDiskOf finds the filesystem of a finding in the mount table.
func fullDiskOf(t Tools, f finding.Finding) (fullDisk, error) {
	name := f.Subject.Name // a mount point, if from disk-space
	if f.Check == "evictions" {
		name = f.Facts["path"]
	}
	if !path.IsAbs(name) {
		return fullDisk{}, fmt.Errorf("find the filesystem: %q is not a path", name)
	}
	table, err := mount.Table(t.Host)
	if err != nil {
		return fullDisk{}, err
	}
	v := fullDisk{tools: t, table: table, path: name}
	if v.device, err = v.deviceOf(name); err != nil {
		return fullDisk{}, err
	}
	if v.readOnly(name) {
		return fullDisk{}, refuse("the filesystem of %s is mounted read-only: no file can be removed from it", name)
	}
	if device := f.Facts["device"]; device != "" && device != v.device {
		return fullDisk{}, refuse("another filesystem is mounted on %s, or covers it: %s instead of %s", name, v.device, device)
	}
	return v, nil
}

// deviceOf returns the device of the filesystem at a path.
func (v fullDisk) deviceOf(name string) (string, error) {
	resolved, err := mount.Real(v.tools.Host, name)
	if err != nil {
		return "", err
	}
	m, ok := mount.Around(v.table, resolved)
	if !ok {
		return "", fmt.Errorf("%s lies on no mount", name)
	}
	return m.Device(), nil
}

// readOnly reports whether the filesystem at a path permits no removal.
func (v fullDisk) readOnly(name string) bool {
	resolved, err := mount.Real(v.tools.Host, name)
	m, ok := mount.Around(v.table, resolved)
	return err == nil && ok && slices.Contains(m.SuperOptions, "ro")
}

// room asks how much is free now.
func (v fullDisk) room(ctx context.Context) (room, error) {
	name := v.path
	if v.tools.Host.Paths.InitPID > 1 {
		name = path.Join("/proc", strconv.Itoa(v.tools.Host.Paths.InitPID), "root", name)
	}
	answer, err := v.tools.Host.Prober.Do(ctx, probe.ProbeRequest{Op: probe.ProbeStatfs, Path: name})
	if err == nil && (answer.Errno != 0 || answer.TotalBytes == 0) {
		err = fmt.Errorf("errno %d, %d bytes in all", answer.Errno, answer.TotalBytes)
	}
	if err != nil {
		return room{}, fmt.Errorf("statfs %s: %w", v.path, err)
	}
	return room{answer}, nil
}

// sources returns the sources with removable data on the filesystem, and notes why the others have none. need is the
// number of missing bytes.
func (v fullDisk) sources(ctx context.Context, need uint64) (all []source, notes []string, err error) {
	s := v.tools.Settings.DiskSpace
	for _, one := range []struct {
		name    string
		on      bool
		dir     string // must be on the filesystem; empty: the source checks itself
		examine func(context.Context) (source, error)
	}{
		{"quarantine", s.Quarantine, v.tools.Mutator.QuarantineDir(), v.quarantine},
		{"core dumps", s.CoreDumps, v.tools.folders.coreDumps, v.coreDumps},
		{"journal", s.Journal, v.tools.folders.journals, func(ctx context.Context) (source, error) { return v.journal(ctx, need) }},
		{"images", s.Images, "", v.images},
	} {
		if !one.on {
			continue
		}
		if one.dir != "" {
			device, err := v.deviceOf(one.dir)
			if err != nil {
				return nil, nil, err
			}
			if device != v.device {
				notes = append(notes, one.name+": on another filesystem")
				continue
			}
		}
		found, err := one.examine(ctx)
		switch {
		case errors.Is(err, hosterr.ErrNotConfigured):
			notes = append(notes, one.name+": not on this node")
		case err != nil: // the other sources can still be used
			notes = append(notes, fmt.Sprintf("%s: %v", one.name, err))
		case found.objects == 0:
			notes = append(notes, one.name+": "+found.note)
		default:
			found.name = one.name
			all = append(all, found)
		}
	}
	return all, notes, nil
}

// free removes from one source after the other until enough is free, and describes the result.
func (v fullDisk) free(ctx context.Context, before room, sources []source) (string, error) {
	last, stopped := before, ""
	enough := func(ctx context.Context) (bool, error) {
		if stopped = v.tools.Stopped(); stopped != "" {
			return true, nil
		}
		now, err := v.room(ctx)
		if err != nil {
			return true, notBegun(err)
		}
		last = now
		_, reached := now.needs(v.tools.Settings.DiskSpace)
		return reached, ctx.Err()
	}
	var done, left []string // left: why an object was not removed
	var problems []error
	sum := freed{}
	for _, s := range sources {
		reached, err := enough(ctx)
		if err != nil {
			problems = append(problems, err)
		}
		if reached || err != nil {
			break
		}
		got, err := s.free(ctx, enough)
		sum.objects, sum.bytes = sum.objects+got.objects, sum.bytes+got.bytes
		if got.objects > 0 {
			done = append(done, s.name+" "+got.String())
		}
		switch {
		case err == nil:
		case leftAlone(err):
			left = append(left, fmt.Sprintf("%s: %v", s.name, err))
		default:
			problems = append(problems, fmt.Errorf("%s: %w", s.name, err))
		}
	}
	reached, err := enough(ctx)
	problems = append(problems, err)
	text := fmt.Sprintf("freed %s in %d objects (%s): %s before, %s now", sizeText(sum.bytes), sum.objects,
		cmp.Or(strings.Join(done, ", "), "none"), before, last)
	switch {
	case stopped != "":
		text += "; stopped: " + stopped
	case !reached:
		text += ", below the target"
	}
	if len(left) > 0 {
		text += "; left alone: " + strings.Join(left, "; ")
	}
	if err := errors.Join(problems...); err != nil && sum.objects == 0 && !slices.ContainsFunc(problems, isFailure) {
		return "", refuse("%s: %v", text, err)
	} else if err != nil {
		// The error chain ends here: a skipped object must not make the whole a refusal.
		return text, errors.New(err.Error())
	}
	if sum.objects == 0 {
		return "", refuse("%s", text)
	}
	return text, nil
}

// leftAlone reports whether an object was skipped because it is in use or was replaced.
func leftAlone(err error) bool {
	_, refused := errors.AsType[mutate.Refusal](err)
	return refused || errors.Is(err, mutate.ErrBusy) || errors.Is(err, mutate.ErrChanged)
}

// isFailure reports whether an attempt was made and failed; an unanswered question does not count.
func isFailure(err error) bool { return err != nil && !mutate.WasNotBegun(err) }

// each removes objects one by one until enough is free. It skips objects in use; any other error ends the loop, since
// it hardly concerns the object alone.
func each[T any](ctx context.Context, objects []T, enough func(context.Context) (bool, error),
	remove func(context.Context, T) (bytes uint64, err error)) (got freed, err error) {
	var left error // the first
	for _, o := range objects {
		reached, err := enough(ctx)
		if reached || err != nil {
			return got, cmp.Or(err, left)
		}
		bytes, err := remove(ctx, o)
		switch {
		case err == nil:
			got.objects, got.bytes = got.objects+1, got.bytes+bytes
		case !leftAlone(err):
			return got, err
		case left == nil:
			left = err
		}
	}
	return got, left
}

// sizeText formats a number of bytes for people: "1.5 GiB".
func sizeText(n uint64) string {
	value, unit := float64(n), 0
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	for value >= 1024 {
		value, unit = value/1024, unit+1
	}
	return strings.Replace(fmt.Sprintf("%.1f %s", value, units[unit]), ".0 B", " B", 1)
}
