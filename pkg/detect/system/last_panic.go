package system

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/tailfile"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystem"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// last-panic reads the names of these files and the beginning of dumps:
//
//	/sys/fs/pstore/dmesg-*                   the end of the kernel's log, kept by firmware, ERST or reserved memory; begins
//	                                         with "Panic#1 Part1" (or "Oops#1 Part1", which is no panic)
//	/var/lib/systemd/pstore/*/…/dmesg*       the same, where systemd-pstore has moved it
//	/var/crash/*/vmcore*, vmcore-dmesg.txt   dumps of kdump, in a folder for each crash
//
// https://docs.kernel.org/admin-guide/pstore-blk.html, https://docs.kernel.org/admin-guide/kdump/kdump.html,
// systemd-pstore.service(8)
//
// The time of a dump is evaluated once, in the first run, so that setting the clock later makes it neither older nor
// newer. Files directly in /var/crash are reports of programs (apport); a /var/crash on another machine is not read.

// panicTTL is how long after boot a panic is reported.
const panicTTL = 72 * time.Hour

// LastPanic finds nodes whose kernel panicked before this boot.
func LastPanic() detect.Check {
	return detect.Check{
		ID: "last-panic", Domain: "kernel",
		Summary: "the kernel panicked before this boot",
		Advice: "Read the dump that the message names (`crash vmlinux vmcore`, or the text file): its last lines " +
			"show the cause. Copy it elsewhere, then remove it: the firmware stores only a few. After hardware " +
			"errors test the machine; otherwise update the kernel.",
		Doc: detect.Doc{
			Reads: []string{"/sys/fs/pstore/dmesg-*", "/var/lib/systemd/pstore",
				"/var/crash, where it is on a disk of the node"},
			Why: "All pods of the node were killed without notice, and as long as the cause exists the kernel will " +
				"panic again.",
			Faults: []detect.Fault{
				{Reason: "KernelPanicBefore", Severity: finding.Warning, When: "a dump of a panic was written in the " +
					"day before this boot; a warning for 24 hours after boot, information until 72"},
			},
			FalseAlarms: "Dumps of an oops, crash reports of programs, and dumps of earlier boots are not reported.",
		},
		Every: time.Hour,
		Run:   new(panicState).run,
	}
}

// panicState keeps the known facts about each dump.
type panicState struct {
	known map[string]panicDump
}

// panicDump is one dump.
type panicDump struct {
	isPanic, ofLastBoot bool
	why                 string // the kernel's message, if the dump has it in plain text
}

func (m *panicState) run(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	up := h.Clock().SinceBoot
	if up > panicTTL {
		return nil, nil
	}
	files, err := dumpFiles(h)
	if err != nil {
		return nil, err
	}
	known := make(map[string]panicDump, len(files))
	chosen, why := "", ""
	for _, f := range files {
		dump, old := m.known[f]
		if !old {
			if dump, err = readDump(h, f); err != nil {
				return nil, err
			}
		}
		known[f] = dump
		if dump.isPanic && dump.ofLastBoot && (chosen == "" || why == "" && dump.why != "") {
			chosen, why = f, dump.why
		}
	}
	m.known = known
	if chosen == "" {
		return nil, nil
	}
	f := finding.Finding{
		Subject: checkkit.NodeSubject(h), Severity: finding.Warning, Reason: "KernelPanicBefore",
		Message: "the kernel panicked before this " +
			"boot", Facts: map[string]string{"dump": checkkit.Sanitize(chosen, 256)},
	}
	if up > checkkit.BootFactTTL {
		f.Severity = finding.Info
	}
	if why != "" {
		f.Message, f.Facts["panic"] = f.Message+": "+why, why
	}
	f.Message += fmt.Sprintf("; its dump is %s", f.Facts["dump"])
	return []finding.Finding{f}, nil
}

const (
	pstoreDir   = "/sys/fs/pstore"
	pstoreMoved = "/var/lib/systemd/pstore"
	crashDir    = "/var/crash"
	maxDumps    = 256       // inspected, in each location
	dumpHead    = 128 << 10 // of a dump of text; a record of pstore is smaller, and a log of kdump ends with the panic
)

// dumpFiles lists possible dumps of a panic. A location that does not exist has none.
func dumpFiles(h *host.Host) ([]string, error) {
	var found []string
	names, err := checkkit.ListSorted(h.Files, pstoreDir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if strings.HasPrefix(name, "dmesg-") {
			found = append(found, pstoreDir+"/"+name)
		}
	}
	for _, dir := range []string{pstoreMoved, crashDir} {
		below, err := dumpsBelow(h, dir)
		if err != nil {
			return nil, err
		}
		found = append(found, below...)
	}
	return found, nil
}

// dumpsBelow lists dumps in the folders of one location, two levels deep, if it is on a disk of the node: listing a
// folder of a dead server would hang.
func dumpsBelow(h *host.Host, dir string) ([]string, error) {
	local, err := onLocalDisk(h, dir)
	if err != nil || !local {
		return nil, err
	}
	if stat, err := h.Files.Stat(dir); err != nil || !stat.IsDir() { // a symbolic link could lead to a server
		return nil, hosterr.Ignore(err, fs.ErrNotExist)
	}
	var found []string
	dirs := []string{dir}
	for depth := 0; depth <= 2; depth++ {
		var next []string
		for _, d := range dirs {
			entries, _, err := h.Files.Entries(d)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			slices.SortFunc(entries, func(a, b host.Entry) int { return strings.Compare(a.Name, b.Name) })
			for _, e := range entries {
				switch name := d + "/" + e.Name; {
				case depth > 0 && e.IsFile() && isDump(e.Name) && len(found) < maxDumps:
					found = append(found, name)
				case e.IsDir() && len(next) < maxDumps:
					next = append(next, name)
				}
			}
		}
		dirs = next
	}
	return found, nil
}

func isDump(name string) bool {
	return strings.HasPrefix(name, "dmesg") || strings.HasPrefix(name, "vmcore") || strings.HasPrefix(name, "dump.")
}

// onLocalDisk reports whether the deepest mount above a path is a filesystem that needs no server.
func onLocalDisk(h *host.Host, name string) (bool, error) {
	mounts, err := mount.Visible(mount.Recent(h))
	if err != nil {
		return false, err
	}
	best, local := -1, false
	for _, m := range mounts {
		if len(m.Point) >= best && (mount.Below(name, m.Point) || mount.Below(m.Point, name)) {
			best = len(m.Point)
			local = filesystem.OnBlockDevice(m) && m.FSType != "fuseblk" ||
				slices.Contains([]string{"overlay", "tmpfs", "zfs", "ramfs", "bcachefs"}, m.FSType)
		}
	}
	return local, nil
}

// readDump decides when a dump was written, and whether it is of a panic.
func readDump(h *host.Host, file string) (panicDump, error) {
	const before, slack = 24 * time.Hour, 10 * time.Minute
	stat, err := h.Files.Stat(file)
	if err != nil {
		return panicDump{}, hosterr.Ignore(err, fs.ErrNotExist) // moved meanwhile
	}
	age := checkkit.BootTime(h.Clock()).Sub(stat.Modified)
	dump := panicDump{ofLastBoot: age >= -slack && age <= before}
	text := strings.Contains(path.Base(file), "dmesg")
	if !dump.ofLastBoot || !text {
		dump.isPanic = !text // kdump writes only after a panic: the name is enough
		return dump, nil
	}
	data, err := readDumpText(h.Files, file)
	if errors.Is(err, fs.ErrNotExist) {
		return panicDump{}, nil
	}
	if err != nil {
		return panicDump{}, fmt.Errorf("dump of a panic: %w", err)
	}
	dump.isPanic, dump.why = panicIn(data)
	// A record that pstore could not decompress has no plain text; kdump's log is of a panic in any case.
	dump.isPanic = dump.isPanic || strings.HasPrefix(file, crashDir)
	return dump, nil
}

// readDumpText reads the end of a log, which contains the panic.
func readDumpText(files host.Files, file string) ([]byte, error) {
	if strings.HasPrefix(file, pstoreDir) { // each record is small
		return tailfile.Head(files, file, dumpHead)
	}
	data, _, err := tailfile.Tail(files, file, dumpHead)
	return data, err
}

// panicIn finds the message of a panic in a log with or without time stamps:
//
//	Panic#2 Part1
//	<0>[  123.456789] Kernel panic - not syncing: Fatal exception in interrupt
func panicIn(data []byte) (isPanic bool, why string) {
	const message = "Kernel panic - not syncing"
	isPanic = bytes.HasPrefix(data, []byte("Panic#"))
	for line := range bytes.Lines(data) {
		prefix, rest, found := bytes.Cut(line, []byte(message))
		// Only level and time precede the kernel's message; a program's name may contain anything.
		if !found || len(bytes.Trim(prefix, "<>[]()0123456789. \tT,C")) > 0 {
			continue
		}
		return true, checkkit.Sanitize(strings.TrimPrefix(string(rest), ": "), 200)
	}
	return isPanic, ""
}
