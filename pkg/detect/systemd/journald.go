// Package systemd finds faults of systemd and its daemons: failed units, a journal without new records.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// journald reads
//
//	/proc/PID/stat            of systemd-journald: the state, T is stopped
//	/etc/machine-id           which names the directory of this machine's journal
//	/var/log/journal/ID/      (by a child process: the disk may hang), and /run/log/journal/ID/: names of files, such as
//	system@00062f3b8a5c1e2d-7f3a5b1c9d8e0f12.journal~
//
// If journald finds its file damaged or not closed, it renames it so, with the time (microseconds since 1970,
// hexadecimal) and a random number, and begins a new one: systemd, journal_file_dispose() in
// src/libsystemd/sd-journal/journal-file.c,
// https://www.freedesktop.org/software/systemd/man/latest/systemd-journald.service.html.
//
// A file that was not closed is normal in the boot after a crash of the machine (see unexpected-reboot), and files of
// users (user-1000@…) are opened at their login. Later ones of the system mean that journald was killed, by its
// watchdog or because memory ran out, or that its disk corrupts files. A jump of the wall clock may make an old file
// look new.

const (
	journaldSocket  = "/run/systemd/journal/stdout"
	journalSettled  = 10 * time.Minute // after boot
	journalDisposed = 24 * time.Hour   // how long it is reported
	journalEvery    = 10 * time.Minute // between lists
	journalPatience = 4 * time.Second  // with the disk of the logs
)

// Journald finds a journald that does not accept messages, or has lost some.
func Journald() detect.Check {
	j := &journaldState{program: discover.Program{Comm: "systemd-journal"}} // the kernel keeps 15 bytes of it
	return detect.Check{
		ID:      "journald",
		Domain:  "kubernetes",
		Summary: "the node's log daemon is stopped, or has lost messages",
		Advice: "Check `systemctl status systemd-journald` and `journalctl -u systemd-journald -n 30`; `journalctl " +
			"--verify` names damaged files. `systemctl restart systemd-journald` is safe: services keep their " +
			"connections.",
		Doc: detect.Doc{
			Reads: []string{"/proc/PID/stat of systemd-journald", "/etc/machine-id",
				"names in /var/log/journal and /run/log/journal (in a child process)"},
			Why: "Services that log, kubelet and the runtime among them, block as soon as the buffer of the socket " +
				"is full; and lost messages are missing when a fault is investigated.",
			Faults: []detect.Fault{
				{Reason: "JournaldStopped", Severity: finding.Warning, When: "its process is in state T, seen twice: " +
					"a signal or a debugger stopped it"},
				{Reason: "JournalDamaged", Severity: finding.Info, When: "journald renamed a file of the system " +
					"as damaged or not closed within the last 24 hours, later than 10 minutes after boot"},
			},
			FalseAlarms: "Files renamed at boot, after a crash of the machine, and those of users do not count. " +
				"systemd-units reports a journald that does not run, hung-tasks one that hangs on a disk.",
		},
		Every:  30 * time.Second,
		Policy: finding.Policy{Raise: finding.Hold{Runs: 2}},
		Run:    j.run,
	}
}

type journaldState struct {
	program discover.Program

	listed  finding.Timestamp // when the files were listed
	damaged []time.Time       // when files were renamed
	listErr error
}

func (j *journaldState) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	if _, err := h.Files.Stat(journaldSocket); errors.Is(err, fs.ErrNotExist) {
		return nil, finding.NotApplicable("systemd-journald has not run since boot")
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", journaldSocket, err)
	}
	var found []finding.Finding
	process, err := j.program.Find(h)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("systemd-journald: %w", err)
	}
	if err == nil {
		stat, err := h.ProcStat(process.PID)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("systemd-journald: %w", err)
		}
		if stat.State == 'T' || stat.State == 't' {
			found = append(found, stoppedJournald(process.PID))
		}
	}
	if err := j.list(ctx, h); err != nil {
		return found, finding.Partial(map[finding.Subject]error{journalSubject(): err})
	}
	return append(found, j.evaluate(h.Clock())...), nil
}

func journalSubject() finding.Subject { return finding.Subject{Kind: "journal", Name: "system"} }

func stoppedJournald(pid int) finding.Finding {
	return finding.Finding{
		Subject:  finding.Subject{Kind: "unit", Name: "systemd-journald.service"},
		Severity: finding.Warning, Reason: "JournaldStopped",
		Message: fmt.Sprintf("systemd-journald (PID %d) is stopped by a signal or a debugger: services that log "+
			"block; resume it with `kill -CONT %d`", pid, pid),
		Facts: map[string]string{"pid": strconv.Itoa(pid)},
	}
}

// list lists the files that journald renamed, every ten minutes: each time takes a child process, which may hang.
func (j *journaldState) list(ctx context.Context, h *host.Host) error {
	now := h.Clock()
	if j.listed.Boot == now.Boot && now.Since(j.listed) < journalEvery {
		return j.listErr
	}
	ctx, cancel := context.WithTimeout(ctx, journalPatience)
	defer cancel()
	j.listed = now
	j.damaged, j.listErr = listDamaged(ctx, h)
	return j.listErr
}

func listDamaged(ctx context.Context, h *host.Host) ([]time.Time, error) {
	machine, err := h.Files.Text("/etc/machine-id")
	if err != nil {
		return nil, fmt.Errorf("read /etc/machine-id: %w", err)
	}
	if machine == "" || strings.ContainsAny(machine, "/.") || len(machine) > 64 {
		return nil, fmt.Errorf("/etc/machine-id: %q is no machine ID", checkkit.Sanitize(machine, 64))
	}
	var damaged []time.Time
	for _, dir := range []string{"/var/log/journal", "/run/log/journal"} {
		answer, err := h.Prober.Ask(ctx, probe.ProbeRequest{Op: probe.ProbeJournals, Path: path.Join(dir, machine)})
		if err == nil && answer.Errno != 0 && syscall.Errno(answer.Errno) != syscall.ENOENT { //nolint:gosec // an errno
			err = syscall.Errno(answer.Errno) //nolint:gosec // an errno
		}
		if err != nil {
			return nil, fmt.Errorf("list %s/%s: %w", dir, machine, err)
		}
		for name := range answer.Values {
			if at, ok := disposedAt(name); ok {
				damaged = append(damaged, at)
			}
		}
	}
	return damaged, nil
}

// disposedAt returns when journald renamed a file of the system, by its name.
func disposedAt(name string) (time.Time, bool) {
	name, ok := strings.CutSuffix(name, ".journal~")
	name, system := strings.CutPrefix(name, "system@")
	digits, _, dash := strings.Cut(name, "-")
	if !ok || !system || !dash || len(digits) != 16 {
		return time.Time{}, false
	}
	micros, err := strconv.ParseInt(digits, 16, 64)
	return time.UnixMicro(micros), err == nil
}

// evaluate reports files renamed while the machine ran.
func (j *journaldState) evaluate(now finding.Timestamp) []finding.Finding {
	booted := now.Wall.Add(-now.SinceBoot)
	count, last := 0, time.Time{}
	for _, at := range j.damaged {
		if at.After(booted.Add(journalSettled)) && !at.After(now.Wall) && now.Wall.Sub(at) < journalDisposed {
			count++
			if at.After(last) {
				last = at
			}
		}
	}
	if count == 0 {
		return nil
	}
	return []finding.Finding{{
		Subject: journalSubject(), Severity: finding.Info, Reason: "JournalDamaged",
		Message: fmt.Sprintf("journald renamed %d of its files within %.0f hours as damaged or not closed, the "+
			"last one at %s: messages may be missing", count, journalDisposed.Hours(), last.UTC().Format(time.RFC3339)),
		Facts: map[string]string{"files": strconv.Itoa(count), "last": last.UTC().Format(time.RFC3339)},
	}}
}
