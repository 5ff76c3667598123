// Package systemd finds faults of systemd and its daemons: units that failed, a journal that nobody writes.
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
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
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
// journald renames its file so, with the time (microseconds since 1970, hexadecimal) and a random number, when it
// finds it damaged or not closed, and begins a new one: systemd, journal_file_dispose() in
// src/libsystemd/sd-journal/journal-file.c,
// https://www.freedesktop.org/software/systemd/man/latest/systemd-journald.service.html.
//
// Whoever logs to a journald that does not read waits as soon as the socket's buffer is full, and that is almost
// every service: kubelet and the runtime too. Not closed is normal for the boot after a crash of the machine
// (unexpected-reboot tells of those): only what was renamed later than ten minutes after boot counts, for a day. Then
// journald itself was killed, by its watchdog or for want of memory, or its disk damages files.
//
// Known false alarms, and what is done: files of users (user-1000@…) are opened when the user comes, long after the
// boot that followed a crash: they are not counted. A jump of the wall clock may make an old file look new: it is
// information. That journald does not run or is restarted again and again is told by systemd-units, that it hangs on
// a disk by hung-tasks, and a full or read-only disk below it by disk-space and filesystem-readonly.

const (
	journaldID      = "journald"
	journaldSocket  = "/run/systemd/journal/stdout"
	journalSettled  = 10 * time.Minute // after boot
	journalDisposed = 24 * time.Hour   // is told of so long
	journalEvery    = 10 * time.Minute // between lists
	journalPatience = 4 * time.Second  // with the disk of the logs
)

// Journald finds a journald that does not take what the node logs, or has lost some of it.
func Journald() detect.Check {
	j := &journaldLook{program: discover.Program{Comm: "systemd-journal"}} // the kernel keeps 15 bytes of it
	return detect.Check{
		ID:      journaldID,
		Domain:  "kubernetes",
		Summary: "the node's log daemon is stopped, or has lost messages",
		Advice: "`systemctl status systemd-journald` and `journalctl -u systemd-journald -n 30`; `journalctl " +
			"--verify` names damaged files. `systemctl restart systemd-journald` is safe: services keep their " +
			"connections.",
		Doc: detect.Doc{
			Reads: []string{"/proc/PID/stat of systemd-journald", "/etc/machine-id",
				"names in /var/log/journal and /run/log/journal (in a child process)"},
			Why: "Services that log wait for journald, kubelet and the runtime among them; and what is lost cannot " +
				"be looked at on a bad day.",
			Faults: []detect.Fault{
				{Reason: "JournaldStopped", Severity: finding.Warning, When: "its process is in state T, seen twice: " +
					"a signal or a debugger stopped it"},
				{Reason: "JournalDamaged", Severity: finding.Info, When: "journald gave up a file of the system " +
					"within the last 24 hours, later than 10 minutes after boot"},
			},
			FalseAlarms: "Files given up at boot, after a crash of the machine, and those of users do not count.",
		},
		Every:    30 * time.Second,
		Deadline: 10 * time.Second,
		Policy:   finding.Policy{Raise: finding.Hold{Looks: 2}},
		Run:      j.look,
	}
}

type journaldLook struct {
	program discover.Program

	listed  finding.Timestamp // when the files were listed
	damaged []time.Time       // what was found, by name
	listErr error             // why nothing could be
}

func (j *journaldLook) look(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
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
	return append(found, j.judge(h.Clock())...), nil
}

func journalSubject() finding.Subject { return finding.Subject{Kind: "journal", Name: "system"} }

func stoppedJournald(pid int) finding.Finding {
	return finding.Finding{
		Check: journaldID, Subject: finding.Subject{Kind: "unit", Name: "systemd-journald.service"},
		Severity: finding.Warning, Reason: "JournaldStopped",
		Message: fmt.Sprintf("systemd-journald (PID %d) is stopped by a signal or a debugger: services that log will "+
			"wait for it; `kill -CONT %d` lets it go on", pid, pid),
		Facts: map[string]string{"pid": strconv.Itoa(pid)},
	}
}

// list lists the files that journald gave up, every ten minutes: not more often either where the disk hangs, each
// time with a child.
func (j *journaldLook) list(ctx context.Context, h *host.Host) error {
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
	if h.Prober.Do == nil {
		return nil, hosterr.ErrNotConfigured
	}
	machine, err := h.Files.Text("/etc/machine-id")
	if err != nil {
		return nil, fmt.Errorf("read /etc/machine-id: %w", err)
	}
	if machine == "" || strings.ContainsAny(machine, "/.") || len(machine) > 64 {
		return nil, fmt.Errorf("/etc/machine-id: %q is none", checkkit.Sanitize(machine, 64))
	}
	var damaged []time.Time
	for _, dir := range []string{"/var/log/journal", "/run/log/journal"} {
		answer, err := h.Prober.Do(ctx, probe.ProbeRequest{Op: probe.ProbeJournals, Path: path.Join(dir, machine)})
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

// disposedAt returns when journald gave a file of the system up, by its name.
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

// judge tells of files that were given up while the machine ran.
func (j *journaldLook) judge(now finding.Timestamp) []finding.Finding {
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
		Check: journaldID, Subject: journalSubject(), Severity: finding.Info, Reason: "JournalDamaged",
		Message: fmt.Sprintf("journald gave up %d files of its own within %.0f hours, damaged or not closed, the "+
			"last one at %s: messages may be missing",
			count, journalDisposed.Hours(), last.UTC().Format(time.RFC3339)),
		Facts: map[string]string{"files": strconv.Itoa(count), "last": last.UTC().Format(time.RFC3339)},
	}}
}
