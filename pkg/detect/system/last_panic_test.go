package system

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const rootDisk = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n"

// panicMachine was booted at 01:00. Dumps need a modification time, which fixtures cannot have.
func panicMachine(t *testing.T) (m *checktest.LoadMachine, dump func(name, text string, at time.Time)) {
	m = checktest.NewLoadMachine(t)
	m.Host.Paths.InitPID = 1
	m.Write("proc/1/mountinfo", rootDisk)
	m.Host.Clock = func() finding.Timestamp {
		return finding.Timestamp{Wall: panicBoot.Add(m.Up), Boot: "b", SinceBoot: m.Up}
	}
	return m, func(name, text string, at time.Time) {
		m.Write(name, text)
		if err := os.Chtimes(filepath.Join(m.Host.Files.Root, name), at, at); err != nil {
			t.Fatal(err)
		}
	}
}

var panicBoot = time.Date(2026, 11, 21, 1, 0, 0, 0, time.UTC)

const panicText = "Panic#1 Part1\n<4>[  120.1] Call Trace:\n<0>[  123.456789] Kernel panic - not syncing: Fatal " +
	"exception in interrupt\n<0>[  124.0] ---[ end Kernel panic - not syncing: x ]---\n"

func TestLastPanicRecorded(t *testing.T) {
	checktest.RunFixture(t, LastPanic(), "ok", "testdata/last-panic/ok-none.txtar")
}

// TestLastPanicRecordedDump: the panic is at the end of a record of 28 kB.
func TestLastPanicRecordedDump(t *testing.T) {
	m, dump := panicMachine(t)
	for name, data := range checktest.Recorded(t, "testdata/last-panic/bad-recorded.txtar") {
		dump(name, string(data), panicBoot.Add(-22*time.Second))
	}
	const want = "the kernel panicked before this boot: sysrq triggered crash; its dump is /sys/fs/pstore/dmesg-ramoops-0"
	if got := m.Run(LastPanic()); len(got) != 1 || got[0].Message != want {
		t.Errorf("got %+v, want %q", got, want)
	}
}

func TestLastPanic(t *testing.T) {
	justBefore := panicBoot.Add(-2 * time.Minute)
	for name, test := range map[string]struct {
		file, text string
		at         time.Time
		up         time.Duration
		want       string // severity and message; empty for none
	}{
		"pstore": {"sys/fs/pstore/dmesg-efi-1", panicText, justBefore, time.Hour,
			"warning the kernel panicked before this boot: Fatal exception in interrupt; its dump is " +
				"/sys/fs/pstore/dmesg-efi-1"},
		"second day": {"sys/fs/pstore/dmesg-efi-1", panicText, justBefore, 30 * time.Hour,
			"info the kernel panicked before this boot: Fatal exception in interrupt; its dump is " +
				"/sys/fs/pstore/dmesg-efi-1"},
		"fourth day": {"sys/fs/pstore/dmesg-efi-1", panicText, justBefore, 73 * time.Hour, ""},
		"no line of it": {"sys/fs/pstore/dmesg-ramoops-0", "Panic#1 Part2\n<4>[  1.0] x\n", justBefore, time.Hour,
			"warning the kernel panicked before this boot; its dump is /sys/fs/pstore/dmesg-ramoops-0"},
		"moved by systemd": {"var/lib/systemd/pstore/1795222680/001/dmesg.txt", panicText, justBefore, time.Hour,
			"warning the kernel panicked before this boot: Fatal exception in interrupt; its dump is " +
				"/var/lib/systemd/pstore/1795222680/001/dmesg.txt"},
		"kdump": {"var/crash/127.0.0.1-2026-11-21/vmcore", "KDUMP", justBefore, time.Hour,
			"warning the kernel panicked before this boot; its dump is /var/crash/127.0.0.1-2026-11-21/vmcore"},
		"an oops": {"sys/fs/pstore/dmesg-efi-1", "Oops#1 Part1\n<4>[  1.0] Oops: 0000 [#1]\n", justBefore,
			time.Hour, ""},
		"a program's name": {"sys/fs/pstore/dmesg-efi-1", "Oops#1 Part1\n<4>[  1.0] CPU: 1 PID: 7 Comm: Kernel " +
			"panic - not syncing: x\n", justBefore, time.Hour, ""},
		"a program's crash":   {"var/crash/_usr_bin_x.0.crash", panicText, justBefore, time.Hour, ""},
		"of an earlier boot":  {"sys/fs/pstore/dmesg-efi-1", panicText, justBefore.Add(-48 * time.Hour), time.Hour, ""},
		"from the future":     {"sys/fs/pstore/dmesg-efi-1", panicText, justBefore.Add(9 * time.Hour), time.Hour, ""},
		"nothing there":       {"etc/hostname", "n", justBefore, time.Hour, ""},
		"a console's records": {"sys/fs/pstore/console-ramoops-0", panicText, justBefore, time.Hour, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m, dump := panicMachine(t)
			dump(test.file, test.text, test.at)
			m.Up = test.up
			got := ""
			for _, f := range m.Run(LastPanic()) {
				got += string(f.Severity) + " " + f.Message
				if f.Problem() != nil || f.Reason != "KernelPanicBefore" {
					t.Errorf("%+v", f)
				}
			}
			if got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

// A clock that jumps neither raises nor clears a finding; removing the dump clears it.
func TestLastPanicLasts(t *testing.T) {
	m, dump := panicMachine(t)
	dump("sys/fs/pstore/dmesg-efi-1", panicText, panicBoot.Add(-time.Minute))
	check := LastPanic()
	if got := m.Run(check); len(got) != 1 {
		t.Fatalf("%+v", got)
	}
	m.Host.Clock = func() finding.Timestamp {
		return finding.Timestamp{Wall: panicBoot.AddDate(7, 0, 0), Boot: "b", SinceBoot: m.Up}
	}
	if got := m.Run(check); len(got) != 1 {
		t.Errorf("after the clock jumped: %+v", got)
	}
	if err := os.Remove(filepath.Join(m.Host.Files.Root, "sys/fs/pstore/dmesg-efi-1")); err != nil {
		t.Fatal(err)
	}
	if got := m.Run(check); len(got) != 0 {
		t.Errorf("after it was removed: %+v", got)
	}
}

// A folder on another machine could hang, so it is not even listed.
func TestLastPanicLeavesServersAlone(t *testing.T) {
	m, dump := panicMachine(t)
	dump("var/crash/x/vmcore", "", panicBoot)
	m.Write("proc/1/mountinfo", rootDisk+"30 21 0:50 / /var/crash rw - nfs4 server:/crash rw\n")
	if got := m.Run(LastPanic()); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	m.Write("proc/1/mountinfo", "none\n")
	if _, err := LastPanic().Run(t.Context(), m.Host); err == nil || !strings.Contains(err.Error(), "mountinfo") {
		t.Errorf("malformed mount table: %v", err)
	}
}
