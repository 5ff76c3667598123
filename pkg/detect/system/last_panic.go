package system

import (
	"context"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
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
