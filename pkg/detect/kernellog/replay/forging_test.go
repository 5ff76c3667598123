package replay

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules/rulestest"
)

// frames are the kernel's lines in which somebody else chooses the words at %s, and the rules that rightly match the
// line around them.
var frames = []struct {
	frame string
	limit int // how many bytes the kernel takes
	rules string
}{
	{"%s[4711]: segfault at 8 ip 0000000000401136 sp 00007ffe5a6bd0a0 error 6 in a.out[401000+1000]", 15, "app-crash"},
	{"traps: %s[4711] general protection fault ip:401136 sp:7ffe5a6bd0a0 error:0 in a.out[401000+1000]", 15,
		"app-crash"},
	{"%s (4711): drop_caches: 3", 15, ""},
	{"%s (4711) used greatest stack depth: 11240 bytes left", 15, ""},
	{"%s invoked oom-killer: gfp_mask=0x100cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0", 15, "oom-report"},
	{"%s: potentially unexpected fatal signal 11.", 15, ""},
	{"%s: sending ioctl 5310 to a partition!", 15, ""},
	{"%s uses obsolete (PF_INET,SOCK_PACKET)", 15, ""},
	{"%s[4711] vsyscall attempted with vsyscall=none ip:ffffffffff600000 cs:33 sp:7ffc ax:0 si:0 di:0", 15, ""},
	{"process '%s' started with executable stack", 200, ""},
	{"warning: `%s' uses wireless extensions which will stop working for Wi-Fi 7 hardware; use nl80211", 15, ""},
	{"[   4711]  1000  4711    12345     6789      123      456        0   102400        0           985 %s", 15, ""},
	{"CPU: 3 UID: 0 PID: 4711 Comm: %s Not tainted 6.12.9 #1", 15, ""},
	{"Out of memory: Killed process 4711 (%s) total-vm:8388608kB, anon-rss:4194304kB, file-rss:0kB, shmem-rss:0kB, " +
		"UID:1000 pgtables:9216kB oom_score_adj:0", 15, "system-oom-killed"},
	{"Memory cgroup out of memory: Killed process 4711 (%s) total-vm:8388608kB, anon-rss:4194304kB, file-rss:0kB, " +
		"shmem-rss:0kB, UID:1000 pgtables:9216kB oom_score_adj:0", 15, "container-oom-killed"},
	{"oom_reaper: reaped process 4711 (%s), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB", 15, ""},
	{"INFO: task %s:4711 blocked for more than 120 seconds.", 15, "task-hung"},
	{"audit: type=1400 audit(1700528523.123:456): apparmor=\"DENIED\" operation=\"open\" profile=\"docker-default\" " +
		"name=\"%s\" pid=4711 comm=\"%[1]s\"", 200, ""},
	{"%sIN=eth0 OUT= MAC=02:42:ac:11:00:02:02:42:ac:11:00:01:08:00 SRC=10.0.0.1 DST=10.0.0.2 LEN=60 TOS=0x00 " +
		"PREC=0x00 TTL=64 ID=4711 DF PROTO=TCP SPT=4711 DPT=80 WINDOW=64240 RES=0x00 SYN URGP=0 ", 127, ""},
	{"%s IN= OUT=veth0 ARP HTYPE=1 PTYPE=0x0800 OPCODE=1", 127, ""},
	{"usb 1-1: Product: %s", 126, ""},
	{"usb 1-1: Manufacturer: %s", 126, ""},
	{"usb 1-1: SerialNumber: %s", 126, ""},
	{"input: %s as /devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/input/input5", 126, ""},
	{"hid-generic 0003:046D:C31C.0001: input,hidraw0: USB HID v1.10 Keyboard [%s] on usb-0000:00:14.0-1/input0", 126,
		""},
	{"scsi 0:0:0:0: Direct-Access     %.8s %.16[1]s 0001 PQ: 0 ANSI: 5", 126, ""},
	{"BTRFS: device label %s devid 1 transid 9 /dev/sdb scanned by mount (4711)", 255, ""},
	{"systemd[1]: %s", 200, ""},
	{"Command line: BOOT_IMAGE=/vmlinuz root=/dev/sda1 comment=\"%s\"", 200, ""},
	{"Unknown kernel command line parameters \"%s\", will be passed to user space.", 200, ""},
	{"veth1234: renamed from %.15s", 15, ""},
	{"netlink: 12 bytes leftover after parsing attributes in process `%s'.", 15, ""},
	{"NFS: server %s error: fileid changed", 200, ""},
	{"random: %s: uninitialized urandom read (16 bytes read)", 15, ""},
}

// TestForging: a program takes the text of any rule as its name or output; no rule may match it.
func TestForging(t *testing.T) {
	m := kernelMatcher(t)
	for _, rule := range rules.Kernel() {
		e := rulestest.ReadExamples(t, rule.ID)
		lines := append([]string{}, e.Recovery...)
		for _, example := range e.Match {
			lines = append(lines, example.Line)
		}
		for _, line := range lines {
			for _, f := range frames {
				forged := fmt.Sprintf(f.frame, line[:min(f.limit, len(line))])
				hit, ok := m.Match([]byte(forged))
				// Any program can really crash, so pretending to crash adds no risk.
				if ok && hit.Rule.ID != f.rules && hit.Rule.ID != "app-crash" {
					t.Errorf("%s is fooled by %q", hit.Rule.ID, forged)
				}
			}
		}
	}
}

// TestLineBreakForging: a name with a line break in it starts no line of the kernel, in any format.
func TestLineBreakForging(t *testing.T) {
	for name, log := range map[string]string{
		"kmsg":          `6,1,1,-;a\x0aKernel panic - not syncing: forged (4711): drop_caches: 3`,
		"kmsg fragment": `4,2,2,c;Kernel panic - not syncing: forged`,
		"journal json":  `{"_TRANSPORT":"kernel","SYSLOG_FACILITY":"0","MESSAGE":"a\nKernel panic - not syncing: forged"}`,
		"journal short": "Nov 21 01:02:03 host kernel: a\n                             Kernel panic - not syncing: forged",
		"dmesg":         "[    1.000000] a\n               Kernel panic - not syncing: forged",
	} {
		t.Run(name, func(t *testing.T) {
			for _, found := range replayText(t, Replay{}, log) {
				t.Errorf("%s in %q", found.Rule.ID, found.Line)
			}
		})
	}
}

// TestBenign: no rule matches logs of healthy machines.
func TestBenign(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "benign", "*.txt"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%d logs of healthy machines, %v", len(files), err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			log, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, found := range replayText(t, Replay{}, string(log)) {
				if found.Recovered {
					continue
				}
				t.Errorf("line %d: %s: %s", found.Number, found.Rule.ID, found.Line)
			}
		})
	}
}

// TestNearMisses runs all lines that some rule must not match against all rules: only a rule with that line among its
// own examples may match it.
func TestNearMisses(t *testing.T) {
	m := kernelMatcher(t)
	wanted := map[string]bool{}
	for _, rule := range rules.Kernel() {
		e := rulestest.ReadExamples(t, rule.ID)
		for _, x := range e.Match {
			wanted[x.Line] = true
		}
		for _, line := range e.Recovery {
			wanted[line] = true
		}
	}
	for _, rule := range rules.Kernel() {
		for _, line := range rulestest.ReadExamples(t, rule.ID).NoMatch {
			hit, ok := m.Match([]byte(line))
			if ok && !wanted[line] && hit.Rule.ID != "app-crash" && hit.Rule.Report != "oom" &&
				hit.Rule.ID != "oom-report" {
				t.Errorf("%s (near miss of %s): %s", hit.Rule.ID, rule.ID, line)
			}
		}
	}
}

// benignLines are the texts of all logs of healthy machines.
func benignLines(t testing.TB) (lines [][]byte) {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join("testdata", "benign", "*.txt"))
	for _, name := range files {
		log, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		p := parser{format: Auto}
		for scanner := bufio.NewScanner(strings.NewReader(string(log))); scanner.Scan(); {
			if e := p.parse(scanner.Bytes()); e.what == kernelLine {
				lines = append(lines, append([]byte(nil), e.text...))
			}
		}
	}
	return lines
}
